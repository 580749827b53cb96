#!/usr/bin/env bash
# Sentence summarisation with sparse and structured attention (Niculae and Blondel 2017). See --help.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash user_dir_examples/summarisation.sh --data DATA [options]

Trains the model of the 2017 paper (LSTM, 500 units, input feeding, 13 epochs) on pairs of a sentence and its headline,
once for each attention mapping; summarises the test sets; prints ROUGE-1, -2 and -L (recall, precision and F1, over all
references, whole and cut at 75 bytes) and writes a result file for each mapping to OUT/results. Running it again
continues where it stopped. The paper gives F1 on Gigaword and recall at 75 bytes on DUC 2004.

options:
  --data DATA       folder with train/train.article.txt, train/train.title.txt, train/valid.article.filter.txt,
                    train/valid.title.filter.txt, and Giga, DUC2003 or DUC2004, each with input.txt and task1_ref0.txt,
                    task1_ref1.txt, ... (plain or .gz). Gigaword is licensed by the Linguistic Data Consortium
                    (LDC2003T05, LDC2012T21), the DUC sets by NIST: https://duc.nist.gov
  --out OUT         where everything is written (default runs/summarisation, with --quick runs/summarisation-quick)
  --mappings M...   default: softmax sparsemax fusedmax oscarmax pnormmax; also entmax15
  --output-alpha A  alpha of the output: 1 is softmax (the default, as in the paper), 1.5, or 2
  --words N         size of each vocabulary (default 30000)
  --limit N         use the first N training pairs only
  --quick           tiny model, two epochs, to see that everything works; the numbers mean nothing
  --force           replace results that are there
  -h, --help        this text

environment: DATA and OUT stand in for the options; PYTHON (interpreter for .venv)
EOF
}

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/settings_2017.sh"

# --- settings -------------------------------------------------------------------------------------------------------

seed=1
# No length normalisation, as in OpenNMT at the time.
decoding=(--beam 5 --unnormalized --max-len-a 0 --max-len-b 30 --batch-size 64 --num-workers 0 --scoring word_accuracy)

data=${DATA:-} out=${OUT:-} words=30000 limit='' quick='' force='' output_alpha=1

parse_options() {
  while (($#)); do
    case $1 in
      --data | --out | --words | --limit | --output-alpha) take_value "$@" && shift 2 ;;
      --mappings) take_values "$@" && mappings=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --quick) quick=1 && shift ;;
      --force) force=--force && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  [[ -n $data ]] || fail "--data: wanted the folder of the summarisation sets, got nothing"
  [[ -d $data ]] || fail "--data $data: no such folder"
  [[ $output_alpha =~ ^(1|1\.5|2)$ ]] || fail "--output-alpha: wanted 1, 1.5 or 2, got $output_alpha"
  check_choice --mappings "${attention_mappings[*]}" "${mappings[@]}"
  check_count --words 1 "$words"
  check_count --limit 1 ${limit:+"$limit"}
  criterion+=(--entmax-alpha "$output_alpha")
  out=${out:-$root/runs/summarisation${quick:+-quick}}
  [[ -z $quick ]] || shrink_model
}

# --- steps ----------------------------------------------------------------------------------------------------------

get_rouge() {
  python -c 'import rouge_score' 2>/dev/null || python -m pip install --quiet 'rouge-score>=0.1.2' ||
    fail "cannot get rouge-score with pip: install it (extra 'summarisation' of this package)"
}

prepare() {
  python "$root/user_dir_examples/prepare_summaries.py" --data "$data" --out "$out/data" ${limit:+--limit "$limit"}
}

preprocess() {
  local tests
  tests=$(awk -v folder="$out/data" '{ print folder "/" $0 }' "$out/data/tests" | paste -sd, -) || return
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang article --target-lang title --destdir "$out/data-bin" \
    --trainpref "$out/data/train" --validpref "$out/data/valid" --testpref "$tests" \
    --nwordssrc "$words" --nwordstgt "$words"
}

# fairseq continues from checkpoint_last.pt in the save folder by itself.
train() {
  logged "$run/train.out" fairseq-train "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax "${model[@]}" --attention-mapping "$1" \
    "${criterion[@]}" "${training[@]}" --seed "$seed" --save-dir "$run/checkpoints" --log-file "$run/train.log"
}

# No alpha here: it travels in the checkpoint.
summarise() {
  logged "$run/$1.log" fairseq-generate "$out/data-bin" "${device[@]}" --gen-subset "$1" \
    --user-dir "$user_dir" --task translation_entmax --path "$run/checkpoints/checkpoint_best.pt" \
    "${decoding[@]}" --results-path "$run" --certificate-file "$run/certificates-$1.jsonl" --certificate-attention \
    --log-format simple --log-interval 20
}

record() {
  local mapping=$1 title=summarisation${quick:+-quick}-$1-output$output_alpha
  python "$root/user_dir_examples/results.py" "$out/results/$title.json" --recipe summarisation --name "$title" \
    --scores "$run/scores.json" --setting mapping="$mapping" --setting output_alpha="$output_alpha" \
    --setting words="$words" --setting limit="${limit:-null}" --setting model="${model[*]}" \
    --setting training="${training[*]}" --setting decoding="${decoding[*]}" --seed "$seed" \
    --seconds "$(spent "$key-")" \
    --command "bash user_dir_examples/summarisation.sh --data DATA --out OUT --mappings $mapping --output-alpha \
$output_alpha --words $words${limit:+ --limit $limit}${quick:+ --quick}" $force
}

run_mapping() {
  local key=$1-output$output_alpha number=0 set
  run=$out/$key
  mkdir -p "$run"
  step "$key-training" train "$1"
  for set in $(<"$out/data/tests"); do
    step "$key-$set" summarise "test${number#0}"
    number=$((number + 1))
  done
  say "$key:"
  python "$root/user_dir_examples/score_rouge.py" --data "$out/data" --run "$run"
  [[ -z $force ]] || rm -f "$out/.$key-result.done"
  step "$key-result" record "$1"
}

main() {
  parse_options "$@"
  set_up "$out"
  check_settings "$out" "another --out" "words $words limit ${limit:-none}" "${model[@]}" "${training[@]}"
  check_source data "$data"
  get_rouge
  step data prepare
  step preprocessing preprocess
  local mapping
  for mapping in "${mappings[@]}"; do run_mapping "$mapping"; done
  say "finished; results are in $out/results"
}

main "$@"
