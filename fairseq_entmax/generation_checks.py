"""Refusal of impossible generation options, by name."""

import math
from typing import Dict, Iterable

# Powers of a length beyond this leave the range of float64.
MOST_LENPEN = 30
DIVERSE_STRENGTH = 0.5  # fairseq's default


def check_language_model(model, dictionary) -> None:
    """Refuse a language model whose symbols are not those of the outputs: its scores would go to other words."""
    own = getattr(getattr(model, "decoder", None), "dictionary", None)
    if own is not None and own.symbols != dictionary.symbols:
        raise ValueError(
            f"--lm-path: wanted the vocabulary of the outputs, {len(dictionary)} symbols, got one of {len(own)} symbols"
            + (" in another order" if sorted(own.symbols) == sorted(dictionary.symbols) else "")
        )


def refuse_unknown(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are no options of generation."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"{where}: no option of generation is called {', '.join(unknown)}")


def check_numbers(numbers: Dict[str, float]) -> None:
    """Refuse NaN, which passes every comparison, by the option's name."""
    for name, value in numbers.items():
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{name} must be a number, got {value}")


def check_diversity_rate(rate: float) -> float:
    """The rate, 0 when it is off (-1, fairseq's default)."""
    if rate == -1:
        return 0.0
    if not 0 <= rate < math.inf:
        raise ValueError(f"--diversity-rate must be finite and at least 0 (or -1: off), got {rate:g}")
    return rate


def check_options(beam, nbest, min_len, temperature, lenpen, sampling, topk, topp) -> None:
    """Refuse impossible generation options by name."""
    for name, value, low in (("--beam", beam, 1), ("--nbest", nbest, 1), ("--min-len", min_len, 0)):
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"--temperature must be above 0 and finite, got {temperature}")
    if not -MOST_LENPEN <= lenpen <= MOST_LENPEN:
        raise ValueError(f"--lenpen must be within {MOST_LENPEN} of 0, got {lenpen}")
    for name, value in (("--sampling-topk", topk), ("--sampling-topp", topp)):
        if value > 0 and not sampling:
            raise ValueError(f"{name} {value} needs --sampling")
    if topp > 1:
        raise ValueError(f"--sampling-topp must be at most 1, got {topp}")


def check_exact(exact: bool, budget: int, mass: float, sampling: bool, normalized: bool) -> None:
    """Refuse impossible options of exact search and enumeration by name."""
    if budget < 1:
        raise ValueError(f"--exact-budget must be at least 1, got {budget}")
    if not 0 <= mass <= 1:
        raise ValueError(f"--enumerate-mass must be in [0, 1], got {mass}")
    if mass > 0 and normalized:
        raise ValueError(f"--enumerate-mass {mass} lists outputs by their probability: add --unnormalized")
    for name, on in (("--exact-search", exact), (f"--enumerate-mass {mass}", mass > 0)):
        if on and sampling:
            raise ValueError(f"{name} does not go with --sampling")
    if exact and mass > 0:
        raise ValueError(f"--exact-search does not go with --enumerate-mass {mass}: enumeration begins with the best")


def check_groups(groups: int, strength: float, beam: int, others: Dict[str, bool]) -> None:
    """Refuse impossible options of diverse beam search by name.

    Args:
        others: options that do not go with it, with whether they are given.
    """
    if groups <= 0:
        if strength != DIVERSE_STRENGTH:
            raise ValueError(f"--diverse-beam-strength {strength:g} needs --diverse-beam-groups")
        return
    if beam % groups != 0:
        raise ValueError(f"--beam must be divisible by --diverse-beam-groups {groups}, got --beam {beam}")
    if not 0 <= strength < math.inf:
        raise ValueError(f"--diverse-beam-strength must be finite and at least 0, got {strength:g}")
    for name, given in others.items():
        if given:
            raise ValueError(f"--diverse-beam-groups {groups} does not go with {name}")
