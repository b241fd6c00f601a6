"""The lab without one mechanism: which instrument notices, on which smallest case, how fast.

Guarantee: every ablation is searched for by death at the boundaries (single deaths, then pairs),
by every schedule of small casts and by death at the system calls, each until the first broken
invariant; one that nothing notices must be marked as masked, with the reason, and none that is so
marked may be noticed. Limit: a cell says what was found within these small bounds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from workbench.prove import boundaries, lives, pool, powerloss, schedules, sweep, syscalls, trace
from workbench.prove.ablations_approval import APPROVAL_ABLATIONS
from workbench.prove.ablations_base import BASE_ABLATIONS, Ablation
from workbench.prove.bench import FIRST, Bench, LifeFailed, image_key, scratch
from workbench.prove.boundaries import Life
from workbench.prove.explore import Cast, Explorer, Search
from workbench.prove.invariants import RESTS
from workbench.prove.judge import ACCOUNTED
from workbench.prove.lives import Lab
from workbench.prove.powerloss import CONTROLS
from workbench.prove.report import NoCase, Result, Settings, Violation
from workbench.prove.tasks import Tasks

NAME = "ablations"
ABLATIONS = (*BASE_ABLATIONS, *APPROVAL_ABLATIONS)
BY_NAME = {ablation.name: ablation for ablation in ABLATIONS}
WEAKENINGS = {f"{which}-synchronous-{level.lower()}": (which, level) for which, level in CONTROLS}
PAST = schedules.PAST
ONCE, TWICE = ("run",), ("run", "run")
# Small casts, smallest first: between them they hold every kind of action and of interference.
BASE_CASTS = (
    Cast("stop", "", (("w1", ONCE), ("canceller", ("cancel",))), (PAST,), crashes=1),
    Cast("pair", "", (("w1", ONCE), ("w2", ONCE)), (PAST,), crashes=1),
    Cast("twin", "", (("w1", ONCE), ("w1", ONCE)), (PAST,), crashes=1),
    Cast(
        "late",
        "",
        (("w1", ONCE), ("canceller", ("cancel",))),
        (PAST, PAST),
        crashes=1,
        options=(("deadline_seconds", 50.0),),
    ),
    Cast("owner", "", (("w1", ONCE), ("owner", ("forget",))), (PAST,), crashes=1),
    Cast(
        "refusal",
        "",
        (("w1", TWICE), ("w2", ONCE)),
        (3.0, PAST),
        refusals=1,
        before=("run!after_verify",),
    ),
    Cast(
        "spent",
        "",
        (("w1", TWICE), ("canceller", ("cancel",))),
        (PAST, PAST),
        crashes=1,
        before=("run!after_verify", "run!before_effect"),
    ),
    schedules.BY_NAME["retries"],
    schedules.BY_NAME["swapped"],
)
ASKED, SAID_YES = ("run",), ("run", "approve")
APPROVAL_CASTS = (
    Cast(
        "sent",
        "",
        (("w1", ONCE), schedules.RECONCILE, schedules.CANCEL),
        (PAST,),
        crashes=1,
        refusals=1,
        approval=True,
        before=SAID_YES,
    ),
    Cast(
        "old",
        "",
        (("w1", TWICE), schedules.APPROVE),
        (PAST, PAST),
        crashes=1,
        approval=True,
        before=ASKED,
        options=(("approval_seconds", 45.0),),
    ),
    Cast(
        "asking",
        "",
        (("w1", ONCE), ("w2", ONCE)),
        (PAST,),
        approval=True,
        before=("run!after_draft",),
    ),
    Cast(
        "confirmed",
        "",
        (("w1", ONCE), schedules.RECONCILE),
        (PAST, PAST),
        crashes=1,
        approval=True,
        before=SAID_YES,
        options=(("approval_seconds", 45.0),),
    ),
    Cast(
        "revoking",
        "",
        (("w1", ONCE), ("owner", ("forget",))),
        (PAST,),
        approval=True,
        before=SAID_YES,
    ),
    *(schedules.BY_NAME[name] for name in ("last", "role", "conflict", "drift", "decisions")),
)
schedules.BY_NAME.update({cast.name: cast for cast in (*BASE_CASTS, *APPROVAL_CASTS)})
SWEPT = {False: (boundaries.BASE, boundaries.REVOKED), True: (boundaries.APPROVAL,)}
MISTAKE = re.compile(r"\b(TypeError|AttributeError|NameError|UnboundLocalError)\b")
QUICK = (
    "no-guard",
    "guard-without-generation",
    "event-split",
    "generation-in-key",
    "binding-unchecked",
    "absence-as-proof",
)


class Caught(NamedTuple):
    """The first case in which an instrument saw that something is missing."""

    violation: Violation
    seconds: float


Hunt = Callable[[Lab, Ablation], Violation | None]


@contextlib.contextmanager
def without(lab: Lab, ablation: Ablation) -> Iterator[None]:
    """The lab, in this process, with the mechanism taken out."""
    missing = object()
    undo: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement in ablation.patches(lab):
            undo.append((owner, name, vars(owner).get(name, missing)))
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, real in reversed(undo):
            if real is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, real)


# --- One ablation, one instrument -----------------------------------------------------------------


def by_schedules(lab: Lab, ablation: Ablation) -> Violation | None:
    """The first cast with a schedule that breaks an invariant, and a smallest one of it."""
    for cast in APPROVAL_CASTS if ablation.approval else BASE_CASTS:
        explorer = Explorer(lab, cast)
        try:
            broken = Search(explorer, lambda _: None).run(until=ablation.shown).broken
        finally:
            explorer.close()
        for each in broken:
            if each.finding.invariant in ablation.shown:
                return Violation(schedules.name_of(cast, each), *each.finding)
    return None


def by_sweep(lab: Lab, ablation: Ablation) -> Violation | None:
    """The first boundary, then the first pair of them, after which something is wrong."""
    yard = sweep.Yard(lab)
    try:
        for life in SWEPT[ablation.approval]:
            found = _swept(yard, life, ablation)
            if found:
                return found
        return None
    finally:
        yard.close()


def _swept(yard: sweep.Yard, life: Life, ablation: Ablation) -> Violation | None:
    try:
        shots = yard.film_life(life)
    except LifeFailed as error:
        return Violation(f"{sweep.NAME}/{life.name}", RESTS, str(error))
    films = []
    for number, key, shot in sweep.distinct(life.name, shots):
        for way in reversed(life.ways):  # `run` last: its film is what second deaths are taken from
            name = f"{life.name}/{number}/{way}"
            play = yard.film if way == "run" else yard.end
            film = play(life, way, shot.files, key[2])
            for finding in ablation.of(film.findings):
                return Violation(f"{sweep.NAME}/{name}", *finding)
        films.append((name, film))
    known: set[sweep.Key] = set()
    for name, film in films:
        for number, key, shot in sweep.distinct(life.name, film.shots):
            if key not in known:
                known.add(key)
                findings = yard.end(life, "run", shot.files, key[2]).findings
                for finding in ablation.of(findings):
                    return Violation(f"{sweep.NAME}/{name}/{number}/run", *finding)
    return None


def by_syscalls(lab: Lab, ablation: Ablation) -> Violation | None:
    """The first system call at which a death leaves something that recovery cannot mend."""
    folder = scratch()
    try:
        bench = Bench(lab._replace(evaluate=None), folder)  # the invariants alone decide
        life = lives.APPROVAL if ablation.approval else lives.BASE
        try:
            frames = bench.film(life).frames
        except LifeFailed as error:
            return Violation(f"{syscalls.NAME}/{life.name}", RESTS, str(error))
        known: set[bytes] = set()
        for frame in frames:
            key = image_key(frame.files)
            for way in () if key in known else syscalls.WAYS:
                findings = bench.end(life, way, frame.files, FIRST)
                for finding in ablation.of(findings):
                    name = f"{syscalls.NAME}/{life.name}/{way}/{frame.label}"
                    return Violation(name, *finding)
            known.add(key)
        return None
    finally:
        shutil.rmtree(folder)


HUNTS: dict[str, Hunt] = {
    schedules.NAME: by_schedules,
    sweep.NAME: by_sweep,
    syscalls.NAME: by_syscalls,
}


def by_powerloss(lab: Lab, control: tuple[str, str]) -> Violation | None:
    """The first power loss that shows a weaker setting of `synchronous`."""
    folder = scratch()
    try:
        bench = Bench(lab, folder, apart=True)
        try:
            scene = powerloss.Scene(bench, lives.BASE, "apart", control)
        except LifeFailed as error:
            return Violation(f"{powerloss.NAME}/base/apart", RESTS, str(error))
        found = powerloss.control(scene)
        return None if found is None else Violation(found[0], *found[1].split(": ", 1))
    finally:
        shutil.rmtree(folder)


# --- The matrix -----------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One thing to look for with one instrument."""

    name: str
    instrument: str
    hunt: Callable[[Lab], Violation | None]


def cells(settings: Settings) -> list[Cell]:
    """Everything to be done: the slow cells first, so that the processes end together."""
    approvals = os.path.exists(os.path.join(settings.lab, "approval_runtime.py"))
    traced = trace.unavailable() is None
    found = []
    for instrument, hunt in HUNTS.items():
        if instrument == syscalls.NAME and (settings.quick or not traced):
            continue
        for ablation in ABLATIONS:
            if (ablation.approval and not approvals) or (
                settings.quick and ablation.name not in QUICK
            ):
                continue
            found.append(Cell(ablation.name, instrument, _hunting(hunt, ablation)))
    if traced and not settings.quick:
        for name, control in WEAKENINGS.items():
            hunt_weak = functools.partial(by_powerloss, control=control)
            found.append(Cell(name, powerloss.NAME, hunt_weak))
    return found


def _hunting(hunt: Hunt, ablation: Ablation) -> Callable[[Lab], Violation | None]:
    def run(lab: Lab) -> Violation | None:
        with without(lab, ablation):
            return hunt(lab, ablation)

    return run


def run(settings: Settings) -> Result:
    """The whole matrix."""
    began = time.monotonic()
    todo = cells(settings)
    queue = Tasks(len(todo))

    def work(index: int, jobs: int, tell: Callable[[int], None]) -> dict[tuple[str, str], Caught]:
        lab = lives.load(settings.lab)
        found = {}
        for number in queue:
            cell, start = todo[number], time.monotonic()
            violation = cell.hunt(lab)
            if violation is not None:
                found[cell.name, cell.instrument] = Caught(violation, time.monotonic() - start)
            tell(1)
        return found

    caught: dict[tuple[str, str], Caught] = {}
    try:
        for part in pool.spread(
            settings.jobs, work, lambda done: settings.progress(NAME, done, len(todo))
        ):
            caught.update(part)
    finally:
        queue.close()
    names = list(dict.fromkeys(cell.name for cell in todo))
    return Result(
        NAME,
        _bounds(todo),
        _counts(names, todo, caught),
        account(names, caught),
        time.monotonic() - began,
        table=matrix(names, todo, caught),
    )


def _bounds(todo: list[Cell]) -> str:
    instruments = ", ".join(dict.fromkeys(cell.instrument for cell in todo))
    why = trace.unavailable()
    also = f"; {syscalls.NAME} and {powerloss.NAME} skipped: {why}" if why else ""
    return (
        f"each until the first broken invariant, by {instruments}; casts of one or two workers"
        f"{also}"
    )


def _counts(
    names: list[str], todo: list[Cell], caught: dict[tuple[str, str], Caught]
) -> dict[str, int]:
    counts = {"ablations": len(names), "caught": len({name for name, _ in caught})}
    counts["masked"] = sum(1 for name in names if name in BY_NAME and BY_NAME[name].masked)
    for instrument in dict.fromkeys(cell.instrument for cell in todo):
        counts[f"caught by {instrument}"] = sum(1 for _, by in caught if by == instrument)
    return counts


def account(names: list[str], caught: dict[tuple[str, str], Caught]) -> list[Violation]:
    """Every ablation is noticed by something, or is masked and noticed by nothing.

    One that is noticed by a mistake in its own code shows nothing of the mechanism.
    """
    wrong = []
    for name in names:
        masked = name in BY_NAME and BY_NAME[name].masked
        seen = [each for (which, _), each in caught.items() if which == name]
        for each in seen:
            if MISTAKE.search(each.violation.detail):
                wrong.append((name, f"its own code fails: {each.violation.detail}"))
        if not seen and not masked:
            wrong.append((name, "no instrument noticed that it is missing"))
        if seen and masked:
            first = seen[0].violation
            wrong.append(
                (name, f"it is listed as masked, but {first.name} breaks {first.property}")
            )
    return [Violation(f"{NAME}/{name}", ACCOUNTED, text) for name, text in wrong]


def matrix(
    names: list[str], todo: list[Cell], caught: dict[tuple[str, str], Caught]
) -> tuple[tuple[str, ...], ...]:
    """Rows of text: the ablation, each instrument's answer, and the smallest case."""
    instruments = list(dict.fromkeys(cell.instrument for cell in todo))
    tried = {(cell.name, cell.instrument) for cell in todo}
    rows = [("ablation", *instruments, "property", "smallest case")]
    for name in names:
        answers = []
        for instrument in instruments:
            one = caught.get((name, instrument))
            no = "no" if (name, instrument) in tried else "-"
            answers.append(f"{one.seconds:.1f} s" if one else no)
        seen = [caught[name, each] for each in instruments if (name, each) in caught]
        if seen:
            rows.append((name, *answers, seen[0].violation.property, seen[0].violation.name))
        else:
            masked = BY_NAME[name].masked if name in BY_NAME else ""
            rows.append((name, *answers, "masked" if masked else "", masked))
    return tuple(rows)


def replay(name: str, settings: Settings) -> list[Violation]:
    """The failing run of one ablation again: its smallest schedule, or else its deaths."""
    which = name.partition("/")[2]
    lab = lives.load(settings.lab)
    if which in WEAKENINGS:
        found = by_powerloss(lab, WEAKENINGS[which])
        return _unseen(name) if found is None else powerloss.replay(found.name, settings)
    ablation = BY_NAME.get(which)
    if ablation is None:
        raise NoCase("`ablate` without a name lists the ablations")
    with without(lab, ablation):
        for instrument, hunt in HUNTS.items():
            if instrument == syscalls.NAME and trace.unavailable():
                continue
            found = hunt(lab, ablation)
            if found is not None:
                print(f"     {found.name}")
                again: list[Violation] = REPLAYS[instrument](found.name, settings)
                return again
    return [] if ablation.masked else _unseen(name)


REPLAYS = {module.NAME: module.replay for module in (schedules, sweep, syscalls)}


def _unseen(name: str) -> list[Violation]:
    return [Violation(name, ACCOUNTED, "no instrument noticed that it is missing")]
