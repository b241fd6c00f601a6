"""`python3 -m workbench ablate NAME`: what one mechanism is for, by a run without it.

First the smallest case that breaks a promise without the mechanism, action by action; then the same
case on the lab as it is. Exit 0 when both go as they must, 1 when not, 2 for usage.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

from workbench.prove import ablations, lives, schedules
from workbench.prove.ablations import ABLATIONS, BY_NAME, without
from workbench.prove.ablations_base import Ablation
from workbench.prove.command import LAB, paragraph
from workbench.prove.explore import Cast, Explorer
from workbench.prove.lives import Lab
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
        return 0
    ablation = BY_NAME.get(arguments.name)
    if ablation is None:
        arguments.parser.error(f"no ablation {arguments.name!r}; without a name they are listed")
        return 2
    return show(lives.load(os.path.abspath(arguments.lab)), ablation)


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
        print(f"Found in {time.monotonic() - began:.1f} s, a smallest one: {found.name}\n")
        cast, actions = schedules.parse(found.name)
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
