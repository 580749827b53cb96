# The model and training of Niculae and Blondel (2017), which are those of OpenNMT at the time. Sourced by recipes.

model=(
  --arch lstm_entmax_translation
  --encoder-bidirectional false
  --encoder-embed-dim 500 --decoder-embed-dim 500
  --encoder-hidden-size 500 --decoder-hidden-size 500
  --encoder-layers 2 --decoder-layers 2 --dropout 0.3
  # OpenNMT-py drops between layers and before the output only
  --encoder-dropout-in 0 --decoder-dropout-in 0 --encoder-memory-dropout 0
)

# Cross entropy, in nats.
criterion=(--criterion entmax --entmax-alpha 1)

training=(
  # optimisation: plain gradient descent on the loss of a sentence, rate 1, halved in every epoch from the ninth on.
  # (OpenNMT also began to halve it when the validation perplexity rose before: not so here.)
  --sentence-avg --optimizer sgd --lr 1 --clip-norm 5 --lr-scheduler fixed --force-anneal 9 --lr-shrink 0.5
  --best-checkpoint-metric token_accuracy --maximize-best-checkpoint-metric
  # size and length
  --batch-size 64 --max-epoch 13
  # housekeeping
  --no-epoch-checkpoints --log-format simple --log-interval 50 --num-workers 0
)

mappings=(softmax sparsemax fusedmax oscarmax pnormmax)

shrink_model() {
  model+=(--encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16 --decoder-hidden-size 16)
  model+=(--encoder-layers 1 --decoder-layers 1 --dropout 0)
  training+=(--max-epoch 2 --log-interval 5)
}
