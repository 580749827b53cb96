"""The public corpora of the translation recipes: files, where they come from, and what is known of their contents.

Sizes are the lines (segments of XML files) that the publishers or the papers state. Hashes are SHA-256 of the unpacked
text, given where a copy was at hand when this was written; of other files the hash of what was found is recorded in
`data.json` beside the prepared data.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple


class Corpus(NamedTuple):
    """Names hold `{language}`; a name may begin with a folder, and every file may be gzipped."""

    languages: Tuple[str, ...]
    source: str
    licence: str
    parts: Dict[str, List[str]]  # train, valid and test: files that are read one after the other
    lines: Dict[str, int]  # by name, as in `parts`
    raw_test: Optional[str] = None  # untokenised references, where the corpus itself is tokenised
    hashes: Dict[str, str] = {}  # by name with the language filled in
    pair: Optional[str] = None  # the one pair there is, where the languages cannot be combined at will
    other_names: Dict[str, str] = {}  # by name: what the file is called in other packings of the same text

    @property
    def tokenised(self) -> bool:
        return self.raw_test is not None


MULTI30K = Corpus(
    languages=("de", "en", "fr"),
    source="https://github.com/multi30k/dataset, folder data/task1/raw",
    licence="https://github.com/multi30k/dataset, README",
    parts={"train": ["train.{language}"], "valid": ["val.{language}"], "test": ["test_2016_flickr.{language}"]},
    lines={"train.{language}": 29000, "val.{language}": 1014, "test_2016_flickr.{language}": 1000},
    hashes={
        "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
        "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    },
)

_TED = "IWSLT17.TED.{part}.de-en.{{language}}.xml"
_TED_LINES = {"dev2010": 888, "tst2010": 1568, "tst2011": 1433, "tst2012": 1700, "tst2013": 993, "tst2014": 1305}
_TED_LINES["tst2015"] = 1080

IWSLT17 = Corpus(
    languages=("de", "en"),
    source="https://wit3.fbk.eu/2017-01-c, archive 2017-01-trnted.tgz, in it texts/de/en/de-en.tgz (MD5 "
    "ca2b94d694150d4d6c5dc64c200fa589; copied as data/2017-01-trnted/texts/de/en/de-en.zip to "
    "https://huggingface.co/datasets/IWSLT/iwslt2017); the multilingual archive 2017-01-trnmted.tgz lacks test sets",
    licence="https://wit3.fbk.eu and the README of the archive (CC BY-NC-ND)",
    # The paper does not say which sets it took; this is a choice of ours.
    parts={
        "train": ["train.tags.de-en.{language}"],
        "valid": [_TED.format(part="dev2010")],
        "test": [_TED.format(part=f"tst{year}") for year in range(2010, 2016)],
    },
    lines={
        "train.tags.de-en.{language}": 206112,
        **{_TED.format(part=part): lines for part, lines in _TED_LINES.items()},
    },
    pair="de-en",
)

KFTT = Corpus(
    languages=("ja", "en"),
    source="http://www.phontron.com/kftt, archive kftt-data-1.0.tar.gz (SHA-1 "
    "0e1f5a9dc993b7d74ca6a0521232d17ce94c8cb4)",
    licence="http://www.phontron.com/kftt (CC BY-SA 3.0)",
    # The tokenised files, of the training set those that its authors have cleaned (the size that the paper states).
    parts={
        "train": ["tok/kyoto-train.cln.{language}"],
        "valid": ["tok/kyoto-dev.{language}"],
        "test": ["tok/kyoto-test.{language}"],
    },
    lines={
        "tok/kyoto-train.cln.{language}": 329882,
        "tok/kyoto-dev.{language}": 1166,
        "tok/kyoto-test.{language}": 1160,
        "orig/kyoto-test.{language}": 1160,
    },
    raw_test="orig/kyoto-test.{language}",
    pair="ja-en",
)

WMT16 = Corpus(
    languages=("ro", "en"),
    source="https://www.statmt.org/wmt16/translation-task.html, archives training-parallel-ep-v8.tgz, dev.tgz (or the "
    "later dev-romanian-updated.tgz) and test.tgz (MD5 3d809cd0c2c86adb2c67034d15c4e446), and SETIMES v2 of "
    "https://opus.nlpl.eu, https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip",
    licence="https://www.statmt.org/wmt16/translation-task.html and the LICENSE in the archive of SETIMES",
    # Both directions are scored on the files of Romanian to English, which are the same sentences.
    parts={
        "train": ["europarl-v8.ro-en.{language}", "SETIMES.en-ro.{language}"],
        "valid": ["newsdev2016-roen-{side}.{language}.sgm"],
        "test": ["newstest2016-roen-{side}.{language}.sgm"],
    },
    # Together 612,422 pairs, the size that the paper states.
    lines={
        "europarl-v8.ro-en.{language}": 399375,
        "SETIMES.en-ro.{language}": 213047,
        "newsdev2016-roen-{side}.{language}.sgm": 1999,
        "newstest2016-roen-{side}.{language}.sgm": 1999,
    },
    pair="ro-en",
    other_names={"SETIMES.en-ro.{language}": "SETIMES2.en-ro.{language}"},
)

CORPORA = {"multi30k": MULTI30K, "iwslt17": IWSLT17, "kftt": KFTT, "wmt16": WMT16}
