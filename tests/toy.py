"""Small dictionaries, tasks, batches and models for the tests of single modules."""

import torch
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask


def dictionary(size=9, multiple=1):
    """`size` letters after the four special symbols, filled up to a `multiple` with made-up words."""
    symbols = Dictionary()
    for i in range(size):
        symbols.add_symbol(chr(ord("a") + i))
    symbols.pad_to_multiple_(multiple)
    return symbols


def task(source=None, target=None, **settings):
    """fairseq's own translation task, without data."""
    return TranslationTask(TranslationConfig(**settings), source or dictionary(), target or dictionary())


def sources(lengths, vocab=13, pad=1, left_pad=True, seed=0):
    """Random source tokens `(batch, longest)` of these lengths, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), pad)
    for row, length in zip(tokens, lengths):
        words = torch.randint(4, vocab, (length,), generator=generator)
        if left_pad:
            row[max(lengths) - length :] = words
        else:
            row[:length] = words
    return tokens, torch.tensor(lengths)


def sample(lengths=(5, 2, 4), target_lengths=(3, 6, 4), vocab=13, pad=1, eos=2, seed=0):
    """A batch as fairseq's translation datasets make it; targets are padded on the right."""
    src_tokens, src_lengths = sources(lengths, vocab, pad, seed=seed)
    target, _ = sources(target_lengths, vocab, pad, left_pad=False, seed=seed + 1)
    prev_output_tokens = torch.full_like(target, pad)
    prev_output_tokens[:, 0] = eos
    prev_output_tokens[:, 1:] = target[:, :-1]
    return {
        "id": torch.arange(len(lengths)),
        "nsentences": len(lengths),
        "ntokens": int(target.ne(pad).sum()),
        "net_input": {"src_tokens": src_tokens, "src_lengths": src_lengths, "prev_output_tokens": prev_output_tokens},
        "target": target,
    }
