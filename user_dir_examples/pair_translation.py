"""Differences in BLEU to a baseline on the same sentences, and how likely they are by chance (paired bootstrap).

    python pair_translation.py --data OUT/PAIR --out paired.json --system softmax=RUN --system 1.5-entmax=OTHER ...

Reads `hypotheses.test.txt` of each run; the first system is the baseline.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from prepare_translation import read_lines
from score_translation import RESAMPLES, check_count, metric, plain_text, sacrebleu_options


def compare(systems: List[Tuple[str, List[str]]], references: List[str], language: str) -> Dict[str, Any]:
    """By name of each system but the first: the difference of its BLEU to the first one's, and the p-value."""
    from sacrebleu.significance import PairedTest

    bleu = metric(**sacrebleu_options(language))
    _, found = PairedTest(systems, {"BLEU": bleu}, [references], test_type="bs", n_samples=RESAMPLES)()
    first, *others = zip(found["System"], found["BLEU"])
    differences = {name: result.score - first[1].score for name, result in others}
    # sacreBLEU counts what is larger than the difference, which nothing is where there is none.
    return {
        name: {"difference": differences[name], "p": result.p_value if differences[name] else 1.0}
        for name, result in others
    }


def named_run(text: str) -> Tuple[str, Path]:
    name, equals, run = text.partition("=")
    if not equals or not (Path(run) / "hypotheses.test.txt").is_file():
        raise argparse.ArgumentTypeError(f"wanted NAME=RUN, with hypotheses.test.txt in the folder, got {text!r}")
    return name, Path(run)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of prepare_translation.py")
    parser.add_argument("--system", type=named_run, action="append", required=True, metavar="NAME=RUN")
    parser.add_argument("--out", type=Path, required=True, help="file for the figures")
    args = parser.parse_args(arguments)
    try:
        facts = json.loads((args.data / "data.json").read_text(encoding="utf-8"))
        systems = []
        for name, run in args.system:
            hypotheses, references = plain_text(args.data, facts, read_lines(run / "hypotheses.test.txt"))
            check_count(hypotheses, references)
            systems.append((name, hypotheses))
        found = compare(systems, references, facts["pair"].split("-")[1])
    except (ValueError, OSError) as error:
        print(f"pair_translation: {error}", file=sys.stderr)
        return 1
    for name, figures in found.items():
        print(f"{name} against {systems[0][0]}: {figures['difference']:+.2f} BLEU, p = {figures['p']:.3f}")
    result = {"paired": found, "baseline": systems[0][0], "resamples": RESAMPLES}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
