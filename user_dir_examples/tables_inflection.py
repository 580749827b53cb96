"""The inflection part of `docs/reproduction.md`."""

from typing import Any, Dict, List

from results import of_recipe


def section(found: List[Dict[str, Any]]) -> str:
    """Markdown of the tables; "" without results."""
    if not of_recipe(found, "inflection"):
        return ""
    return "## Inflection (Peters, Niculae and Martins, 2019)"
