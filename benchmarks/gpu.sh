#!/usr/bin/env bash
# Checks the Triton kernels on the GPU at hand, then times them against a copy of the same bytes, cross_entropy, and the
# entmax and adasplash packages where they are installed. Needs torch >= 2.4 and triton, nothing else; under 8 minutes.
#
#   benchmarks/gpu.sh              # both
#   benchmarks/gpu.sh --only check
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export FAIRSEQ_ENTMAX_BACKEND=triton
unset TRITON_INTERPRET
exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
