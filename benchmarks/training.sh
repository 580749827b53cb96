#!/usr/bin/env bash
# Time of whole training steps on Multi30k de-en at word level, sparse against softmax, as the support shrinks.
#
#   DATA=multi30k OUT=out benchmarks/training.sh [options of benchmarks/training.py]
#
# DATA is a folder with train.de.gz, train.en.gz, val.de.gz and val.en.gz (Multi30k, task 1, raw), for example from
# https://github.com/multi30k/dataset (data/task1/raw). About 60 minutes on two cores.
set -euo pipefail

readonly here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly data=${DATA:?folder with the raw files of Multi30k} out=${OUT:?folder for results}

for file in {train,val}.{de,en}.gz; do
  [[ -f $data/$file ]] || { echo "error: DATA: $data/$file is missing" >&2; exit 1; }
done
mkdir -p "$out"
for split in train val; do
  for side in de en; do
    # Words and punctuation apart, lower case.
    python -c '
import gzip, sys
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
split = Tokenizer13a()
for line in gzip.open(sys.argv[1], "rt", encoding="utf-8"):
    print(split(line.strip().lower()))
' "$data/$split.$side.gz" > "$out/$split.$side"
  done
done
rm -rf "$out/data-bin"
fairseq-preprocess --source-lang de --target-lang en --trainpref "$out/train" --validpref "$out/val" \
  --joined-dictionary --nwordssrc 17996 --nwordstgt 17996 --destdir "$out/data-bin" --workers 2 > "$out/preprocess.log"
python "$here/training.py" "$out/data-bin" --out "$out" "$@"
