#!/usr/bin/env bash
# Times decoding: the sparse generator on a sparse model against fairseq's own on its softmax twin, side by side.
#
#   benchmarks/decoding.sh                          # trains the quickstart model and its twin (runs/quickstart*), then times
#   benchmarks/decoding.sh --wheel FILE             # the same with a wheel of mlconjug3 4.0.1 at hand
#   benchmarks/decoding.sh DATA --sparse A.pt --softmax B.pt [--metric bleu --post-process subword_nmt --max-len-b 100]
#
# For the quickstart model also what proofs cost, by options of decoding (certificates.py). One thread unless
# OMP_NUM_THREADS says otherwise. About 20 minutes of training on a CPU, then five of measuring.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

if [[ $# -eq 0 || $1 == --wheel || $1 == --tables ]]; then
  bash user_dir_examples/quickstart.sh "$@"
  bash user_dir_examples/quickstart.sh --softmax "$@"
  [[ -n ${VIRTUAL_ENV:-} ]] || export PATH=$PWD/.venv/bin:$PATH
  python benchmarks/certificates.py runs/quickstart/data-bin --path runs/quickstart/checkpoints/checkpoint_best.pt
  set -- runs/quickstart/data-bin --sparse runs/quickstart/checkpoints/checkpoint_best.pt \
    --softmax runs/quickstart-softmax/checkpoints/checkpoint_best.pt
fi
exec python benchmarks/decoding.py "$@"
