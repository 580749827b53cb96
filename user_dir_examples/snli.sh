#!/usr/bin/env bash
# Textual entailment with sparse and structured attention (Martins and Astudillo 2016; Niculae and Blondel 2017).
# See --help.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash user_dir_examples/snli.sh --data DATA --vectors FILE [options]

The Stanford Natural Language Inference corpus, version 1: does a premise entail a hypothesis, contradict it, or
neither? A GRU reads the premise, a second one, started from it, the hypothesis; attention from the end of the
hypothesis goes back to the premise. Trains this model once for each attention mapping, labels the test pairs, and
writes accuracy and attention of each to OUT/results. Running it again continues where it stopped.

The published test accuracies (%, 100 units, best of several penalties): softmax 81.66, sparsemax 82.39, fusedmax 82.41,
oscarmax 81.76. Theirs had an L2 penalty, which is left out here.

options:
  --data DATA      folder with snli_1.0_train.jsonl, snli_1.0_dev.jsonl and snli_1.0_test.jsonl, from
                   https://nlp.stanford.edu/projects/snli/ (CC BY-SA 4.0)
  --vectors FILE   300-dimensional word vectors as text, which stay fixed: GloVe 840B in the papers
                   (https://nlp.stanford.edu/projects/glove/); without them, word vectors are trained
  --out OUT        where everything is written (default runs/snli, with --sample runs/snli-sample, with
                   --quick runs/snli-quick)
  --mappings M...  default: softmax sparsemax fusedmax oscarmax; also entmax15 and pnormmax
  --sample         made-up pairs in the corpus's format (6,000, by sample_snli.py) instead of --data, vectors of 50
                   numbers that are trained, 12 epochs; the figures say nothing about SNLI
  --limit N        use the first N training pairs only
  --dim N          numbers in a word vector (default 300, with --sample 50)
  --quick          tiny model, two epochs, to see that everything works; the numbers mean nothing
  --force          replace results that are there
  -h, --help       this text

environment: DATA, VECTORS and OUT stand in for the options; PYTHON (interpreter for .venv)
EOF
}

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# --- settings -------------------------------------------------------------------------------------------------------

seed=1
model=(--arch entailment_gru --hidden-size 100 --dropout 0.1)

# Cross entropy, in nats.
criterion=(--criterion entmax --entmax-alpha 1)

training=(
  # optimisation
  --optimizer adam --lr 0.0003 --clip-norm 5
  --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --patience 10
  # size and length
  --batch-size 25 --max-epoch 100
  # housekeeping
  --seed "$seed" --no-epoch-checkpoints --log-format simple --log-interval 1000 --num-workers 0
)

data=${DATA:-} vectors=${VECTORS:-} out=${OUT:-} limit='' dim='' sample='' quick='' force=''
mappings=(softmax sparsemax fusedmax oscarmax)

parse_options() {
  while (($#)); do
    case $1 in
      --data | --vectors | --out | --limit | --dim) take_value "$@" && shift 2 ;;
      --mappings) take_values "$@" && mappings=("${values[@]}") && shift $((1 + ${#values[@]})) ;;
      --sample) sample=true && shift ;;
      --quick) quick=1 && shift ;;
      --force) force=--force && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  [[ -z $sample || -z $data$vectors ]] || fail "--sample: wanted neither --data nor --vectors with it, got $data$vectors"
  [[ -n $data$sample ]] || fail "--data: wanted the folder of the SNLI corpus (or --sample), got nothing"
  [[ -z $data || -d $data ]] || fail "--data $data: no such folder"
  [[ -z $vectors || -f $vectors ]] || fail "--vectors $vectors: no such file"
  check_choice --mappings "${attention_mappings[*]}" "${mappings[@]}"
  check_count --limit 1 ${limit:+"$limit"}
  check_count --dim 1 ${dim:+"$dim"}
  kind=${sample:+-sample}${quick:+-quick}
  out=${out:-$root/runs/snli$kind}
  [[ -z $sample ]] || suit_sample
  dim=${dim:-300}
  model+=(--embed-dim "$dim" ${vectors:+--vectors "$vectors"})
  [[ -z $quick ]] || shrink
}

suit_sample() {
  dim=${dim:-50}
  training+=(--lr 0.002 --max-epoch 12)
}

shrink() {
  model+=(--hidden-size 16)
  training+=(--max-epoch 2 --lr 0.01)
}

# --- steps ----------------------------------------------------------------------------------------------------------

prepare() {
  if [[ -n $sample ]]; then
    python "$root/user_dir_examples/sample_snli.py" --out "$out/sample" || return
  fi
  python "$root/user_dir_examples/prepare_snli.py" --data "${data:-$out/sample}" --out "$out/data" --dim "$dim" \
    ${vectors:+--vectors "$vectors"} ${limit:+--limit "$limit"}
}

preprocess() {
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang premise --target-lang hypothesis --joined-dictionary \
    --srcdict "$out/data/dict.txt" --destdir "$out/data-bin" \
    --trainpref "$out/data/train" --validpref "$out/data/valid" --testpref "$out/data/test" &&
    cp "$out"/data/*.label "$out/data-bin"
}

# fairseq continues from checkpoint_last.pt in the save folder by itself.
train() {
  logged "$out/$1/train.log" fairseq-train "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task entailment_entmax "${model[@]}" --attention-mapping "$1" \
    "${criterion[@]}" "${training[@]}" --save-dir "$out/$1/checkpoints"
}

label() {
  logged "$out/$1/label.log" fairseq-validate "$out/data-bin" "${device[@]}" --valid-subset test \
    --user-dir "$user_dir" --task entailment_entmax --path "$out/$1/checkpoints/checkpoint_best.pt" --batch-size 100 \
    --num-workers 0 --log-format simple --predictions-file "$out/$1/predictions.jsonl"
}

evaluate() {
  python "$root/user_dir_examples/evaluate_snli.py" --predictions "$out/$1/predictions.jsonl" \
    --labels "$out/data/test.label" --scores "$out/$1/scores.json"
}

record() {
  local mapping=$1 name=snli$kind-$1 source="--data DATA"
  [[ -z $sample ]] || source=--sample
  local command="bash user_dir_examples/snli.sh $source${vectors:+ --vectors VECTORS} --out OUT --mappings $mapping"
  local described="${model[*]}"
  python "$root/user_dir_examples/results.py" "$out/results/$name.json" --recipe snli --name "$name" \
    --scores "$out/$mapping/scores.json" --setting mapping="$mapping" --setting limit="${limit:-null}" \
    --setting sample="${sample:-null}" --setting model="${described//"$vectors"/VECTORS}" \
    --setting training="${training[*]}" --seed "$seed" --seconds "$(spent "$mapping-")" \
    --command "$command${limit:+ --limit $limit} --dim $dim${quick:+ --quick}" $force
}

main() {
  parse_options "$@"
  set_up "$out"
  check_settings "$out" "another --out" "limit ${limit:-none}" "${model[@]}" "${training[@]}"
  [[ -z $data ]] || check_source data "$data"
  step data prepare
  step preprocessing preprocess
  local mapping
  for mapping in "${mappings[@]}"; do
    mkdir -p "$out/$mapping"
    step "$mapping-training" train "$mapping"
    step "$mapping-labelling" label "$mapping"
    say "$mapping:"
    evaluate "$mapping"
    [[ -z $force ]] || rm -f "$out/.$mapping-result.done"
    step "$mapping-result" record "$mapping"
  done
  say "finished; results are in $out/results"
}

main "$@"
