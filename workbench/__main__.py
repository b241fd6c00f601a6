"""`python3 -m workbench [COMMAND]`: experiments on the lab, recorded runs, pictures and proofs.

Without a command all experiments run. A command's module is imported only when it is chosen.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from cli import Parser

DEFAULT = "run"
CLOSED_PIPE = 141  # as a shell reports it
COMMANDS = {
    "run": ("workbench.experiments.command", "run the experiments, all or those named (default)"),
    "list": ("workbench.experiments.listing", "show the experiments and what to type for each"),
    "record": ("workbench.record", "regenerate runs/"),
    "timeline": ("workbench.timeline.command", "draw a job's life from its two databases"),
    "prove": ("workbench.prove.command", "break the lab in every way, and say what held"),
    "ablate": ("workbench.prove.ablate", "what a mechanism is for, by a run without it"),
    "measure": ("workbench.measure", "what durability costs here, as ratios"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the workbench; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, DEFAULT)
    parser = Parser(prog="python3 -m workbench", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = None
    for name, (module, words) in COMMANDS.items():
        verb = verbs.add_parser(name, help=words, description=words)
        if name == arguments[0]:
            command = importlib.import_module(module)
            command.configure(verb)
    parsed = parser.parse_args(arguments)
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        return int(command.execute(parsed)) if command else 2
    except OSError as error:
        # What could not be written must not be tried again when the interpreter ends.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # `list | head` is no error to report
            return CLOSED_PIPE
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
