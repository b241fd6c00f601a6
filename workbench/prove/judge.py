"""What must hold after a death or a power loss, and after the recovery from it.

Guarantee: judged from the rows of the two databases alone, by the invariants and by the lab's own
evaluate.py, which share no code. Limit: as theirs; what no row records is not judged.
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import NamedTuple

from workbench.prove import invariants
from workbench.prove.lives import BASE, Facts, Lab, Life, Stage, Tables

Finding = tuple[str, str]  # property, what was seen

HELD = "acknowledged-commits-held"
PREFIX = "prefix-of-commits"
VERDICT = "evaluate-agrees"
CLEAR = "errors-are-clear"
SAME = "copy-is-death"
CAUGHT = "instrument-can-fail"
ACCOUNTED = "every-ablation-is-accounted-for"
REDUCTION = "reduction-loses-nothing"
ALONE = "log-folded-in-alone"
# What these instruments check beside the invariants, one testable line each.
PROPERTIES = {
    HELD: "whatever a commit acknowledged is there after the death or the power loss",
    PREFIX: "each database is in a state that its commits went through, or the one under way",
    VERDICT: "evaluate.py finds no contradiction in what recovery leaves",
    CLEAR: "a failing disk gives one of the lab's own errors, with the disk's own reason",
    SAME: "files copied while a process stands at a call are what SIGKILL leaves there",
    ALONE: "the database file is written only by a process that has all its locks for itself",
    CAUGHT: "settings that are too weak are seen to break a promise",
    ACCOUNTED: "an instrument notices each ablation; none notices one that is listed as masked",
    REDUCTION: "a small cast walked schedule by schedule has the same ends, contents and number",
}


class History:
    """The states that the commits of one life went through, in order, for each database."""

    def __init__(self) -> None:
        self.local: list[Tables | None] = [None]
        self.publisher: list[Tables | None] = [None]

    def add(self, facts: Facts) -> None:
        """A commit was acknowledged, with this content."""
        for states, found in ((self.local, facts.local), (self.publisher, facts.publisher)):
            if found != states[-1]:
                states.append(found)

    @property
    def reached(self) -> tuple[int, int]:
        """How many states each database has gone through."""
        return len(self.local) - 1, len(self.publisher) - 1

    def place(self, facts: Facts) -> tuple[int | None, int | None]:
        """Which state each database is in; None for one that no commit made."""
        places = []
        for states, found in ((self.local, facts.local), (self.publisher, facts.publisher)):
            places.append(states.index(found) if found in states else None)
        return places[0], places[1]


class Seen(NamedTuple):
    """The verdict on one image before recovery: where it stands, and what is wrong with it."""

    places: tuple[int | None, int | None]
    findings: list[Finding]


def look(facts: Facts, history: History, acknowledged: tuple[int, int]) -> Seen:
    """Opened as it was left: sound, a prefix, and nothing acknowledged is missing."""
    if facts.trouble:
        return Seen((None, None), [(invariants.INTEGRITY, "; ".join(facts.trouble))])
    places = history.place(facts)
    return Seen(places, held(places, acknowledged))


def held(places: tuple[int | None, int | None], acknowledged: tuple[int, int]) -> list[Finding]:
    """No state before the last acknowledged one, and none beyond the commit after it."""
    findings = []
    for which, place, least in zip(("local", "publisher"), places, acknowledged, strict=True):
        if place is None:
            findings.append((PREFIX, f"{which}: its content is that of no commit"))
        elif place < least:
            findings.append((HELD, f"{which}: state {place}, but {least} was acknowledged"))
        elif place > least + 1:
            findings.append((PREFIX, f"{which}: state {place}, but only {least} was begun"))
    return findings


class Court:
    """Judges what recovery leaves. Equal ends are judged once: the clock stands still."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.known: dict[Facts, list[Finding]] = {}

    def judge(self, stage: Stage, life: Life, way: str, before: Facts) -> list[Finding]:
        """After recovery: everything that must hold of a job at rest."""
        after = stage.facts()
        findings: list[Finding] = [*invariants.judge_recovery(before.image, after.image)]
        if (life, way) == (BASE, "run") and after.status != "succeeded":
            error = next((row[13] for row in after.image.jobs), None)
            findings.append((invariants.RESTS, f"it is {after.status}, error {error!r}"))
        if after not in self.known:
            self.known[after] = [*invariants.judge(after.image), *self._verdict(stage)]
        return findings + self.known[after]

    def _verdict(self, stage: Stage) -> list[Finding]:
        if self.lab.evaluate is None:
            return []
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.lab.evaluate.main(["--db", stage.path])
        answer = json.loads(out.getvalue())
        if answer["verdict"] != "unsound":
            return []
        checks = [*answer["checks"], *(check for job in answer["jobs"] for check in job["checks"])]
        wrong = [f"{check['name']}: {check['detail']}" for check in checks if not check["passed"]]
        return [(VERDICT, "; ".join(wrong)[:300])]
