"""What must hold after a death or a power loss, and after the recovery from it.

Guarantee: judged from the rows of the two databases alone; nothing of the runtime is asked. Limit:
evaluate.py, where the lab has one, adds its verdict: it is the lab's own judge, of other code.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from workbench.prove.lives import BASE, OVER, Facts, Lab, Life, Stage, Tables

Finding = tuple[str, str]  # property, what was seen

HELD = "acknowledged commits are held"
PREFIX = "what is found is a prefix of what was committed"
SOUND = "both files open and pass integrity_check"
ONE = "at most one receipt"
KEPT = "committed rows are kept and finished steps are not redone"
SENT = "after dispatching, recovery sends nothing"
RESTS = "a fresh worker finishes the job or parks it"
AGREES = "a terminal status agrees with checkpoints, events and receipts"
VERDICT = "evaluate.py finds no contradiction"
CLEAR = "an error is one of the lab's own, with its own reason"


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
        return Seen((None, None), [(SOUND, "; ".join(facts.trouble))])
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


def judge(stage: Stage, lab: Lab, life: Life, way: str, before: Facts) -> list[Finding]:
    """After recovery: everything that must hold of a job at rest."""
    after = stage.facts()
    if after.trouble:
        return [(SOUND, "; ".join(after.trouble))]
    findings = [*since(before, after), *_agrees(after), *_verdict(stage, lab)]
    receipts = after.rows("receipts")
    if len(receipts) > 1:
        findings.append((ONE, f"{len(receipts)} receipts"))
    wanted = ("succeeded",) if (life, way) == (BASE, "run") else (*OVER, "reconciling")
    if after.status not in wanted:
        findings.append((RESTS, f"it is {after.status}, {_error(after)}"))
    return findings


def _error(facts: Facts) -> str:
    return f"error {next((row[13] for row in facts.rows('jobs')), None)!r}"


def since(before: Facts, after: Facts) -> list[Finding]:
    """From one look to a later one, with recovery at work between: kept, and nothing sent."""
    findings = kept(before, after)
    old, new = before.rows("receipts"), after.rows("receipts")
    if before.dispatched and old != new:
        findings.append((SENT, f"receipts {old} became {new}"))
    return findings


def kept(before: Facts, after: Facts) -> list[Finding]:
    """Whatever was committed before is still there, and no step is committed twice."""
    findings = []
    old, new = before.rows("events"), after.rows("events")
    if new[: len(old)] != old:
        findings.append((KEPT, "events were changed or removed"))
    for table in ("checkpoints", "receipts"):
        lost = set(before.rows(table)) - set(after.rows(table))
        if lost:
            findings.append((KEPT, f"{table}: changed or removed {sorted(lost)!r:.200}"))
    steps = [row[5] for row in new if row[4] == "step_committed"]
    if len(steps) != len(set(steps)):
        findings.append((KEPT, f"steps committed: {steps}"))
    return findings


def _agrees(facts: Facts) -> list[Finding]:
    kinds = [row[4] for row in facts.rows("events")]
    steps = [row[5] for row in facts.rows("events") if row[4] == "step_committed"]
    receipts = len(facts.rows("receipts"))
    status = facts.status
    done = {row[1] for row in facts.rows("checkpoints")}
    findings: list[Finding] = []
    if done != set(steps):
        findings.append((AGREES, f"checkpoints {sorted(done)}, events {steps}"))
    if status in ("succeeded", "effect_confirmed") and (len(steps) != 4 or receipts != 1):
        findings.append((AGREES, f"{status} with {steps} and {receipts} receipts"))
    certain = status in ("failed", "cancelled", "rejected")
    if certain and receipts and not {"effect_found", "effect_unknown"} & set(kinds):
        findings.append((AGREES, f"{status}, but a receipt stands and no event says so"))
    generations = [row[3] for row in facts.rows("events")]
    if generations != sorted(generations):
        findings.append((AGREES, f"generations {generations}"))
    return findings


def evaluation(lab: Lab, path: str) -> dict[str, Any] | None:
    """What evaluate.py prints on this database; None where the lab has none."""
    if lab.evaluate is None or not hasattr(lab.evaluate, "main"):
        return None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        lab.evaluate.main(["--db", path])
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def _verdict(stage: Stage, lab: Lab) -> Sequence[Finding]:
    answer = evaluation(lab, stage.path)
    if answer is None or answer["verdict"] != "unsound":
        return ()
    checks = [*answer["checks"], *(check for job in answer["jobs"] for check in job["checks"])]
    wrong = [f"{check['name']}: {check['detail']}" for check in checks if not check["passed"]]
    return [(VERDICT, "; ".join(wrong)[:300])]
