#!/usr/bin/env bash
# Trains a sparse LSTM on verb forms of six languages, decodes unseen verbs with certificates, and prints the results.
# See --help.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash user_dir_examples/quickstart.sh [options]

Makes .venv when no virtual environment is active, installs the package, gets the verb tables of six languages from the
PyPI package mlconjug3 4.0.1 (MIT), writes 1,000 training pairs a language (and development and test pairs of other
verbs), trains lstm_entmax_inflection with the entmax15 criterion and entmax15 attention, decodes the test pairs with
beam 5 and certificates, and prints accuracy, edit distance and certificate shares. Running it again continues where it
stopped and reuses what is finished.

options:
  --out DIR      where everything is written (default runs/quickstart, with --quick runs/quickstart-quick)
  --wheel FILE   wheel of mlconjug3 4.0.1, instead of getting it with pip
  --tables DIR   folder with the JSON verb tables, instead of a wheel
  --softmax      the dense twin: softmax in output and attention, same seed and settings (default runs/quickstart-softmax)
  --quick        tiny data and model, to see that everything works; the numbers mean nothing
  -h, --help     this text

environment: PYTHON (interpreter for .venv)
EOF
}

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# --- settings -------------------------------------------------------------------------------------------------------

languages=(en es fr it pt ro)
pairs=(--train 1000 --valid 100 --test 200)

criterion=(--criterion entmax15)

# Small enough to learn six languages in minutes on a CPU.
model=(
  --arch lstm_entmax_inflection
  --attention-mapping entmax15
  --encoder-embed-dim 64 --decoder-embed-dim 64
  --encoder-hidden-size 100 --decoder-hidden-size 200
  --dropout 0.1
)

training=(
  # optimisation: Adam; the rate is halved when the validation loss (minimised) stops falling by a tenth
  --optimizer adam --lr 0.003 --clip-norm 5
  --lr-scheduler plateau --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0.1
  --best-checkpoint-metric loss
  # size and length
  --batch-size 16 --max-epoch 9
  # housekeeping
  --seed 1 --no-epoch-checkpoints --log-format simple --log-interval 100 --num-workers 0
)

decoding=(
  # raw probability, as in the paper
  --beam 5 --unnormalized
  --batch-size 64 --num-workers 0
  --scoring word_accuracy
)

out='' wheel='' tables='' quick='' suffix=''

parse_options() {
  while (($#)); do
    case $1 in
      --out | --wheel | --tables) take_value "$@" && shift 2 ;;
      --quick) quick=1 suffix+=-quick && shift ;;
      --softmax) use_softmax && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  out=${out:-$root/runs/quickstart$suffix}
  [[ -z $wheel || -z $tables ]] || fail "--wheel, --tables: wanted one of them, got both"
  [[ -z $wheel || -f $wheel ]] || fail "--wheel $wheel: no such file"
  [[ -z $tables || -d $tables ]] || fail "--tables $tables: no such folder"
  [[ -z $quick ]] || shrink
}

use_softmax() {
  suffix+=-softmax
  criterion=(--criterion entmax --entmax-alpha 1)
  model+=(--attention-mapping softmax)
}

shrink() {
  languages=(en fr)
  pairs=(--train 60 --valid 10 --test 10)
  model+=(--encoder-embed-dim 32 --encoder-hidden-size 16 --decoder-embed-dim 32 --decoder-hidden-size 32)
  model+=(--encoder-layers 1 --decoder-layers 1)
  training+=(--max-epoch 2 --lr 0.01)
}

# --- steps ----------------------------------------------------------------------------------------------------------

get_tables() {
  [[ -n $wheel$tables ]] || download_wheel mlconjug3 4.0.1
}

prepare() {
  local from=(--wheel "${wheel:-$out/wheel/mlconjug3-4.0.1-py3-none-any.whl}")
  [[ -z $tables ]] || from=(--tables "$tables")
  python "$root/user_dir_examples/prepare_inflection.py" "${from[@]}" --out "$out/data" \
    --languages "${languages[@]}" "${pairs[@]}"
}

preprocess() {
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang src --target-lang tgt \
    --trainpref "$out/data/train" --validpref "$out/data/valid" --testpref "$out/data/test" --destdir "$out/data-bin"
}

# fairseq continues from checkpoint_last.pt in the save folder by itself.
train() {
  logged "$out/train.log" fairseq-train "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax \
    "${model[@]}" "${criterion[@]}" "${training[@]}" --save-dir "$out/checkpoints"
}

# No alpha here: it travels in the checkpoint.
generate() {
  logged "$out/generate.log" fairseq-generate "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax --path "$out/checkpoints/checkpoint_best.pt" \
    "${decoding[@]}" --results-path "$out" --certificate-file "$out/certificates.jsonl" \
    --log-format simple --log-interval 5 &&
    tail -n 1 "$out/generate-test.txt"
}

main() {
  parse_options "$@"
  set_up "$out"
  check_settings "$out" "another --out" "${languages[@]}" "${pairs[@]}" "${model[@]}" "${criterion[@]}" "${training[@]}"
  [[ -z $tables ]] || check_source data "$tables"
  step tables get_tables
  step data prepare
  step preprocessing preprocess
  step training train
  step decoding generate
  python "$root/user_dir_examples/evaluate_inflection.py" --out "$out"
  say "finished; everything is in $out"
}

main "$@"
