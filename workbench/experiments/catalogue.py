"""All experiments, by name, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from .approvals import APPROVALS
from .base import BASE
from .script import Experiment

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (*BASE, *APPROVALS)}


class Unknown(LookupError):
    """There is no experiment of this name; the message lists those there are."""


def chosen(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, each once; all of them without any."""
    for name in names:
        if name not in EXPERIMENTS:
            raise Unknown(f"no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return [each for name, each in EXPERIMENTS.items() if not names or name in names]
