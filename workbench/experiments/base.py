"""The experiments of the base lab. Each breaks one thing, for real."""

from __future__ import annotations

from .evidence import Evidence
from .parts import (
    FIRST,
    SECOND,
    STEPS,
    after,
    answer,
    before,
    cli,
    count,
    crash,
    evaluate,
    events,
    job,
    last_event,
    lease_over,
    once_said,
    outside,
    says,
)
from .script import (
    THROWAWAY_KEY,
    Experiment,
    Fact,
    Outcome,
    Race,
    Signal,
    Sleep,
    Touch,
    Wait,
)

MODEL = ("--provider", "api", "--model", "demo-model")
API = (*MODEL, "--endpoint", "http://127.0.0.1:{port}/v1/chat/completions")
WORKERS = 12
INSPECT = cli("inspect")

NORMAL = Experiment(
    name="normal",
    db="normal.sqlite",
    broken="nothing",
    held="4 steps, 1 report, no repeats",
    unproven="that the summary is right: only its citation ids are checked",
    story="A job from end to end, then the same submit and run once more.",
    steps=(
        cli("memory-put"),
        cli("submit"),
        before(INSPECT),
        cli("run", *FIRST),
        cli("submit", name="submit-again"),
        cli("run", *SECOND, name="run-again"),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="run",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=1,
        attempts=1,
        effect="confirmed",
        verdict="accepted",
        reused=(),
        deduplicated=False,
    ),
    facts=(
        Fact("steps run", answer("run", "steps_run"), list(STEPS)),
        Fact("job created by the second submit", answer("submit-again", "created"), False),
        Fact("steps run by the second run", answer("run-again", "steps_run"), []),
        Fact("claims", events("claimed"), 1),
        Fact("memory revision pinned", job("memory_rev"), 1),
    ),
)

CRASH = Experiment(
    name="crash-after-collect",
    db="crash.sqlite",
    broken="death after collect",
    held="collect reused, 1 report",
    unproven="a crash inside a step: that step is done, and paid for, again",
    story="The process dies right after collect was committed. Its lease has to end before another"
    " worker may go on; that one reuses what is there.",
    steps=(
        cli("submit"),
        crash(cli("run", *FIRST, name="crash"), "after_collect"),
        cli("run", *SECOND, name="too-early", exits=3)._replace(urgent=True),
        before(INSPECT),
        lease_over(2),
        cli("run", *SECOND, name="recover"),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="recover",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=2,
        attempts=2,
        effect="confirmed",
        verdict="accepted",
        reused=("collect",),
        deduplicated=False,
    ),
    facts=(
        Fact("status after the crash", answer("before", "job", "status"), "running"),
        Fact("checkpoints after the crash", count("before", "checkpoints"), 1),
        Fact("effect after the crash", answer("before", "effect"), "none"),
        Fact("attempts after the early run", answer("before", "job", "attempts"), 1),
        Fact("steps run", answer("recover", "steps_run"), list(STEPS[1:])),
    ),
)

GAP = Experiment(
    name="effect-commit-gap",
    db="effect.sqlite",
    broken="death between save and commit",
    held="the key finds it: 1 report",
    unproven="anything about a service that does not know operation keys",
    story="The report is saved, and the process dies before it can write that down. The next worker"
    " saves again under the same operation key and gets the receipt that is there.",
    steps=(
        cli("submit"),
        crash(cli("run", *FIRST, name="crash"), "after_effect"),
        before(INSPECT),
        lease_over(2),
        cli("run", *SECOND, name="recover"),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="recover",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=2,
        attempts=2,
        effect="confirmed",
        verdict="accepted",
        reused=STEPS[:3],
        deduplicated=True,
    ),
    facts=(
        Fact("checkpoints after the crash", count("before", "checkpoints"), 3),
        Fact("receipts after the crash", count("before", "receipts"), 1),
        Fact("effect after the crash", answer("before", "effect"), "confirmed"),
        Fact("steps run", answer("recover", "steps_run"), ["publish"]),
    ),
)

STALE = Experiment(
    name="stale-worker",
    db="stale.sqlite",
    broken="stopped past its lease, woken",
    held="save found, commit refused",
    unproven="that a sent request can be recalled: it arrived, and the key answered it",
    story="A worker is stopped while it waits for the report service. Its lease ends, another"
    " worker finishes the job, then the first wakes, sends its report after all, and tries to"
    " commit it.",
    steps=(
        cli("submit"),
        outside("service", "lock", "{db}.publisher.sqlite"),
        once_said("service", "holding", "until the report service is held up"),
        cli("run", *FIRST, "--lease-seconds", "4", name="first", exits=0)._replace(behind=True),
        Sleep(2, "until it is at publish", seen=lambda e: "verify" in e.look()["checkpoints"]),
        Signal("STOP", "first"),
        Signal("TERM", "service"),
        before(INSPECT),
        lease_over(4),
        cli("run", *SECOND, name="second"),
        cli("inspect", name="asleep"),
        Signal("CONT", "first"),
        Wait("first"),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="second",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=2,
        attempts=2,
        effect="confirmed",
        verdict="accepted",
        reused=STEPS[:3],
        deduplicated=False,
    ),
    facts=(
        Fact("receipts when first was stopped", count("before", "receipts"), 0),
        Fact("the guard refuses first", says("first", "lease lost"), "lease lost"),
        Fact(
            "events written after first woke",
            lambda e: len(e.answer("after")["events"]) - len(e.answer("asleep")["events"]),
            0,
        ),
        Fact(
            "checkpoints changed by first",
            lambda e: e.answer("after")["checkpoints"] != e.answer("asleep")["checkpoints"],
            False,
        ),
    ),
)


def racers(evidence: Evidence) -> list[str]:
    """The workers' names; all of them have ended."""
    return [name for name in evidence.finished if name.startswith("worker-")]


RACE = Experiment(
    name="claims-race",
    db="race.sqlite",
    broken=f"{WORKERS} workers claim at once",
    held="1 claim, 1 run, 1 report",
    unproven="fairness, or how many jobs an hour such a queue can take",
    story=f"The database is locked until {WORKERS} workers queue up for the same job, then let go."
    " One gets it; the others are told that it is running or done.",
    steps=(
        cli("submit"),
        before(INSPECT),
        outside("database", "lock", "{db}"),
        once_said("database", "holding", "until the database is held up"),
        Race(cli("run", "--owner", "worker-{n}", name="worker", exits=None), WORKERS),
        Sleep(2, "until they queue up for it"),
        Signal("TERM", "database"),
        Wait(),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="evaluate",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=1,
        attempts=1,
        effect="confirmed",
        verdict="accepted",
    ),
    facts=(
        Fact("claims", events("claimed"), 1),
        Fact("workers that came to an end", lambda e: len(racers(e)), WORKERS),
        Fact(
            "workers that ran a step",
            lambda e: sum('"collect"' in e.said(name) for name in racers(e)),
            1,
        ),
        Fact(
            "exit codes other than 0 and 3",
            lambda e: [e.exit(name) for name in racers(e) if e.exit(name) not in (0, 3)],
            [],
        ),
    ),
)

RETRY = Experiment(
    name="retry-then-success",
    db="retry.sqlite",
    broken="the endpoint answers 429 once",
    held="asked again in 2 s, 1 report",
    unproven="a live model, or a provider's real limits",
    story="The model's endpoint answers 429 to the first request. The job waits, keeps what it has"
    " collected, and asks once more. Its key is a throwaway and must be in no file afterwards.",
    steps=(
        outside("endpoint", "endpoint", "--port", "{port}", "429", "ok"),
        once_said("endpoint", "listening", "until it listens"),
        cli("submit", *API),
        cli("run", *FIRST, name="limited", exits=3)._replace(key=True),
        before(INSPECT),
        Sleep(2, "until it may be tried again", at=lambda e: e.answer("limited")["retry_at"]),
        cli("run", *SECOND, name="again")._replace(key=True),
        after(INSPECT),
        evaluate(),
    ),
    outcome=Outcome(
        last="again",
        exit=0,
        status="succeeded",
        checkpoints=4,
        receipts=1,
        generation=2,
        attempts=2,
        effect="confirmed",
        verdict="accepted",
        reused=("collect",),
        deduplicated=False,
    ),
    facts=(
        Fact("status after the 429", answer("limited", "status"), "retry_wait"),
        Fact("the error names it", lambda e: "429" in e.answer("limited")["error"], True),
        Fact("requests that the endpoint saw", lambda e: e.said("endpoint").count("asked"), 2),
        Fact(
            "files that hold the key",
            lambda e: [n for n, data in e.files().items() if THROWAWAY_KEY.encode() in data],
            [],
        ),
    ),
)

MEMORY = Experiment(
    name="memory-revoked",
    db="memory.sqlite",
    broken="memory forgotten after draft",
    held="failed, the draft is not sent",
    unproven="that a model which has read it forgets it, too",
    story="A draft is made with a stored preference in mind; then the preference is forgotten. The"
    " job pinned its revision, so it ends instead of publishing what was made from it.",
    steps=(
        cli("memory-put"),
        cli("submit"),
        crash(cli("run", *FIRST, name="crash"), "after_draft"),
        before(INSPECT),
        cli("memory-forget"),
        lease_over(2),
        cli("run", *SECOND, name="recover", exits=1),
        after(INSPECT),
        evaluate(exits=1),
    ),
    outcome=Outcome(
        last="recover",
        exit=1,
        status="failed",
        checkpoints=2,
        receipts=0,
        generation=2,
        attempts=2,
        effect="none",
        verdict="not_accepted",
        reused=STEPS[:2],
    ),
    facts=(
        Fact("error", job("error"), "memory_revision_changed"),
        Fact("steps run after it was forgotten", answer("recover", "steps_run"), []),
    ),
)

CANCEL = Experiment(
    name="cancel-mid-run",
    db="cancel.sqlite",
    broken="cancelled in a model call",
    held="answer refused, 0 reports",
    unproven="that the model call is undone, or not paid for",
    story="The job is cancelled while its worker waits for the model. The answer comes afterwards;"
    " the worker has lost its lease and may not write it.",
    steps=(
        outside("endpoint", "endpoint", "--port", "{port}", "ok@answer-now"),
        once_said("endpoint", "listening", "until it listens"),
        cli("submit", *API),
        cli("run", *FIRST, name="first", exits=3)._replace(behind=True, key=True),
        once_said("endpoint", "asked", "until the model is asked"),
        before(INSPECT)._replace(urgent=True),
        cli("cancel")._replace(urgent=True),
        Touch("answer-now"),
        Wait("first"),
        after(INSPECT),
        evaluate(exits=1),
    ),
    outcome=Outcome(
        last="first",
        exit=3,
        status="cancelled",
        checkpoints=1,
        receipts=0,
        generation=2,
        attempts=1,
        effect="none",
        verdict="not_accepted",
    ),
    facts=(
        Fact("status when the model was asked", answer("before", "job", "status"), "running"),
        Fact("status that cancel answers", answer("cancel", "status"), "cancelled"),
        Fact("the guard refuses first", says("first", "lease lost"), "lease lost"),
        Fact("last event", last_event, "cancelled"),
    ),
)

BUDGET = Experiment(
    name="budget-spent",
    db="budget.sqlite",
    broken="3 deaths, one after the save",
    held="failed, but says effect_found",
    unproven="that someone reads it: the lab raises no alarm",
    story="Three processes die, the first one after the report was saved. No attempt is left: the"
    " job fails, and its end says that a report exists all the same.",
    steps=(
        cli("submit"),
        crash(cli("run", *FIRST, name="crash-1"), "after_effect"),
        before(INSPECT),
        lease_over(2),
        crash(cli("run", *SECOND, name="crash-2"), "after_claim", "500ms"),
        Sleep(0.5, "until the second lease is over"),
        crash(cli("run", "--owner", "third", name="crash-3"), "after_claim", "500ms"),
        Sleep(0.5, "until the third lease is over"),
        cli("run", "--owner", "fourth", name="fourth", exits=1),
        after(INSPECT),
        evaluate(exits=1),
    ),
    outcome=Outcome(
        last="fourth",
        exit=1,
        status="failed",
        checkpoints=3,
        receipts=1,
        generation=3,
        attempts=3,
        effect="confirmed",
        verdict="not_accepted",
    ),
    facts=(
        Fact("error", job("error"), "deadline_or_attempt_budget"),
        Fact("last event", last_event, "effect_found"),
        Fact(
            "the receipt that it names",
            lambda e: [(e.events()[-1][2],)] == e.publisher("SELECT receipt FROM receipts"),
            True,
        ),
    ),
)

BASE = (NORMAL, CRASH, GAP, STALE, RACE, RETRY, MEMORY, CANCEL, BUDGET)
