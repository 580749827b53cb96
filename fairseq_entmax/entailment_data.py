"""Pairs of a premise and a hypothesis with a label: the files of `entailment_entmax`, their batches, word vectors."""

import logging
from pathlib import Path
from typing import Dict, List, Sequence

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils

logger = logging.getLogger(__name__)

PREMISE, HYPOTHESIS = "premise", "hypothesis"


def read_labels(path: str, labels: Sequence[str]) -> List[int]:
    """Numbers of the labels in a file, one label a line."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file; wanted the label of each pair, one a line")
    number = {label: i for i, label in enumerate(labels)}
    found = []
    for line, label in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if label not in number:
            raise ValueError(f"{path}, line {line}: wanted one of --labels {','.join(labels)}, got {label!r}")
        found.append(number[label])
    return found


def read_vectors(path: str, words: Sequence[str], dim: int) -> Dict[str, np.ndarray]:
    """Vectors of the words that a text file has, from lines of a word and `dim` numbers.

    A first line of two numbers, as word2vec writes it, is passed over. Words may contain spaces, so vectors of more
    than `dim` numbers are noticed only by their words, which nobody has.

    Raises:
        ValueError: a line of fewer numbers, by its number; a file that has none of the words.
    """
    if not Path(path).is_file():
        raise ValueError(f"--vectors {path}: no such file")
    wanted, found, fields = set(words), {}, [""]
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip().split(" ")
            if number == 1 and len(fields) == 2:
                continue
            word = " ".join(fields[: len(fields) - dim])
            if not word:
                raise ValueError(f"--vectors {path}, line {number}: wanted a word and {dim} numbers (--embed-dim)")
            if word in wanted and word not in found:
                try:
                    found[word] = np.array(fields[len(fields) - dim :], dtype=np.float32)
                except ValueError:
                    raise ValueError(f"--vectors {path}, line {number}: wanted {dim} numbers after {word!r}") from None
    if not found:
        raise ValueError(
            f"--vectors {path}: wanted words of the data, each with {dim} numbers (--embed-dim), got none; the last "
            f"line has {len(fields) - 1} numbers"
        )
    return found


class EntailmentDataset(FairseqDataset):
    """Pairs in batches of `net_input` (`premise` and `hypothesis`, each `(batch, longest)`) and `target` `(batch, 1)`.

    Sentences are padded on the right and have no end-of-sentence symbol: attention is on words.

    Args:
        name: of the subset; batches carry it
        premises, hypotheses: data sets of token tensors that end with end of sentence
        labels: number of each pair's label
        dictionary: of both
        shuffle: in training, pairs of like lengths meet in batches by chance; the batches are made once, and come in
            another order in each epoch
    """

    def __init__(self, name, premises, hypotheses, labels, dictionary, shuffle=True):
        super().__init__()
        sizes = {PREMISE: len(premises), HYPOTHESIS: len(hypotheses), "label": len(labels)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"subset {name}: wanted as many premises as hypotheses and labels, got {sizes}")
        self.name, self.premises, self.hypotheses, self.labels = name, premises, hypotheses, labels
        self.dictionary, self.shuffle = dictionary, shuffle
        self.sizes = np.stack([np.asarray(premises.sizes), np.asarray(hypotheses.sizes)], axis=1) - 1
        empty = np.flatnonzero(self.sizes.min(axis=1) < 1)
        if len(empty):
            raise ValueError(f"subset {name}: pair {empty[0]} has a sentence without words ({len(empty)} such)")

    def __getitem__(self, index):
        return {
            "id": index,
            PREMISE: self.premises[index][:-1],
            HYPOTHESIS: self.hypotheses[index][:-1],
            "label": self.labels[index],
        }

    def __len__(self):
        return len(self.labels)

    def num_tokens(self, index):
        return int(self.sizes[index].max())

    def size(self, index):
        return tuple(int(size) for size in self.sizes[index])

    def ordered_indices(self):
        """By length, shorter first; equal lengths at random where the set is shuffled."""
        indices = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        for side in (1, 0):
            indices = indices[np.argsort(self.sizes[indices, side], kind="stable")]
        return indices

    def collater(self, samples):
        if not samples:
            return {}
        pad = self.dictionary.pad()
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "subset": self.name,
            "nsentences": len(samples),
            "ntokens": len(samples),  # labels: what the loss is divided by
            "net_input": {
                side: data_utils.collate_tokens([sample[side] for sample in samples], pad)
                for side in (PREMISE, HYPOTHESIS)
            },
            "target": torch.tensor([[sample["label"]] for sample in samples]),
        }

    @property
    def supports_prefetch(self):
        return False


def load_pairs(folder: str, split: str, dictionary, labels: Sequence[str], shuffle: bool) -> EntailmentDataset:
    """A subset that fairseq-preprocess wrote from `.premise` and `.hypothesis` files, with its `.label` file."""
    sides = []
    for side in (PREMISE, HYPOTHESIS):
        prefix = str(Path(folder) / f"{split}.{PREMISE}-{HYPOTHESIS}.{side}")
        sentences = data_utils.load_indexed_dataset(prefix, dictionary)
        if sentences is None:
            raise FileNotFoundError(
                f"{prefix}.idx: no such file; wanted what fairseq-preprocess writes with --source-lang {PREMISE} "
                f"--target-lang {HYPOTHESIS} --joined-dictionary"
            )
        sides.append(sentences)
    numbers = read_labels(str(Path(folder) / f"{split}.label"), labels)
    logger.info("%s: %d pairs", split, len(numbers))
    return EntailmentDataset(split, *sides, numbers, dictionary, shuffle)
