"""One schedule, action by action, in words: what a replay and an ablation show.

Guarantee: each line is an action really taken, and what it added to the two databases. Limit: reads
in a row are told in one line.
"""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from typing import NamedTuple

from workbench.prove.explore import (
    ACTORS,
    AT,
    CRASH,
    LOC,
    MOST_LOC,
    MOST_PUB,
    OVER,
    PUB,
    REFUSE,
    STEP,
    TIME,
    WIDTH,
    Explorer,
)
from workbench.prove.invariants import Finding, Image
from workbench.prove.lives import START
from workbench.prove.report import NoCase
from workbench.prove.stepping import Outcome

FRESH = "fresh"  # everyone is dead, and fresh workers go on


class Taken(NamedTuple):
    """An action, the call it belongs to, what it did, and what that added."""

    action: str
    who: str
    call: str
    did: str
    news: str


class Walk:
    """Takes actions, one after the other, from the start of a cast."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.state = explorer, explorer.first
        self.names = explorer.cast.labels
        self.taken: list[Taken] = []
        self.findings: list[Finding] = []

    def take(self, action: str) -> bool:
        """Take an action if it is possible; it is not when the call has ended."""
        if action == FRESH:
            self.state = self._fresh()
            return True
        choice = self._parse(action)
        for possible, after in self.explorer.actions(self.state):
            if possible == choice:
                self.taken.append(self._describe(action, *choice, after))
                self.state = after
                self.findings += [finding for finding, _, _ in self.explorer.changes]
                self.explorer.changes.clear()
                return True
        return False

    def end(self) -> None:
        """Judge the state reached, and what fresh workers would make of it."""
        self.findings += self.explorer.judge(self.state)
        self.findings += self.explorer.drive(self.state)
        self.findings = list(dict.fromkeys(self.findings))

    def _parse(self, action: str) -> tuple[str, int]:
        if action == TIME:
            return TIME, 0
        for kind in (CRASH, REFUSE, STEP):
            name = action.removeprefix(kind)
            if action.startswith(kind) and name in self.names:
                return kind, self.names.index(name)
        raise NoCase(f"no action {action!r} in the cast {self.explorer.cast.name}")

    def _describe(self, action: str, kind: str, actor: int, after: int) -> Taken:
        if kind == TIME:
            seconds = self.explorer.cast.ticks[self.state & 7]
            return Taken(action, "time", "", f"{seconds:g} s pass", "")
        place = self.state >> ACTORS + WIDTH * actor & OVER
        name, call = self.names[actor], self.explorer.cast.actors[actor][1][place >> AT]
        if kind == CRASH:
            return Taken(action, name, call, "dies here", "")
        outcome = self.explorer.play(actor, self.state, kind == REFUSE)
        did = self.explorer.stage.did + (", refused" if kind == REFUSE else "")
        return Taken(action, name, call, did, self._news(self.state, after, call, outcome))

    def _news(self, before: int, after: int, call: str, outcome: Outcome) -> str:
        """The events and the receipt that an action added, and how its call ended."""
        old, new = self.image(before), self.image(after)
        events = [_event(*row[4:6]) for row in new.events[len(old.events) :]]
        receipts = [f"receipt {row[2]}" for row in new.receipts if row not in old.receipts]
        answer = outcome.answer.strip("!")
        ends = [f"{call} ends" + ("" if answer == "done" else f": {answer}")] if answer else []
        return ", ".join((*events, *receipts, *ends))

    def _fresh(self) -> int:
        """Fresh workers, each command of theirs as one action; the state they leave."""
        given: list[tuple[str, Outcome]] = []
        before, state = self.state, self.state
        self.findings += self.explorer.drive(self.state, given)
        for call, outcome in given:
            contents = MOST_LOC << LOC | MOST_PUB << PUB
            after = state & ~contents | outcome.local << LOC | outcome.publisher << PUB
            self.taken.append(
                Taken(FRESH, FRESH, call, "", self._news(state, after, call, outcome))
            )
            state = after
        self.findings += self.explorer.judge(before)
        return state

    def image(self, state: int) -> Image:
        """The rows of a state."""
        return self.explorer.stage.image(state >> LOC & MOST_LOC, state >> PUB & MOST_PUB)

    def leave(self, folder: str) -> None:
        """Two database files with what stands now."""
        self.explorer.stage.put(self.state >> LOC & MOST_LOC, self.state >> PUB & MOST_PUB)
        self.explorer.stage.leave(folder)

    def lines(self) -> list[str]:
        """The walk for a person."""
        found: list[str] = []
        number = 0
        while number < len(self.taken):
            first, run = self.taken[number], [self.taken[number]]
            while _plain(run[-1]) and number + len(run) < len(self.taken):
                following = self.taken[number + len(run)]
                if (following.who, following.call, _plain(following)) != (*first[1:3], True):
                    break
                run.append(following)
            number += len(run)
            what = ", ".join((run[0].did, *(each.did.removeprefix("reads ") for each in run[1:])))
            words = ": ".join(part for part in (first.call, what) if part)
            line = f"{number:4}  {first.who:<11} {words}"
            found += _told(line, run[-1].news)
        return found


def _event(kind: str, detail: str) -> str:
    """An event in few words; a time counts from the start of all schedules."""
    if kind == "lease_renewed":
        return f"{kind} to {float(detail) - START:g} s"
    return f"{kind} {detail:.32}".strip()


def _plain(taken: Taken) -> bool:
    return taken.did.startswith("reads ") and not taken.news


def _told(line: str, news: str) -> list[str]:
    """A line and what it added, on a line of its own where it is long."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    if not news:
        return [line]
    if len(line) + len(news) + 6 <= width:
        return [f"{line}  ->  {news}"]
    indent = " " * 18
    told = textwrap.wrap(news, width, initial_indent=f"{indent}->  ", subsequent_indent=indent)
    return [line, *told]


def along(walk: Walk, failed: list[Taken]) -> None:
    """Walk the same schedule on another lab: each call as far as it then was, by what it did.

    A lab with a mechanism more makes other statements, so that a count of steps would not do.
    """
    for number, taken in enumerate(failed):
        last = number + 1 == len(failed) or failed[number + 1].action != taken.action
        if taken.action in walk.names:
            if last:
                _until(walk, taken, failed[: number + 1])
        elif taken.action != FRESH or last:
            walk.take(taken.action)


def _until(walk: Walk, goal: Taken, failed: list[Taken]) -> None:
    """Step a call until it has done as often what it did when the other lab switched away."""
    due = Counter((each.who, each.call, each.did) for each in failed)[goal.who, goal.call, goal.did]
    while True:
        done = Counter((each.who, each.call, each.did) for each in walk.taken)
        if done[goal.who, goal.call, goal.did] >= due or not walk.take(goal.action):
            return
        if "ends" in walk.taken[-1].news:
            return
