"""`python3 -m workbench list [NAME...]`: what to type for each experiment.

The whole output is a shell script: typed in the lab's folder, or piped into a shell there, it does
what `run` does. Limit: it leaves its databases in that folder.
"""

from __future__ import annotations

import argparse
import sys

from .catalogue import add_names, chosen
from .screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "default: all")


def execute(arguments: argparse.Namespace) -> int:
    screen = Screen(sys.stdout)
    for number, experiment in enumerate(chosen(arguments)):
        if number:
            screen.say()
        screen.listing(experiment)
    return 0
