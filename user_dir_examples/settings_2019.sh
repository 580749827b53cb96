# Settings that the three translation experiments of Peters, Niculae and Martins (2019) share.

# 500 units: 250 in each direction of the encoder.
model=(
  --arch lstm_entmax_translation
  --encoder-embed-dim 500 --decoder-embed-dim 500
  --encoder-hidden-size 250 --decoder-hidden-size 500
  --encoder-layers 2 --decoder-layers 2 --dropout 0.3
  # OpenNMT-py drops between layers and before the output only
  --encoder-dropout-in 0 --decoder-dropout-in 0 --encoder-memory-dropout 0
)

training=(
  # optimisation: Adam; the rate is halved when the validation loss is above that of the epoch before, as in the paper's
  # code (deep-spin/OpenNMT-entmax). fairseq looks at it at the end of an epoch; the validations in between choose the
  # best checkpoint (by loss, where that code took the best accuracy). The gradient that is clipped is that of the loss
  # of a sentence
  --sentence-avg --optimizer adam --lr 0.001 --clip-norm 5
  --lr-scheduler plateau --lr-against previous --lr-threshold 0 --lr-shrink 0.5 --lr-patience 0
  --best-checkpoint-metric loss
  # size and length
  --batch-size 64
  # housekeeping
  --no-epoch-checkpoints --keep-interval-updates 1 --log-interval 100 --num-workers 2
)

decoding=(
  # raw probability, as in the paper
  --beam 5 --unnormalized --max-len-b 100
  --batch-size 64 --num-workers 0 --post-process sentencepiece
)

metrics=(--tokenised)

sweep_alphas=(1 1.25 1.5 1.75 2)
