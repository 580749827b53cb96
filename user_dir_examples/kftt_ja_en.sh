#!/usr/bin/env bash
# Japanese and English of the Kyoto Free Translation Task, as in the 2019 paper. See --help.
set -euo pipefail

readonly recipe=kftt_ja_en corpus=kftt
readonly pairs=(ja-en en-ja)

about() {
  cat <<EOF
usage: bash user_dir_examples/kftt_ja_en.sh --data DIR [options]

Table 2 of Peters, Niculae and Martins (2019), Japanese-English: Wikipedia articles about Kyoto (KFTT, 329,882 cleaned
pairs) with LSTMs of 500 units and a joint sentencepiece BPE of 32,000 pieces on the tokens of the corpus; 100,000
updates of 64 pairs. The paper's metric is tokenised BLEU, here on the tokens of the corpus. sacreBLEU on detokenised
text against the untokenised references is reported beside it; into English it needs sacremoses, into Japanese
sacrebleu[ja]. Not run here: it wants a GPU.

Raw files: kftt-data-1.0 as unpacked (tok/kyoto-train.cln.*, tok/kyoto-dev.*, tok/kyoto-test.*, orig/kyoto-test.*;
without --data its source and licence page are printed).
EOF
}

segmentation=(--pieces 32000 --own-dictionaries)
quick_pieces=4000 # 200 sentences have about a thousand different characters

source "$(dirname "${BASH_SOURCE[0]}")/settings_2019.sh"

training+=(--max-update 100000 --validate-interval-updates 10000 --save-interval-updates 10000)
sweep_training=(--max-update 50000)

source "$(dirname "${BASH_SOURCE[0]}")/translation.sh"
main "$@"
