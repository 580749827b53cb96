#!/usr/bin/env bash
# Translation with structured attention (Niculae and Blondel 2017): softmax against fusedmax, oscarmax and others.
# See --help.
set -euo pipefail

readonly recipe=structured-attention corpus=multi30k
readonly pairs=(de-en en-de fr-en en-fr)

segmentation=(--pieces 8000)
# No length normalisation, as in OpenNMT at the time.
decoding=(--beam 5 --unnormalized --max-len-a 1.5 --max-len-b 10 --batch-size 32 --num-workers 0)
drawn=(0 1 2 3) # sentences of the test set: the same for all mappings
metrics=() sweep_alphas=() sweep_training=()

source "$(dirname "${BASH_SOURCE[0]}")/translation.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings_2017.sh"

usage() {
  cat <<EOF
usage: bash user_dir_examples/structured_attention.sh --data DIR [options]

Trains the model of the 2017 paper (unidirectional LSTM encoder, 500 units and word vectors, input feeding, 13 epochs of
gradient descent, the epoch with the best validation accuracy) once for each attention mapping, on image captions
(Multi30k, task 1, 29,000 pairs) in pieces of a joint sentencepiece BPE; decodes the test set of 2016 with beam 5;
prints sacreBLEU, the time of training against softmax, and how attention is spread; draws attention of some sentences
(python -m fairseq_entmax report). One result file for each mapping; running it again continues where it stopped.
The paper: structured attention costs up to 1.75 times the training time of softmax (on a GPU), at scores within about
one BLEU of it.

options (DATA and OUT in the environment do as well):
  --data DIR       folder with the raw files of Multi30k, plain or .gz: train, val and test_2016_flickr, from
                   https://github.com/multi30k/dataset (data/task1/raw)
  --out DIR        where everything is written (default runs/$recipe); results as OUT/results/$recipe/NAME.json
  --pair X-Y       source and target: ${pairs[*]} (default ${pairs[0]})
  --mappings M...  default: ${mappings[*]}; also entmax15
  --epochs N       stop after N epochs
  --seed N         (default 1)
  --force          begin again and replace the results, if there are any
  --unchecked      take raw files of other sizes or hashes
  --strength S     of the fusion in fusedmax and oscarmax (default 0.1 and 0.01)
  --small          a model for a CPU: 128 units and word vectors, 1 layer on either side, 4,000 pieces; 15 epochs of
                   Adam at 0.002, halved from the 12th on
  --quick          tiny model, few sentences, to see that everything works; the numbers mean nothing
  -h, --help       this text

environment: PYTHON (interpreter for .venv)
EOF
}

shrink() {
  if [[ $size == -small ]]; then
    segmentation+=(--pieces 4000)
    model+=(--encoder-embed-dim 128 --encoder-hidden-size 128 --decoder-embed-dim 128 --decoder-hidden-size 128)
    model+=(--encoder-layers 1 --decoder-layers 1)
    # Not gradient descent, which is slow to begin: after the first epoch (de-en, softmax) it has 23.7 % of the
    # validation tokens right, Adam 29.5 %. A softmax output learns slowly on so few captions, so that the rate falls
    # later than the paper's.
    training+=(--optimizer adam --lr 0.002 --max-epoch 15 --force-anneal 12)
  else
    segmentation+=(--pieces 200 --limit 200)
    shrink_model
  fi
}

# Takes --mappings, --strength and --small out of the options; the others are those of translation.sh.
split_options() {
  others=() strength=''
  while (($#)); do
    case $1 in
      --mappings) take_values "$@" && mappings=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --strength) take_value "$@" && shift 2 ;;
      --small) size=-small && shift ;;
      --alpha | --attention-alpha | --output-alpha | --sweep | --speed) fail "unknown option $1 (see --help)" ;;
      *) others+=("$1") && shift ;;
    esac
  done
  check_choice --mappings "${attention_mappings[*]}" "${mappings[@]}"
  [[ -z $strength || $strength =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
    fail "--strength: wanted a number of 0 or more, got $strength"
}

# --- steps ----------------------------------------------------------------------------------------------------------

draw_attention() {
  python -m fairseq_entmax report "$out/certificates-test.jsonl" --out "$out/report" --sentences "${drawn[@]}"
}

score_all() {
  score && python "$here/score_attention.py" --certificates "$out/certificates-test.jsonl" --scores "$out/scores.json"
}

# choose MAPPING: sets `title`, `out` and `fusion`, the strength of its fusion, where it has one.
choose() {
  fusion=''
  case $1 in
    fusedmax) fusion=${strength:-0.1} ;;
    oscarmax) fusion=${strength:-0.01} ;;
  esac
  title=$pair$size-$1${fusion:+${strength:+-strength-$strength}}-seed-$seed
  out=$base/$pair/$title
}

record_mapping() {
  python "$here/results.py" "$base/results/$recipe/$title.json" --recipe "$recipe" --name "$title" $force \
    --scores "$out/scores.json" --seed "$seed" --seconds "$(seconds_of_run)" \
    --setting pair="$pair" --setting mapping="$1" --setting strength="${fusion:-null}" --setting size="${size#-}" \
    --setting model="${model[*]}" --setting training="${training[*]}${extra[*]+ ${extra[*]}}" \
    --setting segmentation="${segmentation[*]}" --setting decoding="${decoding[*]}" \
    --command "bash user_dir_examples/structured_attention.sh --data DATA --out OUT --pair $pair --mappings $1 --seed \
$seed${strength:+ --strength $strength}${epochs:+ --epochs $epochs}${size:+ -$size}"
}

run_mapping() {
  local title fusion
  choose "$1"
  sparsity=(--attention-mapping "$1" ${fusion:+--attention-strength "$fusion"} "${criterion[@]}")
  extra=(${epochs:+--max-epoch "$epochs"})
  [[ -z $force ]] || rm -rf "$out"
  check_settings "$out" "another --out, or --force" "${model[@]}" "${sparsity[@]}" "${training[@]}" \
    "${extra[@]+"${extra[@]}"}" "${decoding[@]}"
  say "$title"
  step training train
  step decoding decode test --post-process sentencepiece
  step scores score_all
  if python -c 'import jinja2, matplotlib' 2>/dev/null; then
    step pictures draw_attention
  else
    say "no pictures: they need pip install 'fairseq-entmax[report]'"
  fi
  step result record_mapping "$1"
}

# Scores and training steps of all mappings trained so far, softmax first; without it there is nothing to compare with.
compare_mappings() {
  local title fusion out mapping models=() systems=() found=()
  local kind=$pair$size${strength:+-strength-$strength}
  local timed=$base/$pair/.$kind-speed-seed-$seed.models
  for mapping in "${attention_mappings[@]}"; do
    choose "$mapping"
    [[ -e $out/checkpoints/checkpoint_best.pt && -s $out/hypotheses.test.txt ]] || continue
    found+=("$mapping")
    models+=(--model "$mapping${fusion:+ $fusion}=$out/checkpoints/checkpoint_best.pt")
    systems+=(--system "$mapping${fusion:+ $fusion}=$out")
  done
  [[ ${models[1]-} == softmax=* ]] && ((${#models[@]} > 2)) || return 0
  local command="bash user_dir_examples/structured_attention.sh --data DATA --out OUT --pair $pair"
  command+=" --mappings ${found[*]} --seed $seed${strength:+ --strength $strength}${size:+ -$size}"
  pair_scores "$kind-paired-seed-$seed" "$command" "${systems[@]}"
  if [[ -e $timed && $(<"$timed") == "${models[*]}" ]]; then
    say "times: done before"
    return
  fi
  say "times ..."
  force=--force time_models "$kind-speed-seed-$seed" "$command" "${models[@]}"
}

main() {
  split_options "$@"
  parse_options "${others[@]+"${others[@]}"}"
  make_data
  local mapping
  for mapping in "${mappings[@]}"; do run_mapping "$mapping"; done
  compare_mappings
  python "$here/tables_2017.py" --results "$base/results"
  say "finished; everything is in $base"
}

main "$@"
