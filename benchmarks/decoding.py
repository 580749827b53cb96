"""Decoding time and decoder rows: the sparse generator on a sparse model against fairseq's own on its softmax twin.

    python benchmarks/decoding.py DATA --sparse SPARSE.pt --softmax SOFTMAX.pt [--metric bleu --beam 5 ...]

All decode the same batches in this process, in turn, round after round; loading and batching are not timed, seconds are
those of the best round, and ratios are medians over the rounds. Rows are counted where the decoders run. Prints
markdown tables. `benchmarks/decoding.sh` trains the two models first.
"""

import argparse
import logging
import os
import platform
import statistics
import time
import warnings

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_entmax  # noqa: F401  registers the names

STOCK = "fairseq's, softmax twin"
OBJECTIVES = {"log probability (`--unnormalized`)": True, "normalised (default)": False}


class RowCounter:
    """Counts the rows a decoder runs on, and its calls."""

    def __init__(self, decoder):
        self.rows = self.calls = 0
        forward = decoder.forward

        def counting(prev_output_tokens, *args, **kwargs):
            self.rows += prev_output_tokens.size(0)
            self.calls += 1
            return forward(prev_output_tokens, *args, **kwargs)

        decoder.forward = counting


class Contender:
    """A model under a task, ready to decode."""

    def __init__(self, name, task_name, checkpoint, options, generation):
        self.name, self.checkpoint, self.generation = name, checkpoint, ["--task", task_name, *generation]
        self.settings = {False: self.config(options), True: self.config(options, "--unnormalized")}
        self.task = tasks.setup_task(self.settings[False].task)
        models, _ = checkpoint_utils.load_model_ensemble([checkpoint], task=self.task)
        self.model = models[0].to(options.device)
        self.model.prepare_for_inference_(self.settings[False])
        self.counter = RowCounter(self.model.decoder)
        self.task.load_dataset(options.subset)
        self.batches = self._batches(options)

    def config(self, options, *more):
        """fairseq's settings, as fairseq-generate would get them."""
        argv = [options.data, "--path", self.checkpoint, "--beam", str(options.beam), *self.generation, *more]
        args = fairseq_options.parse_args_and_arch(fairseq_options.get_generation_parser(), argv)
        return convert_namespace_to_omegaconf(args)

    def _batches(self, options):
        """All batches of the test set, ordered by length as fairseq-generate does it."""
        dataset = self.task.dataset(options.subset)
        iterator = self.task.get_batch_iterator(
            dataset, max_sentences=options.batch_size, max_positions=self.model.max_positions(), num_workers=0
        )
        found, left = [], options.sentences or len(dataset)
        for batch in iterator.next_epoch_itr(shuffle=False):
            if left > 0:
                left -= batch["nsentences"]
                found.append(utils.move_to_cuda(batch) if options.device != "cpu" else batch)
        return found

    def decode(self, batches, options, unnormalized):
        """Seconds, and the best hypotheses by sentence id."""
        generator = self.task.build_generator([self.model], self.settings[unnormalized].generation)
        best = {}
        start = time.perf_counter()
        for batch in batches:
            for sentence, hypotheses in zip(batch["id"].tolist(), generator.generate([self.model], batch)):
                best[sentence] = hypotheses[0]
        if options.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start, best

    def texts(self, best, options):
        strings = {i: self.task.target_dictionary.string(h["tokens"], options.post_process) for i, h in best.items()}
        dataset = self.task.dataset(options.subset)
        references = {
            i: self.task.target_dictionary.string(dataset[i]["target"], options.post_process, escape_unk=True)
            for i in best
        }
        return strings, references


def quality(strings, references, metric):
    if metric == "bleu":
        import sacrebleu

        order = sorted(strings)
        bleu = sacrebleu.corpus_bleu([strings[i] for i in order], [[references[i] for i in order]], tokenize="none")
        return f"{bleu.score:.2f}"
    return f"{100 * sum(strings[i] == references[i] for i in strings) / len(strings):.2f} %"


def measure(contenders, options, unnormalized):
    """Prints a table; the last contender is what the others are compared with."""
    seconds = {c.name: [] for c in contenders}
    found = {}
    for c in contenders:  # warm up
        c.decode(c.batches[:2], options, unnormalized)
    for _ in range(options.rounds):
        for c in contenders:
            c.counter.rows = c.counter.calls = 0
            seconds[c.name].append(0.0)
            found[c.name] = {}
        for batches in zip(*(c.batches for c in contenders)):  # batch by batch, so that all meet the same noise
            for c, batch in zip(contenders, batches):
                taken, best = c.decode([batch], options, unnormalized)
                seconds[c.name][-1] += taken
                found[c.name].update(best)
    base = contenders[-1]
    print(f"| generator | seconds | time | rows a sentence | rows | decoder calls | {options.metric} | mean length | "
          "proved |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for c in contenders:
        best = found[c.name]
        ratio = statistics.median(a / b for a, b in zip(seconds[c.name], seconds[base.name]))
        length = sum(len(h["tokens"]) for h in best.values()) / len(best)
        proofs = [h["certificate"].certificate != "none" for h in best.values() if "certificate" in h]
        proved = f"{100 * sum(proofs) / len(proofs):.1f} %" if proofs else ""
        print(f"| {c.name} | {min(seconds[c.name]):.2f} | {ratio:.2f} | {c.counter.rows / len(best):.1f} | "
              f"{c.counter.rows / base.counter.rows:.2f} | {c.counter.calls} | "
              f"{quality(*c.texts(best, options), options.metric)} | {length:.1f} | {proved} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--sparse", required=True, help="checkpoint of the sparse model")
    parser.add_argument("--softmax", required=True, help="checkpoint of the softmax twin")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--metric", choices=("accuracy", "bleu"), default="accuracy")
    parser.add_argument("--post-process", help="as in fairseq-generate, for example subword_nmt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=0, help="stop after about so many (0: all)")
    parser.add_argument("--device", default="cpu")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options, generation = parser.parse_known_args()  # the rest goes to fairseq, for example --max-len-a 1.2
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}, {options.device}")
    sparse, ours = options.sparse, "translation_entmax"
    beam = Contender("sparse beam", ours, sparse, options, generation)
    exact = Contender(
        "greedy, then `--exact-search`", ours, sparse, options, ["--beam", "1", "--exact-search", *generation]
    )
    stock = Contender(STOCK, "translation", options.softmax, options, generation)
    for title, unnormalized in OBJECTIVES.items():
        print(
            f"\nBy {title}: beam {options.beam}, batches of {options.batch_size}; time and rows relative to the last\n"
        )
        measure([beam, exact, stock] if unnormalized else [beam, stock], options, unnormalized)


if __name__ == "__main__":
    main()
