#!/usr/bin/env bash
# Romanian and English of WMT 2016, as in the 2019 paper. See --help.
set -euo pipefail

readonly recipe=wmt16_ro_en corpus=wmt16
readonly pairs=(ro-en en-ro)

about() {
  cat <<EOF
usage: bash user_dir_examples/wmt16_ro_en.sh --data DIR [options]

Table 2 of Peters, Niculae and Martins (2019), Romanian-English: WMT 2016 (Europarl v8 and SETIMES, 612,422 pairs)
with LSTMs of 500 units and sentencepiece BPE of 25,000 pieces for each language by itself; 120,000 updates of 64
pairs. The paper's metric is tokenised BLEU: needs sacremoses (pip install sacremoses). sacreBLEU is reported beside
it. Not run here: it wants a GPU.

Romanian: s and t with cedilla become the letters with comma below, in training text and references alike. As in the
paper, the models see Romanian without diacritics (remove --diacritics remove from the script to keep them). Into
Romanian two sacreBLEU scores are reported: against references with diacritics, and with diacritics removed on both
sides. Published numbers differ by up to 10 points over this: compare only scores of the same kind.

Raw files: training-parallel-ep-v8, SETIMES.en-ro or SETIMES2.en-ro (Moses format), newsdev2016 and newstest2016
(.sgm); without --data their sources and licence page are printed.
EOF
}

segmentation=(--pieces 25000 --separate --diacritics remove)

source "$(dirname "${BASH_SOURCE[0]}")/settings_2019.sh"

training+=(--max-update 120000 --validate-interval-updates 10000 --save-interval-updates 10000)
sweep_training=(--max-update 60000)

source "$(dirname "${BASH_SOURCE[0]}")/translation.sh"
main "$@"
