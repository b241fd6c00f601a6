"""Run experiments side by side, each in a folder of its own, and leave nothing behind.

Guarantee: however it ends, the children are dead and the temporary folders are gone.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .crew import Crew, Dismissed
from .runner import Line, Report, Run, Setting
from .script import Experiment

LAB = Path(__file__).resolve().parents[2]
TICK = 0.1


class Failed(RuntimeError):
    """An experiment could not be run at all: the workbench, not the lab, is at fault."""


class Hooks(NamedTuple):
    """Who is told what: each line of a script, the end of an experiment, the passing of time."""

    line: Callable[[Experiment, Line], None] = lambda experiment, line: None
    ended: Callable[[Report], None] = lambda report: None
    tick: Callable[[], None] = lambda: None


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="workbench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Plan(NamedTuple):
    """What to run and where: folder/NAME for each, and under which database name."""

    experiments: Sequence[Experiment]
    folder: Path
    db: Callable[[Experiment], str] = lambda experiment: experiment.db
    saving: bool = False


Told = Report | Failed | tuple[Experiment, Line]


def run_all(plan: Plan, hooks: Hooks) -> list[Report]:
    """Run them side by side; their reports, in the order given. Hooks are called by this thread.

    Raises Failed where an experiment could not be run; Interrupted passes through.
    """
    crew = Crew(LAB)
    told: queue.Queue[Told] = queue.Queue()
    with scratch() as logs:
        threads = []
        for experiment in plan.experiments:
            own, behind = plan.folder / experiment.name, logs / experiment.name
            own.mkdir(exist_ok=True)
            behind.mkdir()
            setting = Setting(crew, own, behind, plan.db(experiment), plan.saving)
            work = (experiment, setting, told)
            threads.append(threading.Thread(target=_perform, args=work, name=experiment.name))
        try:
            for thread in threads:
                thread.start()
            return _collect(plan.experiments, told, hooks)
        finally:
            crew.dismiss()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


def _perform(experiment: Experiment, setting: Setting, told: queue.Queue[Told]) -> None:
    try:
        told.put(Run(experiment, setting, lambda line: told.put((experiment, line)))())
    except Dismissed:
        pass
    except Exception:
        told.put(Failed(f"{experiment.name} could not be run:\n{traceback.format_exc()}"))


def _collect(
    experiments: Sequence[Experiment], told: queue.Queue[Told], hooks: Hooks
) -> list[Report]:
    reports: dict[str, Report] = {}
    while len(reports) < len(experiments):
        hooks.tick()
        try:
            news = told.get(timeout=TICK)
        except queue.Empty:
            continue
        if isinstance(news, Failed):
            raise news
        if isinstance(news, Report):
            reports[news.experiment.name] = news
            hooks.ended(news)
        else:
            hooks.line(*news)
    return [reports[experiment.name] for experiment in experiments]
