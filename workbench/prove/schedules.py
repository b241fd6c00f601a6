"""Every schedule of two workers, a canceller, an approver and a reconciler on the lab's own code.

Each cast below is explored to a fixed point; one small cast is also walked without any reduction,
schedule by schedule, and must give the same ends, the same states of the databases and the same
number of schedules. Guarantee: within the bounds that a cast states, no schedule breaks an
invariant. Limit: the atomicity of a transaction is SQLite's; death and power loss test that.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from workbench.prove import lives, pool
from workbench.prove.explore import (
    LOC,
    MOST_LOC,
    MOST_PUB,
    PUB,
    Broken,
    Cast,
    Explorer,
    Search,
)
from workbench.prove.history import INVARIANTS
from workbench.prove.judge import REDUCTION
from workbench.prove.lives import Lab
from workbench.prove.report import NoCase, Result, Settings, Violation, in_order
from workbench.prove.stepping import Log, Stage
from workbench.prove.tasks import Tasks
from workbench.prove.walk import FRESH, Walk

NAME = "schedules"
ONCE, TWICE = ("run",), ("run", "run")
PAST = 31.0  # seconds: one more than a lease
CANCEL, APPROVE = ("canceller", ("cancel",)), ("approver", ("approve",))
RECONCILE = ("reconciler", ("reconcile",))

CASTS = (
    Cast(
        "claims",
        "two workers, two runs each, and a canceller, from a queued job",
        (("w1", TWICE), ("w2", TWICE), CANCEL),
        (PAST, PAST),
        crashes=1,
        states=1_397_428,
    ),
    Cast(
        "everyone",
        "two workers, a canceller, an approver and a reconciler, from a queued job",
        (("w1", TWICE), ("w2", ONCE), CANCEL, APPROVE, RECONCILE),
        (PAST, PAST),
        crashes=1,
        approval=True,
        states=2_905_767,
    ),
    Cast(
        "dispatch",
        "the same five, from a request for approval; the publisher is busy once",
        (("w1", ONCE), ("w2", ONCE), CANCEL, APPROVE, RECONCILE),
        (PAST, PAST, PAST),
        crashes=1,
        refusals=1,
        approval=True,
        before=ONCE,
        states=1_433_540,
    ),
    Cast(
        "approval",
        "two workers, two runs each, and an approver, from a queued job",
        (("w1", TWICE), ("w2", TWICE), APPROVE),
        (PAST,),
        crashes=1,
        approval=True,
        states=339_886,
    ),
    Cast(
        "budget",
        "two workers and a canceller, after two deaths with the report saved",
        (("w1", TWICE), ("w2", ONCE), CANCEL),
        (PAST, PAST),
        crashes=1,
        before=("run!after_verify", "run!before_effect"),
        states=50_046,
    ),
    Cast(
        "twins",
        "two workers of the same name, two runs each",
        (("w1", TWICE), ("w1", TWICE)),
        (PAST, PAST),
        crashes=1,
        states=66_505,
    ),
    Cast(
        "memory",
        "two workers, and the memory forgotten",
        (("w1", ONCE), ("w2", ONCE), ("owner", ("forget",))),
        (PAST,),
        crashes=1,
        states=8_150,
    ),
    Cast(
        "busy",
        "two workers, two runs each, and a canceller; the publisher is busy once",
        (("w1", TWICE), ("w2", ONCE), CANCEL),
        (3.0, PAST),
        refusals=1,
        before=("run!after_verify",),
        states=256_925,
    ),
    Cast(
        "deadline",
        "two workers and a canceller; the deadline passes",
        (("w1", ONCE), ("w2", ONCE), CANCEL),
        (PAST, PAST),
        crashes=1,
        options=(("deadline_seconds", 50.0),),
        states=49_589,
    ),
    Cast(
        "decisions",
        "a worker, an approver, one who rejects, and a canceller",
        (("w1", TWICE), APPROVE, ("rejecter", ("reject",)), CANCEL),
        (PAST,),
        crashes=1,
        approval=True,
        before=ONCE,
        states=20_319,
    ),
    Cast(
        "expiry",
        "two workers, an approver and a reconciler; the approval expires",
        (("w1", TWICE), ("w2", ONCE), APPROVE, RECONCILE),
        (PAST, PAST),
        crashes=1,
        approval=True,
        before=ONCE,
        options=(("approval_seconds", 45.0),),
        states=135_669,
    ),
    Cast(
        "drift",
        "two workers and an approver; the draft is changed by hand, the memory forgotten",
        (("w1", ONCE), ("w2", ONCE), APPROVE, ("hand", ("spoil",)), ("owner", ("forget",))),
        (PAST,),
        approval=True,
        before=ONCE,
        states=24_115,
    ),
    Cast(
        "questions",
        "two workers and two reconcilers, after a yes; the publisher is busy once",
        (("w1", ONCE), ("w2", ONCE), RECONCILE, ("second", ("reconcile",))),
        (PAST, PAST),
        crashes=1,
        refusals=1,
        approval=True,
        before=("run", "approve"),
        states=547_428,
    ),
    Cast(
        "ends",
        "two workers and a canceller; time stops at the very ends of memory, deadline and lease",
        (("w1", ONCE), ("w2", ONCE), CANCEL),
        (20.0, 10.0),
        crashes=1,
        options=(("memory_seconds", 21.0), ("deadline_seconds", 31.0)),
        states=29_267,
    ),
    Cast(
        "yes",
        "two workers and an approver; time stops at the very end of the approval",
        (("w1", TWICE), ("w2", ONCE), APPROVE),
        (20.0,),
        crashes=1,
        approval=True,
        before=ONCE,
        options=(("approval_seconds", 21.0),),
        states=15_168,
    ),
    Cast(
        "retries",
        "a worker, two runs; the publisher is busy twice, a second retry would be at the deadline",
        (("w1", TWICE),),
        (2.0,),
        crashes=1,
        refusals=2,
        options=(("deadline_seconds", 7.0),),
        states=1_631,
    ),
    Cast(
        "last",
        "two workers, after two deaths before the request",
        (("w1", ONCE), ("w2", ONCE)),
        (PAST,),
        crashes=1,
        approval=True,
        before=("run!after_draft", "run!after_verify"),
        states=1_125,
    ),
    Cast(
        "role",
        "two workers, after a yes; time stops where the approver's role ends",
        (("w1", ONCE), ("w2", ONCE)),
        (20.0,),
        crashes=1,
        approval=True,
        before=("run", "approve"),
        options=(("role_seconds", 21.0),),
        states=1_713,
    ),
    Cast(
        "swapped",
        "two workers and a canceller, after a death; the saved receipt is of another report",
        (("w1", ONCE), ("w2", ONCE), CANCEL),
        (PAST,),
        crashes=1,
        before=("run!after_effect", "swap"),
        states=9_676,
    ),
    Cast(
        "conflict",
        "a worker, a canceller and a reconciler, after a death; the receipt is of another report",
        (("w1", ONCE), CANCEL, RECONCILE),
        (PAST,),
        crashes=1,
        approval=True,
        before=("run", "approve", "run!after_effect", "swap"),
        states=812,
    ),
)
SMALL = Cast(
    "unreduced",
    "a worker and a canceller from a verified job",
    (("w1", ONCE), CANCEL),
    (PAST,),
    before=("run!after_verify",),
)
QUICK = (
    *("memory", "decisions", "drift", "deadline", "ends", "yes"),
    *("retries", "last", "role", "swapped", "conflict"),
)
UNREDUCED = "schedules walked without reduction"
# The counts of a run, in this order; those of each cast follow.
COUNTS = (
    "casts",
    "states",
    "schedules they stand for",
    "states of the databases",
    "segments really run",
    UNREDUCED,
)
BY_NAME = {cast.name: cast for cast in (*CASTS, SMALL)}


# --- Without reduction ----------------------------------------------------------------------------


class Plain(NamedTuple):
    """Where a walk without reduction stands: contents, time, and for each actor its calls made
    and everything that its open call was ever answered.
    """

    local: int
    publisher: int
    tick: int
    crashes: int
    places: tuple[tuple[int, Log], ...]


class Walked(NamedTuple):
    """All that a walk saw: schedules, the databases' contents on the way, and those at the ends."""

    schedules: int
    contents: set[tuple[Any, ...]]
    ends: set[tuple[Any, ...]]


class Tree:
    """Every schedule of a cast, one by one: no state is hashed, no position compared.

    Only a segment played before from the very same answers, contents and time is not played again.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.cast = explorer, explorer.cast
        self.stage: Stage = explorer.stage
        self.played: dict[Any, tuple[int, int, bool, Log]] = {}

    def walk(self) -> Walked:
        first = self.explorer.first
        start = first >> LOC & MOST_LOC, first >> PUB & MOST_PUB
        places = tuple((0, ()) for _ in self.cast.actors)
        waiting = [Plain(*start, 0, self.cast.crashes, places)]
        count, seen, ends = 0, set(), set()
        while waiting:
            at = waiting.pop()
            here = self.contents(at.local, at.publisher)
            seen.add(here)
            following = self.following(at)
            if not following:
                count += 1
                ends.add(here)
            waiting += following
        return Walked(count, seen, ends)

    def contents(self, local: int, publisher: int) -> tuple[Any, ...]:
        image = self.stage.image(local, publisher)
        return image[:-1]

    def following(self, at: Plain) -> list[Plain]:
        found = []
        for actor, (call, log) in enumerate(at.places):
            calls = self.cast.actors[actor][1]
            if call == len(calls):
                continue
            local, publisher, over, longer = self.play(actor, calls[call], log, at)
            place = (call + 1, ()) if over else (call, longer)
            found.append(self._with(at, actor, place)._replace(local=local, publisher=publisher))
            if log and at.crashes:
                dead = self._with(at, actor, (call + 1, ()))
                found.append(dead._replace(crashes=at.crashes - 1))
        if found and at.tick < len(self.cast.ticks):
            found.append(at._replace(tick=at.tick + 1))
        return found

    def _with(self, at: Plain, actor: int, place: tuple[int, Log]) -> Plain:
        places = (*at.places[:actor], place, *at.places[actor + 1 :])
        return at._replace(places=places)

    def play(self, actor: int, call: str, log: Log, at: Plain) -> tuple[int, int, bool, Log]:
        key = actor, call, log, at.local, at.publisher, at.tick
        if key not in self.played:
            name, now = self.cast.actors[actor][0], self.explorer.nows[at.tick]
            outcome, longer = self.stage.play(call, name, log, (at.local, at.publisher), now)
            over = outcome.position is None
            self.played[key] = outcome.local, outcome.publisher, over, longer
        return self.played[key]


def cross_check(lab: Lab, cast: Cast) -> tuple[int, list[Violation]]:
    """The same cast with and without reduction: the schedules walked, and whatever differs."""
    explorer = Explorer(lab, cast)
    try:
        search = Search(explorer, lambda _: None)
        counted = search.run().schedules
        walked = Tree(explorer).walk()
        image = explorer.stage.image
        contents, ends = set(), set()
        for number, state in enumerate(search.order):
            here = image(state >> LOC & MOST_LOC, state >> PUB & MOST_PUB)[:-1]
            contents.add(here)
            if search.ends[number] == search.ends[number + 1]:
                ends.add(here)
    finally:
        explorer.close()
    pairs = (
        ("schedules", counted, walked.schedules),
        ("contents", len(contents), len(walked.contents)),
        ("ends", len(ends), len(walked.ends)),
    )
    wrong = [f"{what}: {one} reduced, {two} not" for what, one, two in pairs if one != two]
    if contents != walked.contents or ends != walked.ends:
        wrong.append("the databases' contents are not the same")
    return walked.schedules, [Violation(f"{NAME}/{cast.name}/", REDUCTION, text) for text in wrong]


# --- The instrument -------------------------------------------------------------------------------


def name_of(cast: Cast, broken: Broken) -> str:
    """The replayable name of a schedule: equal neighbours are counted."""
    actions = [*broken.actions, *((FRESH,) if broken.alone else ())]
    parts: list[list[Any]] = []
    for action in actions:
        if parts and parts[-1][0] == action:
            parts[-1][1] += 1
        else:
            parts.append([action, 1])
    return f"{NAME}/{cast.name}/" + ",".join(a if n == 1 else f"{a}*{n}" for a, n in parts)


def parse(name: str) -> tuple[Cast, list[str]]:
    """The cast and the actions that a name stands for; NoCase for one that stands for none."""
    instrument, _, rest = name.partition("/")
    cast_name, _, text = rest.partition("/")
    if instrument != NAME or cast_name not in BY_NAME:
        raise NoCase(f"no cast {cast_name!r}: {', '.join(BY_NAME)}")
    actions: list[str] = []
    for part in text.split(",") if text else ():
        action, _, times = part.partition("*")
        if not (times or "1").isdecimal():
            raise NoCase(f"{part!r} is no action, or one so many times")
        actions += [action] * int(times or 1)
    return BY_NAME[cast_name], actions


def explore_cast(
    lab: Lab, cast: Cast, tell: Callable[[int], None], until: Container[str] = ()
) -> tuple[dict[str, int], list[Violation]]:
    """One cast to its fixed point, or until one of these invariants is broken."""
    explorer = Explorer(lab, cast)
    try:
        cases = Search(explorer, tell).run(until)
    finally:
        explorer.close()
    counts = {
        "states": cases.states,
        "schedules they stand for": cases.schedules,
        "states of the databases": cases.images,
        "segments really run": cases.plays,
        f"states of {cast.name}": cases.states,
    }
    violations = [
        Violation(name_of(cast, broken), broken.finding.invariant, broken.finding.seen)
        for broken in cases.broken
    ]
    return counts, violations


def chosen(settings: Settings) -> list[Cast]:
    """The casts to explore, the largest first, so that the processes end together."""
    approvals = os.path.exists(os.path.join(settings.lab, "approval_runtime.py"))
    casts = [cast for cast in CASTS if not settings.quick or cast.name in QUICK]
    casts = [cast for cast in casts if approvals or not cast.approval]
    return sorted(casts, key=lambda cast: -cast.states)


class Enough(Exception):
    """Another process has found a violation."""


def run(settings: Settings) -> Result:
    """Every cast, spread over the processes, and the cross-check of the reduction."""
    began = time.monotonic()
    casts = chosen(settings)
    queue = Tasks(len(casts) + 1)  # the last: the cross-check
    enough = mmap.mmap(-1, 1)  # shared: with `first`, set by whoever found a violation
    total = sum(cast.states for cast in casts)

    def work(
        index: int, jobs: int, tell: Callable[[int], None]
    ) -> tuple[dict[str, int], list[Violation]]:
        lab, quick = lives.load(settings.lab), settings.quick
        until = INVARIANTS if settings.first else ()

        def told(more: int) -> None:
            tell(more)
            if enough[0]:
                raise Enough

        counts: dict[str, int] = {}
        violations: list[Violation] = []
        with contextlib.suppress(Enough):
            for task in queue:
                told(0)
                if task < len(casts):
                    found, wrong = explore_cast(lab, casts[task], told, until)
                else:
                    walked, wrong = cross_check(lab, SMALL._replace(ticks=()) if quick else SMALL)
                    found = {UNREDUCED: walked}
                for key, count in found.items():
                    counts[key] = counts.get(key, 0) + count
                violations += wrong
                if settings.first and violations:
                    enough[0] = 1
        return counts, violations

    counts: dict[str, int] = {"casts": len(casts)}
    violations: list[Violation] = []
    answers = pool.spread(settings.jobs, work, lambda done: settings.progress(NAME, done, total))
    queue.close()
    for found, wrong in answers:
        for key, count in found.items():
            counts[key] = counts.get(key, 0) + count
        violations += wrong
    labels = (*COUNTS, *(f"states of {cast.name}" for cast in casts))
    seconds = time.monotonic() - began
    return Result(NAME, bounds(casts), in_order(counts, labels), violations, seconds)


def bounds(casts: list[Cast]) -> str:
    """The bounds of a run in words."""
    parts = []
    for cast in casts:
        numbers = {"tick": len(cast.ticks), "death": cast.crashes, "refusal": cast.refusals}
        limits = [f"{n} {what}{'' if n == 1 else 's'}" for what, n in numbers.items() if n]
        parts.append(f"{cast.name} ({cast.words}; {', '.join(limits)})")
    return "; ".join(parts)


def replay(name: str, settings: Settings) -> list[Violation]:
    """Play one schedule again, say what each action did, and leave the databases in `keep`."""
    cast, actions = parse(name)
    lab = lives.load(settings.lab)
    if cast is SMALL and not actions:
        return cross_check(lab, cast)[1]
    explorer = Explorer(lab, cast)
    try:
        walk = Walk(explorer)
        for action in actions:
            if not walk.take(action):
                raise NoCase(f"{action} has nothing left to do")
        walk.end()
        print("\n".join(walk.lines()))
        if settings.keep is not None:
            walk.leave(settings.keep)
    finally:
        explorer.close()
    return [Violation(name, *finding) for finding in walk.findings]
