"""The states that a cast of calls can reach on one job, searched to a fixed point.

A state is both databases, the time, what is left of deaths and refusals, and where each call
stands. An action is one segment of one call (see stepping), the death of a call, a refusal by a
busy publisher, or a tick of the clock. Each state is judged, and from each one fresh workers must
reach an end.

Guarantee: equal states are explored once, every action of every state is taken, and the schedules
that the states stand for are counted. Limit: a death inside a transaction is one just before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from workbench.prove import invariants
from workbench.prove.invariants import Finding, Image
from workbench.prove.lives import START, Lab
from workbench.prove.stepping import (
    HANDS,
    LOCAL,
    PUBLISHER,
    SLOW,
    Log,
    Outcome,
    Stage,
    Stuck,
    later,
)


class Cast(NamedTuple):
    """Who takes part, and the bounds.

    actors: name and calls, in order; a call that dies is followed by the next one. ticks: seconds.
    before: calls made alone first. states: how many there are, for the progress shown.
    """

    name: str
    words: str
    actors: tuple[tuple[str, tuple[str, ...]], ...]
    ticks: tuple[float, ...]
    crashes: int = 0
    refusals: int = 0
    approval: bool = False
    before: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()
    states: int = 0

    @property
    def labels(self) -> list[str]:
        """What schedules call the actors: their names, and a namesake's with its number."""
        names = [name for name, _ in self.actors]
        before = [names[:at].count(name) for at, name in enumerate(names)]
        return [f"{n}-{k + 1}" if k else n for n, k in zip(names, before, strict=True)]


# A state is one integer: ticks, deaths left, refusals left, contents of the publisher and of the
# local database, then 16 bits for each actor: position (0: between calls) and call.
TICK, DEATHS, REFUSALS, PUB, LOC, ACTORS = 0, 3, 5, 7, 15, 35
WIDTH, AT, OVER = 16, 13, 0xFFFF
SMALL, MOST_PUB, MOST_LOC = 3, 0xFF, 0xFFFFF
BOTH = (MOST_LOC << LOC | MOST_PUB << PUB) >> PUB
STEP, CRASH, REFUSE, TIME = "", "crash-", "refuse-", "tick"


# How a command may end that nobody disturbs; a request may be expired or no longer what is stored.
ANSWERS = {"run": ("done",), "approve": ("done", "Expired", "Conflict"), "reconcile": ("done",)}


class Broken(NamedTuple):
    """A finding, and the actions that lead to it from the start; alone: then fresh workers."""

    finding: Finding
    actions: tuple[str, ...]
    alone: bool = False


class Cases(NamedTuple):
    """What an exploration covered. schedules: how many the states stand for; 0 when cut short."""

    states: int
    schedules: int
    images: int
    plays: int
    broken: list[Broken]


class Explorer:
    """The states of one cast on one lab."""

    def __init__(self, lab: Lab, cast: Cast) -> None:
        self.cast = cast
        self.stage = Stage(lab, approval=cast.approval, options=dict(cast.options))
        self.logs: list[list[Log]] = [[()] for _ in cast.actors]
        self.touches = [[LOCAL] for _ in cast.actors]
        self.places: list[dict[int, int]] = [{} for _ in cast.actors]
        self.moves: dict[int, int] = {}
        self.refused: dict[int, int] = {}
        self.changes: list[tuple[Finding, int, str]] = []  # and the state before, and the action
        self.driven: dict[tuple[str, int, int, float], Outcome] = {}
        self.nows: list[float] = []
        self.given: set[Finding] = set()  # wrong from the start by a hand, not by the lab
        self.first = self._begin()

    def _begin(self) -> int:
        state, now = self.stage.start, START
        for call in self.cast.before:
            outcome, _ = self.stage.play(call, "w0", (), state, now, pace=0.0)
            state = outcome.local, outcome.publisher
            if call in HANDS:
                self.given.update(invariants.judge(self.stage.image(*state)))
            if outcome.answer == "died":
                now = later(now)
        self.nows = [now + 1]
        for seconds in self.cast.ticks:
            self.nows.append(self.nows[-1] + seconds)
        return (
            self.cast.crashes << DEATHS
            | self.cast.refusals << REFUSALS
            | state[1] << PUB
            | state[0] << LOC
        )

    def close(self) -> None:
        self.stage.close()

    # Moves.

    def after(self, actor: int, place: int) -> int:
        """The place after this call is over: between it and the next, or over."""
        call = (place >> AT) + 1
        return call << AT if call < len(self.cast.actors[actor][1]) else OVER

    def play(self, actor: int, state: int, refuse: bool = False) -> Outcome:
        """Really run an actor's next segment in a state."""
        place = state >> ACTORS + WIDTH * actor & OVER
        name, calls = self.cast.actors[actor]
        at = place & (1 << AT) - 1
        both = state >> LOC & MOST_LOC, state >> PUB & MOST_PUB
        now = self.nows[state & 7]
        log, call = self.logs[actor][at], calls[place >> AT]
        outcome, longer = self.stage.play(call, name, log, both, now, refuse=refuse)
        found: list[Finding] = []
        if outcome.answer.startswith("!"):
            seen = f"{name} {call}: {outcome.answer[1:]}"
            found = [Finding(invariants.RESTS, seen)]
        if outcome.position is not None and outcome.position.id not in self.places[actor]:
            self.places[actor][outcome.position.id] = len(self.logs[actor])
            self.logs[actor].append(longer)
            self.touches[actor].append(outcome.position.touches)
        if call not in HANDS and (outcome.local, outcome.publisher) != both:
            before, after = self.stage.image(*both), self.stage.image(*outcome[2:])
            found += invariants.judge_change(before, after)
        action = (REFUSE if refuse else STEP) + self.cast.labels[actor]
        self.changes += [(finding, state, action) for finding in found]
        return outcome

    def move(self, actor: int, state: int, refuse: bool = False) -> int:
        """What a step changes in a state, as a mask; a segment depends on the one database that it
        touches, on the time and on where the call stands, and is run once for each of these.
        """
        place = state >> ACTORS + WIDTH * actor & OVER
        local = self.touches[actor][place & (1 << AT) - 1] == LOCAL
        content = state >> LOC & MOST_LOC if local else state >> PUB & MOST_PUB
        key = (content << WIDTH | place) << 6 | (state & 7) << 3 | actor
        known = self.refused if refuse else self.moves
        if key not in known:
            outcome = self.play(actor, state, refuse)
            if outcome.position is None:
                new = self.after(actor, place)
            else:
                at = self.places[actor][outcome.position.id]
                new = place >> AT << AT | at
                if at >= 1 << AT:
                    raise Stuck("more positions than a state can hold")
            if outcome.local > MOST_LOC or outcome.publisher > MOST_PUB:
                raise Stuck("more contents than a state can hold")
            known[key] = (
                (place ^ new) << ACTORS + WIDTH * actor
                | ((state >> LOC & MOST_LOC) ^ outcome.local) << LOC
                | ((state >> PUB & MOST_PUB) ^ outcome.publisher) << PUB
            )
        return known[key]

    def successors(self, state: int) -> list[int]:
        """The states that one action leads to; `actions` names them, in the same order."""
        return [after for _, after in self.actions(state)]

    def actions(self, state: int) -> Iterator[tuple[tuple[str, int], int]]:
        """Every action possible in a state, and where it leads."""
        alive = False
        for actor in range(len(self.cast.actors)):
            shift = ACTORS + WIDTH * actor
            place = state >> shift & OVER
            if place == OVER:
                continue
            alive = True
            yield (STEP, actor), state ^ self.move(actor, state)
            at = place & (1 << AT) - 1
            if not at:
                continue
            if state >> DEATHS & SMALL:
                dead = (place ^ self.after(actor, place)) << shift
                yield (CRASH, actor), (state ^ dead) - (1 << DEATHS)
            if state >> REFUSALS & SMALL and self.touches[actor][at] == PUBLISHER:
                yield (REFUSE, actor), (state ^ self.move(actor, state, True)) - (1 << REFUSALS)
        if alive and state & 7 < len(self.cast.ticks):
            yield (TIME, 0), state + 1

    # Judging.

    def judge(self, state: int) -> list[Finding]:
        """The invariants on what the two databases hold in a state."""
        return self._judge(self.stage.image(state >> LOC & MOST_LOC, state >> PUB & MOST_PUB))

    def _judge(self, image: Image) -> list[Finding]:
        return [finding for finding in invariants.judge(image) if finding not in self.given]

    def drive(self, state: int, given: list[tuple[str, Outcome]] | None = None) -> list[Finding]:
        """Everyone is dead: fresh workers, slow but steady, go on until the job is at rest.

        given: takes each command and what came of it.
        """
        begun = state >> LOC & MOST_LOC, state >> PUB & MOST_PUB
        local, publisher = begun
        now, last = self.nows[state & 7], ""
        found: list[Finding] = []
        for _ in range(8):
            image = self.stage.image(local, publisher)
            call = next_call(image.status, last)
            if call is None:
                break
            now, last = later(now), call
            key = call, local, publisher, now
            if key not in self.driven:
                outcome, _ = self.stage.play(call, "w9", (), (local, publisher), now, pace=SLOW)
                self.driven[key] = outcome
            outcome = self.driven[key]
            if given is not None:
                given.append((call, outcome))
            local, publisher = outcome.local, outcome.publisher
            if outcome.answer not in ANSWERS[call]:
                seen = f"alone, a fresh {call} ends in {outcome.answer.strip('!')}"
                found.append(Finding(invariants.RESTS, seen))
        after = self.stage.image(local, publisher)
        found += self._judge(after)
        return found + invariants.judge_recovery(self.stage.image(*begun), after)


def next_call(status: str | None, last: str) -> str | None:
    """What a person does next with a job of this status; None when it is at rest."""
    if status in invariants.OPEN:
        return "run"
    if status == "waiting_approval":
        return "run" if last == "approve" else "approve"
    if status == "reconciling" and last != "reconcile":
        return "reconcile"
    return None


class Search:
    """Breadth first, so that the first schedule found to break something is a smallest one."""

    def __init__(self, explorer: Explorer, tell: Callable[[int], None]) -> None:
        self.explorer, self.tell = explorer, tell
        self.order = [explorer.first]
        self.index = {explorer.first: 0}
        self.parents = array("I", [0])
        self.edges = array("I")
        self.ends = array("Q", [0])
        self.judged: set[int] = set()
        self.rested: set[int] = set()
        self.broken: dict[str, Broken] = {}

    def run(self, until: Container[str] = ()) -> Cases:
        """To the fixed point, or until one of these invariants is broken."""
        done = 0
        while done < len(self.order):
            state = self.order[done]
            self.look(state, done)
            for finding, before, action in self.explorer.changes:
                self.note(finding, self.index[before], action=action)
            self.explorer.changes.clear()
            if any(invariant in until for invariant in self.broken):
                break
            for after in self.explorer.successors(state):
                known = self.index.get(after)
                if known is None:
                    known = self.index[after] = len(self.order)
                    self.order.append(after)
                    self.parents.append(done)
                self.edges.append(known)
            self.ends.append(len(self.edges))
            done += 1
            if done % 10000 == 0:
                self.tell(10000)
        self.tell(done % 10000)
        whole = done == len(self.order)
        images, plays = len(self.judged), self.explorer.stage.plays
        return Cases(done, self.schedules() if whole else 0, images, plays, self.sorted())

    def look(self, state: int, number: int) -> None:
        """Judge what was not judged yet."""
        both = state >> PUB & BOTH
        if both not in self.judged:
            self.judged.add(both)
            for finding in self.explorer.judge(state):
                self.note(finding, number)
        timed = both << 3 | state & 7
        if timed not in self.rested:
            self.rested.add(timed)
            for finding in self.explorer.drive(state):
                self.note(finding, number, alone=True)

    def note(self, finding: Finding, number: int, alone: bool = False, action: str = "") -> None:
        """Keep the smallest schedule for each invariant."""
        old = self.broken.get(finding.invariant)
        path = (*self.path(number), *((action,) if action else ()))
        if old is None or (old.alone, len(old.actions)) > (alone, len(path)):
            self.broken[finding.invariant] = Broken(finding, path, alone)

    def sorted(self) -> list[Broken]:
        return sorted(self.broken.values(), key=lambda each: (each.alone, len(each.actions)))

    def path(self, number: int) -> tuple[str, ...]:
        """The actions from the start to a state."""
        names = self.explorer.cast.labels
        actions: list[str] = []
        while number:
            before = self.parents[number]
            for (kind, actor), after in self.explorer.actions(self.order[before]):
                if after == self.order[number]:
                    actions.append(TIME if kind == TIME else kind + names[actor])
                    break
            number = before
        return tuple(reversed(actions))

    def schedules(self) -> int:
        """How many different schedules lead from the start to an end: paths of the graph."""
        waiting = array("I", bytes(4 * len(self.order)))
        for edge in self.edges:
            waiting[edge] += 1
        ways = [0] * len(self.order)
        ways[0], total, seen, ready = 1, 0, 0, [0]
        while ready:
            number = ready.pop()
            count, ways[number] = ways[number], 0
            seen += 1
            edges = self.edges[self.ends[number] : self.ends[number + 1]]
            if not edges:
                total += count
            for edge in edges:
                ways[edge] += count
                waiting[edge] -= 1
                if not waiting[edge]:
                    ready.append(edge)
        if seen != len(self.order):
            raise Stuck("the states form a cycle: their schedules cannot be counted")
        return total
