#!/usr/bin/env bash
# German and English of IWSLT 2017, as in the 2019 paper. See --help.
set -euo pipefail

readonly recipe=iwslt_de_en corpus=iwslt17
readonly pairs=(de-en en-de)

about() {
  cat <<EOF
usage: bash user_dir_examples/iwslt_de_en.sh --data DIR [options]

Tables 2 and 3 and figure 4 of Peters, Niculae and Martins (2019), German-English: TED talks of IWSLT 2017 (206,112
pairs) with LSTMs of 500 units and a joint sentencepiece BPE of 32,000 pieces; 120,000 updates of 64 pairs. The
paper's metric is tokenised BLEU: needs sacremoses (pip install sacremoses). sacreBLEU is reported beside it. Not run here: it wants a GPU.

Raw files: the archive de-en of the bilingual task (train.tags.de-en.*, IWSLT17.TED.*.de-en.*.xml; without --data its
source and licence page are printed). Development set dev2010, test sets tst2010 to tst2015 together: the paper does not say
which it took, so compare the rows of a table, not the level. For the differences to its segmentation see
docs/reproduction.md.
EOF
}

# Joint pieces, a dictionary for each language: the paper's 17,993 target types under 32,000 pieces.
segmentation=(--pieces 32000 --own-dictionaries)

source "$(dirname "${BASH_SOURCE[0]}")/settings_2019.sh"

training+=(--max-update 120000 --validate-interval-updates 5000 --save-interval-updates 5000)
sweep_training=(--max-update 60000)

source "$(dirname "${BASH_SOURCE[0]}")/translation.sh"
main "$@"
