"""`python3 -m workbench ablate NAME`: what one mechanism is for, by a run without it.

First the smallest case that breaks a promise without the mechanism, action by action; then the same
case on the lab as it is. Exit 0 when both go as they must, 1 when not, 2 for usage.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from workbench.prove import ablations, lives, powerloss, schedules, trace
from workbench.prove.ablations import ABLATIONS, BY_NAME, WEAKENINGS, without
from workbench.prove.ablations_base import Ablation
from workbench.prove.bench import Bench, scratch, workshop
from workbench.prove.command import LAB, paragraph
from workbench.prove.explore import Cast, Explorer
from workbench.prove.lives import Lab
from workbench.prove.report import Settings
from workbench.prove.walk import Walk, along

WIDEST = max(len(ablation.name) for ablation in ABLATIONS)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the mechanism to take out (default: list them)"
    )
    parser.add_argument("--lab", default=LAB, metavar="DIR", help="the lab to take it out of")
    parser.set_defaults(parser=parser)


def execute(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        for each in ABLATIONS:
            kind = "approval" if each.approval else "base"
            note = f" ({kind}{', masked' if each.masked else ''})"
            print(f"{each.name:<{WIDEST}}  {each.words}{note}")
        for name, (which, level) in WEAKENINGS.items():
            print(f"{name:<{WIDEST}}  the {which} database with synchronous={level} (power loss)")
        return 0
    folder = os.path.abspath(arguments.lab)
    if arguments.name in WEAKENINGS:
        with workshop():
            return show_setting(folder, arguments.name)
    ablation = BY_NAME.get(arguments.name)
    if ablation is None:
        arguments.parser.error(f"no ablation {arguments.name!r}; without a name they are listed")
        return 2
    with workshop():
        return show(lives.load(folder), ablation)


def show_setting(folder: str, name: str) -> int:
    """A power loss that shows the weaker setting, then every one under the lab's own."""
    if trace.unavailable():
        print(f"skipped: {trace.unavailable()}")
        return 1
    which, level = WEAKENINGS[name]
    print(f"The {which} database with synchronous={level}.")
    found = ablations.by_powerloss(lives.load(folder), (which, level))
    if found is None:
        print("No power loss shows it.")
        return 1
    print(f"The first power loss that shows it: {found.name}\n")
    for wrong in powerloss.replay(found.name, Settings(False, 1, folder)):
        print("\n".join(paragraph(f"VIOLATED {wrong.property}: {wrong.detail}", 4)))
    print("\nEvery power loss in the same life with the lab's own settings:\n")
    bench = Bench(lives.load(folder), scratch(), apart=True)
    held = powerloss.control(powerloss.Scene(bench, lives.BASE, "apart"))
    print("Nothing was violated." if held is None else "VIOLATED " + " ".join(held))
    return 0 if held is None else 1


def show(lab: Lab, ablation: Ablation) -> int:
    """The failing run, then the same with the mechanism in place."""
    print(f"Without it: {ablation.words}.")
    if ablation.masked:
        print("\n".join(paragraph(f"Nothing notices: {ablation.masked}.", 0)))
        return 0
    began = time.monotonic()
    with without(lab, ablation):
        found = ablations.by_schedules(lab, ablation)
        if found is None:
            print("No schedule shows it: see the matrix of `prove ablations`.")
            return 1
        print(f"Found in {time.monotonic() - began:.1f} s, a smallest one: {found.name}")
        cast, actions = schedules.parse(found.name)
        print(f"Cast: {cast.words}.\n" if cast.words else "")
        failed = walked(lab, cast, actions)
    print("\nThe same with the mechanism in place:\n")
    held = walked(lab, cast, failed)
    return 0 if failed.findings and not held.findings else 1


def walked(lab: Lab, cast: Cast, way: Sequence[str] | Walk) -> Walk:
    """Walk these actions, or the way of another walk, and tell how it went."""
    explorer = Explorer(lab, cast)
    try:
        walk = Walk(explorer)
        if isinstance(way, Walk):
            along(walk, way.taken)
        else:
            for action in way:
                walk.take(action)
        walk.end()
    finally:
        explorer.close()
    print("\n".join(walk.lines()))
    for finding in walk.findings:
        print("\n".join(paragraph(f"VIOLATED {finding.invariant}: {finding.seen}", 4)))
    if not walk.findings:
        print("Nothing was violated.")
    return walk
