"""All experiments, by name, in the order in which they are shown."""

from __future__ import annotations

import argparse

from .approvals import APPROVALS
from .base import BASE
from .script import Experiment

EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in (*BASE, *APPROVALS)}


def add_names(parser: argparse.ArgumentParser, words: str) -> None:
    """Let a command name experiments; `words` are the argument's help."""
    parser.add_argument("names", nargs="*", default=(), metavar="NAME", help=words)
    parser.set_defaults(parser=parser)


def chosen(arguments: argparse.Namespace) -> list[Experiment]:
    """The experiments that are named, each once; all without any. An unknown name is usage."""
    parser: argparse.ArgumentParser = arguments.parser
    for name in arguments.names:
        if name not in EXPERIMENTS:
            parser.error(f"no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    return [each for name, each in EXPERIMENTS.items() if name in (arguments.names or EXPERIMENTS)]
