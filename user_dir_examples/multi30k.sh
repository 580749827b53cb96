#!/usr/bin/env bash
# Multi30k at a size for a CPU: the settings of the 2019 paper's translation experiments, smaller. See --help.
set -euo pipefail

readonly recipe=multi30k corpus=multi30k
readonly pairs=(de-en en-de fr-en en-fr)

about() {
  cat <<EOF
usage: bash user_dir_examples/multi30k.sh --data DIR [options]

Translates image captions (Multi30k, task 1, 29,000 pairs) with LSTMs of 256 units and a joint sentencepiece BPE of
8,000 pieces, softmax, 1.5-entmax and sparsemax in attention and output; decodes the test set of 2016 with beam 5 and
certificates; scores it by sacreBLEU on detokenised text. Not an experiment of the paper: its small stand-in.

Raw files: train, val and test_2016_flickr in both languages, from https://github.com/multi30k/dataset
(data/task1/raw), where the licence stands, too. Sizes and SHA-256 of their text are checked.
EOF
}

segmentation=(--pieces 8000)

# 256 units: 128 in each direction of the encoder.
model=(
  --arch lstm_entmax_translation
  --encoder-embed-dim 256 --decoder-embed-dim 256
  --encoder-hidden-size 128 --decoder-hidden-size 256
  --encoder-layers 2 --decoder-layers 2 --dropout 0.3
)

training=(
  # optimisation: Adam; the rate is halved whenever the validation loss (minimised) does not fall, and training
  # ends when it has become small
  --optimizer adam --lr 0.002 --clip-norm 5
  --lr-scheduler plateau --lr-shrink 0.5 --lr-patience 0 --stop-min-lr 0.0001
  --best-checkpoint-metric loss
  # size and length
  --batch-size 64 --max-epoch 40
  # housekeeping
  --no-epoch-checkpoints --log-interval 50 --num-workers 0
)

decoding=(
  # raw probability, as in the paper
  --beam 5 --unnormalized --max-len-a 1.5 --max-len-b 10
  --batch-size 32 --num-workers 0 --post-process sentencepiece
)

metrics=()

sweep_alphas=(1 1.25 1.5 1.75 2)
sweep_training=(--max-epoch 3)

source "$(dirname "${BASH_SOURCE[0]}")/translation.sh"
main "$@"
