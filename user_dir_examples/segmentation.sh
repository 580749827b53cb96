#!/usr/bin/env bash
# Morpheme segmentation with sparse models and label smoothing (Peters and Martins 2021, 2022). See --help.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash user_dir_examples/segmentation.sh --data DATA [options]

Word-level task of the SIGMORPHON 2022 shared task on morpheme segmentation: a word comes in, its morphemes go out.
Trains an LSTM and a transformer with the loss of 1.5-entmax, without and with label smoothing (four models), decodes
the test words with beam 5 and certificates, and scores morphemes as the shared task does (precision, recall and F1,
edit distance). One result file for each model in OUT/results; running it again continues where it stopped.
The systems of 2022 in English (mean of nine languages): LSTM on characters 92.29 (96.32) with softmax and 93.39 (97.15)
with 1.5-entmax, transformer on pieces 93.63 (97.29) with 1.5-entmax, which is --architectures transformer --units N
(they name 1,000 for Czech). Smoothing is of their paper of 2021.

options:
  --data DATA            clone of https://github.com/sigmorphon/2022SegmentationST (or its folder data)
  --out OUT              where everything is written (default runs/segmentation, with --quick runs/segmentation-quick)
  --language L           as in the files (default eng)
  --architectures A...   lstm, transformer or both (the default)
  --smoothing E...       label smoothing, in [0, 1) (default 0 0.1)
  --units U              characters (the default), or the number of sentencepiece pieces, on both sides
  --source-units U, --target-units U
                         the same for one side
  --softmax              the dense twins: softmax output and cross entropy
  --limit N              use the first N training words only
  --quick                tiny models, two epochs, to see that everything works; the numbers mean nothing
  --force                replace results that are there
  -h, --help             this text

environment: DATA and OUT stand in for the options; PYTHON (interpreter for .venv)
EOF
}

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# --- settings -------------------------------------------------------------------------------------------------------

seed=1
criterion=(--criterion entmax15) criterion_name=entmax15

# Softmax in attention, as in the systems of 2022. Their settings are public (bpopeters/2022-shared-tasks); where they
# searched a grid (LSTM: 512 or 1,024 units, 1 or 2 layers, three rates; transformer: two sizes, two warm-ups), this is one
# point of it. Batches were given by hand there; the sizes here are ours.
lstm=(
  --arch lstm_entmax --attention-mapping softmax --dropout 0.3 --share-decoder-input-output-embed
  --encoder-embed-dim 512 --decoder-embed-dim 512 --decoder-out-embed-dim 512
  --encoder-hidden-size 512 --decoder-hidden-size 512 --encoder-layers 2 --decoder-layers 2
  --optimizer adam --lr 0.001 --lr-scheduler plateau --lr-shrink 0.1 --lr-patience 2
  --batch-size 256 --max-update 150000
)
transformer=(
  --arch transformer_entmax --attention-mapping softmax --share-decoder-input-output-embed
  --dropout 0.1 --attention-dropout 0.3 --activation-dropout 0.3
  --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024
  --encoder-layers 6 --decoder-layers 6 --encoder-attention-heads 8 --decoder-attention-heads 8
  --encoder-normalize-before --decoder-normalize-before
  --optimizer adam --lr 0.001 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
  --max-tokens 4096 --max-update 400000
)

# The development words are decoded after each epoch: their edit distance chooses the model and ends the training.
training=(
  --clip-norm 1 --patience 5 --eval-accuracy --best-checkpoint-metric edit_distance
  --eval-bleu-args '{"beam":5,"unnormalized":true,"max_len_b":200}'
  # housekeeping
  --seed "$seed" --no-epoch-checkpoints --log-format simple --log-interval 100 --num-workers 0
)

# Raw probability, for the certificates; theirs was divided by the length.
decoding=(--beam 5 --unnormalized --max-len-b 200 --batch-size 128 --num-workers 0 --scoring word_accuracy)

data=${DATA:-} out=${OUT:-} language=eng source_units=characters target_units=characters limit='' quick='' force=''
architectures=(lstm transformer) smoothing=(0 0.1)

parse_options() {
  while (($#)); do
    case $1 in
      --data | --out | --language | --source-units | --target-units | --limit) take_value "$@" && shift 2 ;;
      --units) take_value "$@" && check_units "$1" "$2" && source_units=$2 target_units=$2 && shift 2 ;;
      --architectures) take_values "$@" && architectures=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --smoothing) take_values "$@" && smoothing=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --softmax) criterion=(--criterion entmax --entmax-alpha 1) criterion_name=softmax && shift ;;
      --quick) quick=1 && shift ;;
      --force) force=--force && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  check_options
  out=${out:-$root/runs/segmentation${quick:+-quick}}
  units_name=$source_units-$target_units
  base=$out/$language-$units_name
  # The edit distance of pieces is that of their text, and of characters that of the symbols.
  [[ $target_units == characters ]] || training+=(--eval-bleu-remove-bpe sentencepiece)
  [[ -z $quick ]] || shrink
}

check_options() {
  local name value
  [[ -n $data ]] || fail "--data: wanted a clone of https://github.com/sigmorphon/2022SegmentationST, got nothing"
  [[ -d $data ]] || fail "--data $data: no such folder"
  for name in "${architectures[@]}"; do
    [[ $name =~ ^(lstm|transformer)$ ]] || fail "--architectures: wanted lstm or transformer, got $name"
  done
  for value in "${smoothing[@]}"; do
    [[ $value =~ ^0(\.[0-9]+)?$ ]] || fail "--smoothing: wanted a number in [0, 1), got $value"
  done
  check_units --source-units "$source_units"
  check_units --target-units "$target_units"
  check_count --limit 1 ${limit:+"$limit"}
}

check_units() {
  [[ $2 =~ ^(characters|[1-9][0-9]*)$ ]] || fail "$1: wanted characters or a number of pieces, got $2"
}

shrink() {
  local sizes=(--encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-layers 1 --decoder-layers 1 --lr 0.01)
  lstm+=("${sizes[@]}" --decoder-out-embed-dim 16 --encoder-hidden-size 8 --decoder-hidden-size 16 --batch-size 16)
  transformer+=("${sizes[@]}" --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --warmup-updates 2)
  transformer+=(--encoder-attention-heads 2 --decoder-attention-heads 2 --max-tokens 300)
  training+=(--max-epoch 2 --eval-bleu-args '{"beam":5,"unnormalized":true,"max_len_b":20}')
  decoding+=(--max-len-b 20)
}

# --- steps ----------------------------------------------------------------------------------------------------------

prepare() {
  python "$root/user_dir_examples/prepare_segmentation.py" --data "$data" --language "$language" --out "$out/data" \
    --source-units "$source_units" --target-units "$target_units" ${limit:+--limit "$limit"}
}

preprocess() {
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang src --target-lang tgt --destdir "$out/data-bin" \
    --trainpref "$out/data/train" --validpref "$out/data/valid" --testpref "$out/data/test"
}

# fairseq continues from checkpoint_last.pt in the save folder by itself.
train() {
  local model="$1[@]"
  logged "$run/train.out" fairseq-train "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax "${!model}" "${criterion[@]}" --label-smoothing "$2" \
    "${training[@]}" --save-dir "$run/checkpoints" --log-file "$run/train.log"
}

# No alpha here: it travels in the checkpoint.
decode() {
  logged "$run/generate.log" fairseq-generate "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax --path "$run/checkpoints/checkpoint_best.pt" \
    "${decoding[@]}" --results-path "$run" --certificate-file "$run/certificates.jsonl" --log-format simple \
    --log-interval 20
}

record() {
  local title=$language-$units_name-$1-$criterion_name-smoothing$2${quick:+-quick}
  local repeat="bash user_dir_examples/segmentation.sh --data DATA --out OUT --language $language"
  repeat+=" --architectures $1 --smoothing $2 --source-units $source_units --target-units $target_units"
  [[ $criterion_name != softmax ]] || repeat+=" --softmax"
  repeat+=${limit:+ --limit $limit}${quick:+ --quick}
  local described="$1[*]"
  python "$root/user_dir_examples/results.py" "$results/$title.json" --recipe segmentation --name "$title" \
    --scores "$run/scores.json" --setting language="\"$language\"" --setting architecture="$1" \
    --setting smoothing="$2" --setting criterion="$criterion_name" \
    --setting units="\"$source_units to $target_units\"" \
    --setting limit="${limit:-null}" --setting model="${!described}" --setting training="${training[*]}" \
    --setting decoding="${decoding[*]}" --seed "$seed" \
    --seconds "$(spent "$key-")" \
    --command "$repeat" $force
}

run_model() {
  local key=$1-$criterion_name-smoothing$2
  run=$out/$key
  mkdir -p "$run"
  step "$key-training" train "$1" "$2"
  step "$key-test" decode
  say "$key:"
  python "$root/user_dir_examples/evaluate_segmentation.py" --data "$out/data" --run "$run" \
    --target-units "$target_units"
  [[ -z $force ]] || rm -f "$out/.$key-result.done"
  step "$key-result" record "$1" "$2"
}

main() {
  parse_options "$@"
  results=$out/results out=$base
  set_up "$out"
  check_settings "$out" "another --out" "limit ${limit:-none}" "${lstm[@]}" "${transformer[@]}" "${training[@]}"
  check_source data "$data"
  step data prepare
  step preprocessing preprocess
  local architecture value
  for architecture in "${architectures[@]}"; do
    for value in "${smoothing[@]}"; do run_model "$architecture" "$value"; done
  done
  say "finished; results are in $results"
}

main "$@"
