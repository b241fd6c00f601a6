"""Copies of the lab to break: a test that cannot fail proves nothing."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

LAB = Path(__file__).resolve().parents[2]


def copy_lab(into: Path) -> Path:
    """The lab and its workbench, without the recorded runs, in a new folder."""
    into.mkdir()
    for program in LAB.glob("*.py"):
        shutil.copy(program, into)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(LAB / "workbench", into / "workbench", ignore=skipped)
    return into


def empty_body(module: Path, method: str, instead: str = "return") -> None:
    """Replace all that `Class.method` does by one statement."""
    holder, name = method.split(".")
    lines = module.read_text("utf-8").splitlines()
    (owner,) = (
        node
        for node in ast.parse("\n".join(lines)).body
        if isinstance(node, ast.ClassDef) and node.name == holder
    )
    (found,) = (
        node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name
    )
    first, last = found.body[0], found.body[-1]
    lines[first.lineno - 1 : last.end_lineno] = [" " * first.col_offset + instead]
    module.write_text("\n".join(lines) + "\n", "utf-8")


def key_by_generation(module: Path) -> None:
    """Let the operation key that publish saves under hold the lease's generation."""
    module.write_text(
        module.read_text("utf-8")
        + """

_plain_key, _plain_publish = operation_key, Runtime.publish


def _publish(self, job, payload):
    global operation_key
    generation = self._lease.generation
    operation_key = lambda job: digest([job, "publish/v1", generation])
    try:
        return _plain_publish(self, job, payload)
    finally:
        operation_key = _plain_key


Runtime.publish = _publish
""",
        "utf-8",
    )
