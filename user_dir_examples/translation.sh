# What the translation recipes share. Sourced by them after they set what differs: see multi30k.sh.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly here=$root/user_dir_examples

usage() {
  about
  cat <<EOF

options (DATA and OUT in the environment do as well):
  --data DIR     folder with the raw files, plain or .gz, in it or below; without it the source is printed
  --out DIR      where everything is written (default runs/$recipe); results as OUT/results/$recipe/NAME.json
  --pair X-Y     source and target: ${pairs[*]} (default ${pairs[0]})
  --alpha A      alpha of attention and output, 1 or more: 1 is softmax, 2 sparsemax (default: 1.5, 1 and 2 in turn)
  --attention-alpha A, --output-alpha A
                 alpha of one of them (the other is that of --alpha, or 1.5)
  --sweep        figure 4: attention or output alpha from 1 to 2 with 1.5 for the other (${sweep_alphas[*]}), with
                 ${sweep_training[*]}; draws alpha-sweep-X-Y.png
  --speed        time training steps of the models that were trained in OUT, side by side on the same batches
  --epochs N     stop after N epochs
  --seed N       (default 1)
  --force        begin again and replace the result, if there is one
  --unchecked    take raw files of other sizes or hashes
  --quick        tiny model, few sentences, to see that everything works; the numbers mean nothing
  -h, --help     this text

Attention and the possible outputs of single sentences, as in figures 2 and 6 of the paper:
  python -m fairseq_entmax report OUT/PAIR/NAME/certificates-test.jsonl --out report

Running it again continues where it stopped. Environment: PYTHON (interpreter for .venv)
EOF
}

data=${DATA:-} out=${OUT:-} pair='' alpha='' attention_alpha='' output_alpha='' epochs='' seed=1
force='' unchecked='' size='' sweeping='' speed=''

parse_options() {
  while (($#)); do
    case $1 in
      --data | --pair | --alpha | --attention-alpha | --output-alpha | --epochs | --seed | --out)
        take_value "$@" && shift 2
        ;;
      --sweep) sweeping=1 && shift ;;
      --speed) speed=1 && shift ;;
      --force) force=--force && shift ;;
      --unchecked) unchecked=--unchecked && shift ;;
      --quick) size=-quick && shift ;;
      -h | --help) usage && exit ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  check_options
  pair=${pair:-${pairs[0]}} base=${out:-$root/runs/$recipe$size}
  [[ -z $size ]] || shrink
}

check_options() {
  [[ -z $data || -d $data ]] || fail "--data $data: no such folder"
  check_choice --pair "${pairs[*]}" ${pair:+"$pair"}
  check_alpha --alpha "$alpha"
  check_alpha --attention-alpha "$attention_alpha"
  check_alpha --output-alpha "$output_alpha"
  [[ -z $sweeping$speed || -z $alpha$attention_alpha$output_alpha ]] ||
    fail "--sweep, --speed: wanted no alpha with them, got $alpha$attention_alpha$output_alpha"
  [[ -z $sweeping || -z $speed ]] || fail "--sweep, --speed: wanted one of them, got both"
  check_count --epochs 1 ${epochs:+"$epochs"}
  check_seeds --seed "$seed"
}

check_alpha() {
  [[ -z $2 || $2 =~ ^[1-9][0-9]*(\.[0-9]+)?$ ]] || fail "$1: wanted a number of 1 or more, got $2"
}

shrink() {
  segmentation+=(--pieces "${quick_pieces:-200}" --limit 200)
  model+=(--encoder-embed-dim 16 --encoder-hidden-size 8 --decoder-embed-dim 16 --decoder-hidden-size 16)
  model+=(--encoder-layers 1 --decoder-layers 1)
  training+=(--max-epoch 2 --lr 0.01 --log-interval 5)
  sweep_alphas=(1 1.5) sweep_training=(--max-epoch 1)
}

# --- steps ----------------------------------------------------------------------------------------------------------

prepare() {
  rm -rf "$out"/{text,seen,pieces,data-bin}
  python "$here/prepare_translation.py" --corpus "$corpus" --pair "$pair" --data "${data:-missing}" --out "$out" \
    "${segmentation[@]}" $unchecked
}

preprocess() {
  local source=${pair%-*} target=${pair#*-}
  local dictionaries=(--joined-dictionary --srcdict "$out/dict.$source.txt")
  [[ ! " ${segmentation[*]} " =~ " --separate "|" --own-dictionaries " ]] ||
    dictionaries=(--srcdict "$out/dict.$source.txt" --tgtdict "$out/dict.$target.txt")
  rm -rf "$out/data-bin"
  logged "$out/preprocess.log" fairseq-preprocess --source-lang "$source" --target-lang "$target" \
    --trainpref "$out/pieces/train" --validpref "$out/pieces/valid" --testpref "$out/pieces/test" \
    --destdir "$out/data-bin" "${dictionaries[@]}" &&
    python "$here/prepare_translation.py" --corpus "$corpus" --pair "$pair" --out "$out" --check-dictionary &&
    python "$here/score_translation.py" --data "$out" "${metrics[@]+"${metrics[@]}"}" # only looks if its tools are there
}

# Sets `sparsity` to the flags of an attention alpha and an output alpha.
choose_sparsity() {
  sparsity=()
  case $1 in
    1 | 1.0) sparsity+=(--attention-mapping softmax) ;;
    1.5) sparsity+=(--attention-mapping entmax15) ;;
    2 | 2.0) sparsity+=(--attention-mapping sparsemax) ;;
    *) sparsity+=(--attention-mapping entmax --attention-alpha "$1") ;;
  esac
  case $2 in
    1.5) sparsity+=(--criterion entmax15) ;;
    2 | 2.0) sparsity+=(--criterion sparsemax) ;;
    *) sparsity+=(--criterion entmax --entmax-alpha "$2") ;;
  esac
}

# fairseq continues from checkpoint_last.pt in the save folder by itself, and adds to the log file.
train() {
  logged "$out/train.out" fairseq-train "$base/$pair/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax "${model[@]}" "${sparsity[@]}" \
    "${training[@]}" "${extra[@]+"${extra[@]}"}" \
    --seed "$seed" --save-dir "$out/checkpoints" --log-format simple --log-file "$out/train.log"
}

# decode PART OPTIONS...: no alpha here, it travels in the checkpoint.
decode() {
  local part=$1
  shift
  logged "$out/decode-$part.log" fairseq-generate "$base/$pair/data-bin" "${device[@]}" \
    --user-dir "$user_dir" --task translation_entmax --path "$out/checkpoints/checkpoint_best.pt" \
    --gen-subset "$part" "${decoding[@]}" "$@" --results-path "$out" \
    --certificate-file "$out/certificates-$part.jsonl" --certificate-attention --log-format simple --log-interval 5
}

score() {
  python "$here/score_translation.py" --data "$base/$pair" --run "$out" "${metrics[@]+"${metrics[@]}"}"
}

# Training (from fairseq's log, which counts through interruptions) and the later steps together.
seconds_of_run() {
  local trained
  trained=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["training"]["seconds"])' "$out/scores.json")
  cat "$out"/.{decoding,scores}.done | awk -v sum="$trained" '{ sum += $1 } END { print sum }'
}

record() {
  local name=$1 command="bash user_dir_examples/$recipe.sh --data DATA --out OUT --pair $pair"
  if [[ -n $sweeping ]]; then command+=" --sweep"; else command+=" --attention-alpha $2 --output-alpha $3"; fi
  command+=" --seed $seed${epochs:+ --epochs $epochs}${size:+ -$size}"
  python "$here/results.py" "$base/results/$recipe/$name.json" --recipe "$recipe" --name "$name" $force \
    --scores "$out/scores.json" --seed "$seed" --seconds "$(seconds_of_run)" --command "$command" \
    --setting pair="$pair" --setting attention_alpha="$2" --setting output_alpha="$3" \
    --setting size="${size#-}" --setting sweep="${sweeping:-0}" --setting segmentation="${segmentation[*]}" \
    --setting model="${model[*]}" --setting training="${training[*]}${extra[*]+ ${extra[*]}}" \
    --setting decoding="${decoding[*]}"
}

# One model: attention alpha, output alpha.
run_model() {
  local name="${sweeping:+sweep-}$pair-attention-$1-output-$2-seed-$seed"
  out=$base/$pair/$name
  extra=()
  [[ -z $sweeping ]] || extra+=("${sweep_training[@]}")
  [[ -z $epochs ]] || extra+=(--max-epoch "$epochs")
  [[ -z $force ]] || rm -rf "$out"
  check_settings "$out" "another --out, or --force" "${model[@]}" "${training[@]}" \
    "${extra[@]+"${extra[@]}"}" "${decoding[@]}"
  choose_sparsity "$1" "$2"
  say "$name"
  step training train
  step decoding decode test
  step scores score
  step result record "$name" "$1" "$2"
}

sweep() {
  local value
  for value in "${sweep_alphas[@]}"; do
    run_model "$value" 1.5
    [[ $value == 1.5 ]] || run_model 1.5 "$value"
  done
  draw
}

# Relative to softmax, or to the smallest alphas there are; names are attention alpha/output alpha.
compare_speed() {
  local name=$pair-speed-seed-$seed folder line models=() found=()
  local result=$base/results/$recipe/$name.json timed=$base/$pair/.$name.models
  for folder in "$base/$pair"/*"$pair"-attention-*-seed-"$seed"; do
    [[ -e $folder/checkpoints/checkpoint_best.pt ]] || continue
    found+=("$(sed -E 's/.*attention-([0-9.]+)-output-([0-9.]+)-.*/\1\/\2/' <<<"$folder")=$folder")
  done
  # The same alphas once, be they of the sweep or not.
  while read -r line; do
    [[ -z $line ]] || models+=("--model" "$line/checkpoints/checkpoint_best.pt")
  done < <(printf -- '%s\n' "${found[@]+"${found[@]}"}" | LC_ALL=C sort -t= -k1,1 -u | LC_ALL=C sort -t/ -k1,1n -k2,2n)
  ((${#models[@]} > 2)) || fail "--speed: wanted two trained models or more of $pair in $base"
  if [[ -e $result && -z $force ]]; then
    [[ -e $timed && $(<"$timed") == "${models[*]}" ]] || fail "$result: of other models; --force replaces it"
    say "$name: done before"
    return
  fi
  local command="bash user_dir_examples/$recipe.sh --data DATA --out OUT --pair $pair --speed --seed $seed"
  time_models "$name" "$command${size:+ -$size}" "${models[@]}"
}

# time_models NAME COMMAND --model NAME=CHECKPOINT...: training steps side by side, into a result file.
time_models() {
  local name=$1 command=$2 begun=$SECONDS
  shift 2
  python "$here/speed_translation.py" "$base/$pair/data-bin" --out "$base/$pair/speed.json" "$@" || fail "timing failed"
  python "$here/results.py" "$base/results/$recipe/$name.json" --recipe "$recipe" --name "$name" $force \
    --scores "$base/$pair/speed.json" --seed "$seed" --seconds $((SECONDS - begun)) \
    --setting pair="$pair" --setting speed=1 --setting size="${size#-}" --setting model="${model[*]}" \
    --command "$command"
  printf '%s\n' "$*" >"$base/$pair/.$name.models"
}

# Differences in BLEU to softmax, where it is among the models of this seed that are not of the sweep.
compare_scores() {
  local softmax=$base/$pair/$pair-attention-1-output-1-seed-$seed folder systems=()
  for folder in "$softmax" "$base/$pair/$pair"-attention-*-seed-"$seed"; do
    [[ -s $folder/hypotheses.test.txt && ($folder != "$softmax" || ${#systems[@]} == 0) ]] || continue
    systems+=(--system "$(sed -E 's/.*attention-([0-9.]+)-output-([0-9.]+)-.*/\1\/\2/' <<<"$folder")=$folder")
  done
  [[ ${systems[1]-} == 1/1=* ]] && ((${#systems[@]} > 2)) || return 0
  local command="bash user_dir_examples/$recipe.sh --data DATA --out OUT --pair $pair --seed $seed"
  pair_scores "$pair-paired-seed-$seed" "$command${size:+ -$size}" "${systems[@]}"
}

# pair_scores NAME COMMAND --system NAME=RUN...: made anew where an output has changed.
pair_scores() {
  local name=$1 command=$2 begun=$SECONDS noted=$base/$pair/.$1.outputs outputs system
  shift 2
  outputs=$(for system in "$@"; do [[ $system == --system ]] || cksum "${system#*=}/hypotheses.test.txt"; done)
  [[ ! -e $noted || $(<"$noted") != "$outputs" ]] || return 0
  python "$here/pair_translation.py" --data "$base/$pair" --out "$base/$pair/paired.json" "$@" ||
    fail "comparing the scores failed"
  python "$here/results.py" "$base/results/$recipe/$name.json" --recipe "$recipe" --name "$name" --force \
    --scores "$base/$pair/paired.json" --seed "$seed" --seconds $((SECONDS - begun)) \
    --setting pair="$pair" --setting paired=1 --setting size="${size#-}" --setting model="${model[*]}" \
    --command "$command"
  printf '%s\n' "$outputs" >"$noted"
}

draw() {
  if python -c 'import matplotlib' 2>/dev/null; then
    python "$here/plot_translation.py" --results "$base/results" --recipe "$recipe" --pair "$pair" --out "$base"
  else
    say "no pictures: they need matplotlib (pip install 'fairseq-entmax[report]')"
  fi
}

# The data of one pair of languages, which all models in $base/$pair share.
make_data() {
  set_up "$base"
  check_settings "$base/$pair" "another --out" "$corpus" "$pair" "${segmentation[@]}"
  out=$base/$pair
  [[ -z $data ]] || check_source data "$data"
  step data prepare
  step preprocessing preprocess
}

main() {
  parse_options "$@"
  make_data
  if [[ -n $speed ]]; then
    compare_speed
  elif [[ -n $sweeping ]]; then
    sweep
  elif [[ -n $alpha$attention_alpha$output_alpha ]]; then
    run_model "${attention_alpha:-${alpha:-1.5}}" "${output_alpha:-${alpha:-1.5}}"
    compare_scores
  else
    for alpha in 1.5 1 2; do run_model "$alpha" "$alpha"; done
    compare_scores
    draw
  fi
  say "finished; everything is in $base"
}
