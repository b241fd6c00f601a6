"""What an instrument is asked and what it answers: the one shape that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class NoCase(LookupError):
    """A name that no violation has; the message says which part of it."""


class Settings(NamedTuple):
    """How to run an instrument.

    quick: the stated subset. jobs: processes. lab: the folder of the lab under test. keep: where a
    replay leaves its databases. progress: told (what, done, total); total 0 means not yet known.
    first: whoever can may stop at the first violation.
    """

    quick: bool
    jobs: int
    lab: str
    keep: str | None = None
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    first: bool = False


class Violation(NamedTuple):
    """One broken promise: the name that `prove replay` takes, the property, what was seen."""

    name: str
    property: str
    detail: str


class Result(NamedTuple):
    """What one instrument did: its bounds in words, its counts, every violation, its time.

    skipped: why it cannot work here. failed: how it broke off, so that it proves nothing.
    table: rows of its own for a person, the first with the names of the columns.
    """

    name: str
    bounds: str
    counts: dict[str, int]
    violations: list[Violation]
    seconds: float
    skipped: str | None = None
    table: tuple[tuple[str, ...], ...] = ()
    failed: str | None = None


def in_order(counts: Mapping[str, int], labels: Sequence[str]) -> dict[str, int]:
    """The counts of these labels, in this order, whichever process counted first."""
    return {label: counts[label] for label in labels if label in counts}
