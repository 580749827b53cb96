"""What proofs cost: shares of certificates, covered mass and decoder rows of one model, by options of decoding.

    python benchmarks/certificates.py DATA --path MODEL.pt [--subset test]

Decodes the subset with `fairseq-generate` once for each list of options and prints a markdown table of what the
certificate files say. `benchmarks/decoding.sh` runs it on the model of the quickstart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SHORT = "--max-len-a 1.2 --max-len-b 5"
OPTIONS = [
    "--beam 5 --unnormalized",
    "--beam 1 --unnormalized",
    "--beam 1 --unnormalized --exact-search",
    "--beam 5",
    f"--beam 5 {SHORT}",
    f"--beam 5 {SHORT} --exact-search",
    "--beam 5 --unnormalized --enumerate-mass 0.99",
]
KINDS = ("complete", "optimal", "none")


def decode(args, options, file):
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.generate",
        args.data,
        "--path",
        args.path,
        "--gen-subset",
        args.subset,
    ]
    command += [
        "--task",
        "translation_entmax",
        "--user-dir",
        str(Path(__file__).resolve().parent.parent / "fairseq_entmax"),
    ]
    command += ["--batch-size", "64", "--num-workers", "0", "--certificate-file", str(file), *options.split()]
    command += [] if args.gpu else ["--cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{options}: fairseq-generate failed:\n{done.stderr[-2000:]}")
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def row(options, records):
    def mean(values):
        return sum(values) / len(records)

    shares = [100 * mean(record["certificate"] == kind for record in records) for kind in KINDS]
    figures = [f"{share:.1f} %" if share else "" for share in shares]
    figures += [f"{mean(record['mass'] for record in records):.3f}"]
    figures += [f"{mean(record['decoder_rows'] for record in records):.1f}"]
    return f"| `{options}` | " + " | ".join(figures) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="binary data")
    parser.add_argument("--path", required=True, help="checkpoint of a sparse model")
    parser.add_argument("--subset", default="test")
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    print(f"\n| options | {' | '.join(KINDS)} | mean covered mass | decoder rows a sentence |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for i, options in enumerate(OPTIONS):
            print(row(options, decode(args, options, Path(folder) / f"{i}.jsonl")), flush=True)


if __name__ == "__main__":
    main()
