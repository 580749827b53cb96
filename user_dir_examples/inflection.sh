#!/usr/bin/env bash
# Morphological inflection of Peters, Niculae and Martins (2019): table 1, figure 1 and the exactness figures.
# See --help.
set -euo pipefail

usage() {
  cat <<'EOT'
usage: bash user_dir_examples/inflection.sh --data DATA [options]

SIGMORPHON 2018 shared task 1: one model for all languages, with a language token. Trains it for one pair of alphas, or
for all nine, decodes the test set (accuracy and edit distance, averaged over languages) and the development set (how
many sources have a single possible form, for how many the beam listed all), and writes one result file a model to
OUT/results. With several seeds, their ensemble too. Running it again continues where it stopped.

options:
  --data DATA           clone of https://github.com/sigmorphon/conll2018, or its folder task1/all
  --out OUT             where everything is written (default runs/inflection-SETTING)
  --setting S           medium (the default: 1,000 pairs a language) or high (10,000)
  --languages L...      names as in the files (default: all that have files of that setting)
  --alpha-output A      1 (softmax), 1.5 (the default) or 2 (sparsemax)
  --alpha-attention A   the same for the attention
  --all                 all nine pairs
  --seeds N...          default 1
  --small               a small model for a CPU (100 and 200 units), at most 40 epochs
  --quick               tiny model, two epochs, to see that everything works; the numbers mean nothing
  --force               begin again and replace the results, and those of ensembles with the same models
  -h, --help            this text

environment: DATA and OUT stand in for the options; PYTHON (interpreter for .venv)
EOT
}

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# --- settings -------------------------------------------------------------------------------------------------------

# The preset has the paper's sizes: 2 + 2 layers, 300 units (150 in each direction of the encoder), dropout 0.3.
model=(--arch lstm_entmax_inflection)

training=(
  # optimisation: Adam; the rate is halved when the development loss (minimised) no longer falls, and training ends when
  # it has become small
  --optimizer adam --lr 0.001 --clip-norm 5
  --lr-scheduler plateau --lr-shrink 0.5 --lr-patience 0 --stop-min-lr 0.00005
  --best-checkpoint-metric loss
  # size and length
  --batch-size 64 --max-epoch 50
  # housekeeping
  --no-epoch-checkpoints --log-format simple --log-interval 100 --num-workers 0
)

# As in the paper's code (deep-spin/OpenNMT-entmax): no longer to fall is to be above the epoch before, the gradient that
# is clipped is that of the loss of a sentence, and dropout is between layers and before the output only. (That code then
# chose the model of the best accuracy; fairseq has one measure for both.)
full=(
  --lr-against previous --lr-threshold 0 --sentence-avg
  --encoder-dropout-in 0 --decoder-dropout-in 0 --encoder-memory-dropout 0
)

small=(
  --encoder-embed-dim 64 --decoder-embed-dim 64 --encoder-hidden-size 100 --decoder-hidden-size 200 --dropout 0.2
  --lr 0.003 --stop-min-lr 0.0001 --batch-size 16 --max-epoch 40
  # To fall is to fall by a hundredth (with a tenth, models that learn slowly are stopped while they still learn). Few
  # words make the loss noisy, above all with sparse attention: without patience, one bad epoch halves the rate, and such
  # a model ends long before the others.
  --lr-patience 1 --lr-threshold 0.01
)

quick=(
  --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-hidden-size 16 --decoder-hidden-size 32
  --encoder-layers 1 --decoder-layers 1 --lr 0.01 --batch-size 16 --max-epoch 2
)

# Raw probability, as in the paper.
decoding=(--beam 5 --unnormalized --max-len-b 100 --batch-size 64 --num-workers 0 --scoring word_accuracy)
# Keeps prefixes that cannot beat the best form: where the beam has room, it lists every possible form.
listing=(--nbest 25)

data=${DATA:-} out=${OUT:-} setting=medium alpha_output='' alpha_attention='' all='' force=''
languages=() seeds=(1) size=("${full[@]}") size_name=''

parse_options() {
  while (($#)); do
    case $1 in
      --data | --out | --setting | --alpha-output | --alpha-attention) take_value "$@" && shift 2 ;;
      --languages) take_values "$@" && languages=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --seeds) take_values "$@" && seeds=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --all) all=1 && shift ;;
      --small) size=("${small[@]}") size_name=small && shift ;;
      --quick) size=("${quick[@]}") size_name=quick && shift ;;
      --force) force=1 && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  check_options
}

check_options() {
  [[ -n $data ]] || fail "--data: wanted a clone of https://github.com/sigmorphon/conll2018, got nothing"
  [[ -d $data ]] || fail "--data $data: no such folder"
  [[ $setting =~ ^(medium|high)$ ]] || fail "--setting: wanted medium or high, got $setting"
  [[ -z $all || -z $alpha_output$alpha_attention ]] || fail "--all: wanted no alpha with it, got one"
  alpha_output=${alpha_output:-1.5} alpha_attention=${alpha_attention:-1.5}
  [[ $alpha_output =~ ^(1|1\.5|2)$ ]] || fail "--alpha-output: wanted 1, 1.5 or 2, got $alpha_output"
  [[ $alpha_attention =~ ^(1|1\.5|2)$ ]] || fail "--alpha-attention: wanted 1, 1.5 or 2, got $alpha_attention"
  check_seeds --seeds "${seeds[@]}"
  out=${out:-$root/runs/inflection-$setting}
}

# --- steps ----------------------------------------------------------------------------------------------------------

prepare() {
  python "$root/user_dir_examples/prepare_sigmorphon.py" --data "$data" --setting "$setting" --out "$out/data" \
    --languages "${languages[@]+"${languages[@]}"}"
}

preprocess() {
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang src --target-lang tgt \
    --trainpref "$out/data/train" --validpref "$out/data/valid" --testpref "$out/data/test" --destdir "$out/data-bin"
}

mapping() {
  case $1 in
    1) echo softmax ;;
    1.5) echo entmax15 ;;
    2) echo sparsemax ;;
  esac
}

# fairseq continues from checkpoint_last.pt in the save folder by itself.
train() {
  local output=$1 attention=$2 seed=$3 run=$4
  local criterion=(--criterion entmax --entmax-alpha 1)
  [[ $output == 1 ]] || criterion=(--criterion "$(mapping "$output")")
  logged "$run/train.log" fairseq-train "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax \
    "${model[@]}" --attention-mapping "$(mapping "$attention")" "${criterion[@]}" \
    "${training[@]}" "${size[@]}" \
    --seed "$seed" --save-dir "$run/checkpoints" --log-file "$run/log.txt"
}

# No alpha here: it travels in the checkpoint.
generate() {
  local run=$1 part=$2 path=$3
  shift 3
  local begun=$SECONDS
  mkdir -p "$run/$part"
  logged "$run/$part/generate.log" fairseq-generate "$out/data-bin" "${device[@]}" --gen-subset "$part" \
    --user-dir "$user_dir" --task translation_entmax --path "$path" "${decoding[@]}" "$@" \
    --results-path "$run/$part" --certificate-file "$run/$part/certificates.jsonl" --log-format none || return 1
  printf '%d\n' $((SECONDS - begun)) >"$run/$part/seconds"
}

record() {
  local name=$1 output=$2 attention=$3 run=$4
  shift 4
  local command="bash user_dir_examples/inflection.sh --data DATA --out OUT --setting $setting"
  ((${#languages[@]} == 0)) || command+=" --languages ${languages[*]}"
  command+=" --alpha-output $output --alpha-attention $attention --seeds $*${size_name:+ --$size_name}"
  local seed="[$(IFS=,; echo "$*")]"
  (($# > 1)) || seed=$1
  python "$root/user_dir_examples/score_inflection.py" --data "$out/data" --run "$run" --out "$run/scores.json" ||
    return 1
  python "$root/user_dir_examples/results.py" "$out/results/$name.json" --recipe inflection --name "$name" \
    --setting "setting=$setting" --setting "size=${size_name:-full}" --setting "languages=$(language_list)" \
    --setting "alpha_output=$output" --setting "alpha_attention=$attention" --setting "model=${model[*]}" \
    --setting "training=${training[*]} ${size[*]}" --setting "decoding=${decoding[*]}" \
    --scores "$run/scores.json" \
    --seed "$seed" --command "$command" --seconds "$(seconds_of "$run")" ${force:+--force}
}

# As a JSON list, in the order of the data.
language_list() {
  printf '["%s"]' "$(cut -d' ' -f1 "$out/data/test.src" | uniq | tr -d '<>' | paste -sd' ' - | sed 's/ /", "/g')"
}

# Training (from fairseq's log, which counts through interruptions) and decoding together.
seconds_of() {
  python - "$1" <<'EOT'
import json, sys
scores = json.load(open(f"{sys.argv[1]}/scores.json", encoding="utf-8"))
print(sum(part.get("seconds", 0) for part in scores.values()))
EOT
}

# --- models ---------------------------------------------------------------------------------------------------------

# evaluate KEY NAME OUTPUT ATTENTION RUN PATH SEEDS...: decodes what is at PATH and writes the result file.
evaluate() {
  local key=$1 name=$2 output=$3 attention=$4 run=$5 path=$6
  shift 6
  step "$key-test" generate "$run" test "$path"
  # A dense output gives every string some probability: there is nothing to list.
  [[ $output == 1 ]] || step "$key-valid" generate "$run" valid "$path" "${listing[@]}"
  step "$key-result" record "$name" "$output" "$attention" "$run" "$@"
}

# forget PAIR PREFIX SEED: the model is trained anew, so its ensembles are of the old one.
forget() {
  local folder together
  rm -rf "$out/$1/seed$3" "$out"/."$1-seed$3"-*.{done,spent}
  for folder in "$out/$1"/ensemble*; do
    together=${folder##*/ensemble}
    [[ -$together- == *-$3-* ]] || continue
    rm -rf "$folder" "$out"/."$1-ensemble$together"-*.{done,spent} "$out/results/$2-$1-ensemble$together.json"
  done
}

run_model() {
  local output=$1 attention=$2
  local pair=output$output-attention$attention paths=() seed
  local prefix=$setting${size_name:+-$size_name}
  ((${#languages[@]} == 0)) || prefix+=-${#languages[@]}languages
  for seed in "${seeds[@]}"; do
    local run=$out/$pair/seed$seed
    [[ -z $force ]] || forget "$pair" "$prefix" "$seed"
    mkdir -p "$run"
    step "$pair-seed$seed-training" train "$output" "$attention" "$seed" "$run"
    evaluate "$pair-seed$seed" "$prefix-$pair-seed$seed" "$output" "$attention" "$run" \
      "$run/checkpoints/checkpoint_best.pt" "$seed"
    paths+=("$run/checkpoints/checkpoint_best.pt")
  done
  ((${#seeds[@]} > 1)) || return 0
  local together
  together=ensemble$(IFS=-; echo "${seeds[*]}")
  evaluate "$pair-$together" "$prefix-$pair-$together" "$output" "$attention" "$out/$pair/$together" \
    "$(IFS=:; echo "${paths[*]}")" "${seeds[@]}"
}

main() {
  parse_options "$@"
  set_up "$out"
  check_settings "$out" "another --out" "$setting, ${size_name:-full size}, ${languages[*]:-all languages}" \
    "${model[@]}" "${training[@]}" "${size[@]}" "${decoding[@]}"
  check_source data "$data"
  step data prepare
  step preprocessing preprocess
  local output attention outputs=("$alpha_output") attentions=("$alpha_attention")
  [[ -z $all ]] || outputs=(1 1.5 2) attentions=(1 1.5 2)
  for output in "${outputs[@]}"; do
    for attention in "${attentions[@]}"; do
      run_model "$output" "$attention"
    done
  done
  say "finished; results are in $out/results"
}

main "$@"
