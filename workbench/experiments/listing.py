"""`python3 -m workbench list [NAME...]`: what to type for each experiment.

The whole output is a shell script: typed in the lab's folder, or piped into a shell there, it does
what `run` does. Limit: it leaves its databases in that folder.
"""

from __future__ import annotations

import argparse
import sys

from .catalogue import Unknown, chosen
from .screen import Screen


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", default=(), metavar="NAME", help="default: all")
    parser.set_defaults(parser=parser)


def execute(arguments: argparse.Namespace) -> int:
    try:
        experiments = chosen(arguments.names)
    except Unknown as error:
        arguments.parser.error(str(error))
    screen = Screen(sys.stdout)
    for number, experiment in enumerate(experiments):
        if number:
            screen.say()
        screen.listing(experiment)
    return 0
