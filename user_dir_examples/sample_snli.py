"""Writes made-up pairs in the format of SNLI 1.0, for trying the recipe without the corpus.

A premise is a caption out of a small grammar ("Two young women are playing a guitar in a park ."); the hypothesis
follows from it, contradicts it, or adds something that it does not say, by word lists below. The three labels are
equally frequent; as in the corpus, no premise is in two parts. A model can get every pair right; that says nothing
about its accuracy on SNLI.
"""

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

FILES = {"train": "snli_1.0_train.jsonl", "dev": "snli_1.0_dev.jsonl", "test": "snli_1.0_test.jsonl"}
SIZES = {"train": 6000, "dev": 600, "test": 1200}
TENTHS = ["train"] * 7 + ["dev"] + ["test"] * 2  # of all premises

# Singular and plural, and what they are more generally.
ACTORS = {
    ("man", "men"): ("person", "people"),
    ("woman", "women"): ("person", "people"),
    ("boy", "boys"): ("child", "children"),
    ("girl", "girls"): ("child", "children"),
    ("dog", "dogs"): ("animal", "animals"),
    ("cat", "cats"): ("animal", "animals"),
}
ADJECTIVES = ("young", "tall", "small", "happy", "tired", "wet")
# What is done, and what it is more generally; no two of them at the same time.
ACTIONS = {
    "playing a guitar": "making music",
    "playing a drum": "making music",
    "eating an apple": "eating fruit",
    "eating a banana": "eating fruit",
    "riding a bicycle": "riding something",
    "riding a horse": "riding something",
    "reading a book": "reading something",
    "reading a newspaper": "reading something",
}
PLACES = {
    "in a park": "outdoors",
    "on a beach": "outdoors",
    "in a field": "outdoors",
    "in a kitchen": "indoors",
    "in a library": "indoors",
    "in a bedroom": "indoors",
}
UNSAID = ("for the first time", "for money", "with a friend", "before lunch", "after work", "for a contest")


class Scene(NamedTuple):
    """What a caption says."""

    plural: bool
    adjective: str
    actor: Tuple[str, str]
    action: str
    place: str


def draw(rng: random.Random) -> Scene:
    plural = rng.random() < 0.3
    return Scene(plural, rng.choice(ADJECTIVES), rng.choice([*ACTORS]), rng.choice([*ACTIONS]), rng.choice([*PLACES]))


def sentence(plural: bool, adjective: str, actor: Tuple[str, str], *rest: str) -> str:
    subject = ["Two" if plural else "A", adjective, actor[plural], "are" if plural else "is"]
    return " ".join([*(word for word in subject if word), *(part for part in rest if part), "."])


def other(rng: random.Random, choices, not_this, meaning: Dict) -> str:
    """A choice that excludes this one: also its more general meaning is another."""
    return rng.choice([choice for choice in choices if meaning[choice] != meaning[not_this]])


def hypothesis(scene: Scene, label: str, rng: random.Random) -> str:
    """A sentence that follows from the scene, is left open by it, or excludes it."""
    adjective = rng.choice(("", scene.adjective))
    actor = rng.choice((scene.actor, ACTORS[scene.actor]))
    action = rng.choice((scene.action, ACTIONS[scene.action]))
    place = rng.choice(("", scene.place, PLACES[scene.place]))
    if label == "neutral":
        if rng.random() < 0.5:
            return sentence(scene.plural, adjective, actor, action, rng.choice(UNSAID))
        unsaid = rng.choice([word for word in ADJECTIVES if word != scene.adjective])
        return sentence(scene.plural, unsaid, actor, action, place)
    if label == "contradiction":
        wrong = rng.choice(("actor", "action", "place"))
        if wrong == "actor":
            actor = other(rng, ACTORS, scene.actor, ACTORS)
        elif wrong == "action":
            action = other(rng, ACTIONS, scene.action, ACTIONS)
        else:
            place = PLACES[other(rng, PLACES, scene.place, PLACES)]
    return sentence(scene.plural, adjective, actor, action, place)


def caption(scene: Scene) -> str:
    return sentence(scene.plural, scene.adjective, scene.actor, scene.action, scene.place)


def part_of(premise: str) -> str:
    """The one part that may have a premise, whatever the sizes and the seed."""
    return TENTHS[int(hashlib.sha256(premise.encode()).hexdigest(), 16) % len(TENTHS)]


def write(path: Path, part: str, size: int, rng: random.Random) -> None:
    labels = ("entailment", "neutral", "contradiction")
    with open(path, "w", encoding="utf-8") as file:
        for number in range(size):
            scene = draw(rng)
            while part_of(caption(scene)) != part:
                scene = draw(rng)
            premise = caption(scene)
            record = {"gold_label": labels[number % 3]}
            for side, text in (("sentence1", premise), ("sentence2", hypothesis(scene, labels[number % 3], rng))):
                record[side], record[f"{side}_binary_parse"] = text, f"( {text} )"
            file.write(json.dumps(record) + "\n")


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    for part, size in SIZES.items():
        parser.add_argument(f"--{part}", type=int, default=size, help="number of pairs (default %(default)s)")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    for part, name in FILES.items():
        size = getattr(args, part)
        if size < 1:
            print(f"sample_snli: --{part} must be at least 1, got {size}", file=sys.stderr)
            return 1
        write(args.out / name, part, size, random.Random(f"{args.seed} {part}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
