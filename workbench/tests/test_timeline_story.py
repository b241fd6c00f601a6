"""What the timeline says of each kind of job: the verdict, the facts, the words, the table."""

from __future__ import annotations

import os
import unittest
from typing import NamedTuple

from runtime import NotFound, UsageError
from workbench.tests import timeline_jobs as jobs
from workbench.timeline.infer import life_of
from workbench.timeline.life import Life
from workbench.timeline.model import read_record
from workbench.timeline.story import table, words
from workbench.timeline.verdict import facts, headline
from workbench.timeline.wording import clock, duration, offset, visible


class Expected(NamedTuple):
    """how: what is known of the receipt. unknown: no boundary, settled, open or never settled."""

    headline: str
    how: str | None = None
    unknown: str = "no"


ONCE = "The report was saved once"
NOT_SENT = "Nothing has been sent."
EXPECTED = {
    "queued": Expected(f"Waiting for its first run. {NOT_SENT}"),
    "normal": Expected(f"{ONCE}, in one run without a break.", "fresh", "settled"),
    "crash_after_claim": Expected(
        f"{ONCE}. Recovery began again: no step had been finished.", "fresh", "settled"
    ),
    "crash_after_collect": Expected(f"{ONCE}. Recovery kept collect.", "fresh", "settled"),
    "effect_commit_gap": Expected(
        f"{ONCE}. Recovery sent it again and was given the first receipt.", "earlier", "settled"
    ),
    "before_effect": Expected(
        f"{ONCE}. Recovery kept collect, draft and verify.", "fresh", "settled"
    ),
    "stale_worker": Expected(f"{ONCE}. Recovery kept collect.", "fresh", "settled"),
    "three_claims": Expected(
        f"{ONCE}. Recovery sent it again and was given the first receipt.", "earlier", "settled"
    ),
    "three_effects": Expected(
        f"{ONCE}. Recovery sent it again and was given the first receipt.", "earlier", "settled"
    ),
    "budget_spent": Expected(
        "The job failed, but its report had been saved, once.", "seen", "settled"
    ),
    "budget_spent_unknown": Expected(
        "The job failed. Whether its report was saved is not known.", None, "never"
    ),
    "retry_waiting": Expected(f"Attempt 1 of 3 did not succeed; another is allowed. {NOT_SENT}"),
    "retry_then_success": Expected(f"{ONCE}, after one retry.", "fresh", "settled"),
    "retry_after": Expected(f"{ONCE}, after one retry.", "fresh", "settled"),
    "retries_spent": Expected("Failed before anything was sent."),
    "permanent": Expected("Failed before anything was sent."),
    "memory_revoked": Expected(
        "Failed before anything was sent: the memory it was given had changed."
    ),
    "memory_revoked_after_effect": Expected(
        "The job failed, but its report had been saved, once.", "seen", "settled"
    ),
    "cancel_queued": Expected("Cancelled before anything was sent."),
    "cancel_mid_run": Expected("Cancelled before anything was sent."),
    "cancel_after_effect": Expected(
        "The job was cancelled, but its report had been saved, once.", "seen", "settled"
    ),
    "cancel_then_saved": Expected(
        "The job was cancelled without knowing the outcome. The service holds its report.",
        "seen",
        "never",
    ),
    "live": Expected(f"It still says running, but nobody holds the job. {NOT_SENT}"),
    "live_sending": Expected(
        "It still says running, but nobody holds the job. "
        "The service holds the report; the job has yet to record it.",
        "seen",
        "open",
    ),
    "waiting": Expected(f"The time to decide ran out. {NOT_SENT}"),
    "approval": Expected(f"{ONCE}, as a person had approved it.", "fresh", "settled"),
    "approved": Expected(f"Approved, but the permission ran out unused. {NOT_SENT}"),
    "rejected": Expected("A person said no. Nothing was sent."),
    "approval_expired": Expected("Failed before anything was sent: nobody had decided in time."),
    "expired_before_dispatch": Expected(
        "Failed before anything was sent: the permission had run out."
    ),
    "drift": Expected(
        "Failed before anything was sent: the content had changed since it was reviewed."
    ),
    "approval_cancelled": Expected("Cancelled before anything was sent."),
    "approved_effect": Expected(
        f"{ONCE}. Recovery asked the service and sent nothing.", "seen", "settled"
    ),
    "approved_before_effect": Expected(
        "Dispatched, outcome unknown. No receipt is seen, and that proves nothing.", None, "open"
    ),
    "reconcile_many": Expected(
        "Dispatched, outcome unknown. No receipt is seen, and that proves nothing.", None, "open"
    ),
    "dispatched": Expected(
        "It still says running, but nobody holds the job. "
        "The service holds the report; the job has yet to record it.",
        "seen",
        "open",
    ),
    "parked_by_cancel": Expected(
        f"{ONCE}. Recovery asked the service and sent nothing.", "seen", "settled"
    ),
    "parked_by_claim": Expected(
        "The service holds the report. Reconcile has yet to record it.", "seen", "open"
    ),
    "heartbeat": Expected(f"{ONCE}. Recovery kept collect.", "fresh", "settled"),
    "clock_back": Expected(f"{ONCE}, in one run without a break.", "fresh", "settled"),
    "older_receipt": Expected(
        "The report service already held this report. This job saved nothing new.",
        "older",
        "settled",
    ),
    "foreign_receipt": Expected(
        "The job failed. The service holds another report under its key.", "foreign", "never"
    ),
    "service_missing": Expected(
        "The job recorded a receipt. The report service is missing, so nothing confirms it.",
        "earlier",
        "settled",
    ),
    "service_damaged": Expected(
        "It still says running, but nobody holds the job. "
        "Whether the report was saved is not known here.",
        None,
        "open",
    ),
    "receipt_gone": Expected(
        "The records contradict each other: "
        "the job records a receipt that the report service does not have.",
        "fresh",
        "settled",
    ),
    "forged": Expected(
        "The records contradict each other: the job says succeeded, its history cancelled."
    ),
    "no_history": Expected("The records contradict each other in several ways.", "stray"),
}
UNSOUND = ("receipt_gone", "forged", "no_history")
LATER = jobs.BEGIN + 900


def unknown_of(life: Life) -> str:
    if life.boundary is None:
        return "no"
    return "settled" if life.settled else "open" if life.open else "never"


class Folder(unittest.TestCase):
    """A folder for the databases of a test; jobs that no test changes are made once."""

    def setUp(self) -> None:
        folder = jobs.memory_folder()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def life(self, name: str, now: float = LATER) -> Life:
        return life_of(read_record(jobs.made(name), None, lambda: now))

    def at(self, bench: jobs.Bench, now: float) -> Life:
        return life_of(read_record(bench.path, None, lambda: now))


class Verdicts(Folder):
    def test_every_kind_of_job_gets_the_headline_that_its_databases_support(self) -> None:
        for name, expected in EXPECTED.items():
            with self.subTest(name):
                life = self.life(name)
                seen = (headline(life)[0], life.saved and life.saved.how, unknown_of(life))
                self.assertEqual(seen, expected)
                self.assertEqual(bool(life.doubts), name in UNSOUND, life.doubts)
                self.assertEqual(life.record.oddities, ())

    def test_every_status_of_the_lab_is_among_these_jobs(self) -> None:
        seen = {self.life(name).status for name in ("normal", "rejected", "approved_effect")}
        seen |= {self.life(name).status for name in ("queued", "live", "retry_waiting", "waiting")}
        seen |= {self.life(name).status for name in ("permanent", "cancel_queued", "dispatched")}
        seen |= {self.life("approved_before_effect").status}
        wanted = "queued running retry_wait succeeded failed cancelled waiting_approval rejected"
        self.assertEqual(seen, {*wanted.split(), "reconciling", "effect_confirmed"})

    def test_an_open_job_is_judged_by_now(self) -> None:
        waiting = jobs.waiting(self.folder, "w")
        told = headline(self.at(waiting, waiting.clock.at + 60))[0]
        self.assertEqual(told, f"Waiting for a person to decide. {NOT_SENT}")
        approved = jobs.approved(self.folder, "a")
        told = headline(self.at(approved, approved.clock.at + 1))[0]
        self.assertEqual(told, f"Approved, waiting for the run that sends it. {NOT_SENT}")
        live = jobs.live(self.folder, "l")
        life = self.at(live, live.clock.at + 1)
        self.assertEqual(headline(life)[0], f"Generation 1 holds the job. {NOT_SENT}")
        self.assertEqual((life.leases[0].ending, life.leases[0].silent), ("", None))

    def test_a_clock_behind_the_last_event_takes_that_event_as_now(self) -> None:
        live = jobs.live(self.folder, "l")
        life = self.at(live, jobs.BEGIN - 5000)
        self.assertEqual(life.points[-1].at, life.record.events[-1].at)
        self.assertIn("The clock here is behind the last event", " ".join(words(life)))

    def test_a_missing_service_is_a_fact_and_nothing_is_claimed_of_it(self) -> None:
        for name in ("normal", "approved_effect", "cancel_after_effect"):
            bench = getattr(jobs, name)(self.folder, name)
            os.remove(bench.path + ".publisher.sqlite")
            life = self.at(bench, LATER)
            with self.subTest(name):
                self.assertEqual(life.doubts, [])
                self.assertNotIn("saved once", headline(life)[0])
                self.assertIn(("Receipts", "service is missing"), facts(life))


class Lives(Folder):
    def test_a_receipt_is_placed_with_every_call_that_can_have_made_it(self) -> None:
        senders = {
            "effect_commit_gap": [1],
            "before_effect": [2],
            "three_claims": [2],
            "three_effects": [1, 2],
            "budget_spent": [1, 2, 3],
            "approved_effect": [2],
            "older_receipt": [],
        }
        for name, generations in senders.items():
            with self.subTest(name):
                saved = self.life(name).saved
                assert saved is not None
                self.assertEqual([lease.generation for lease in saved.senders], generations)

    def test_a_lease_ends_as_it_was_recorded_or_runs_out(self) -> None:
        endings = {
            "normal": ["published"],
            "crash_after_collect": ["expired", "published"],
            "retry_then_success": ["retry", "published"],
            "cancel_mid_run": ["cancelled"],
            "memory_revoked": ["expired", "failed"],
            "approval": ["asked", "published"],
            "parked_by_cancel": ["asked", "parked"],
            "parked_by_claim": ["asked", "expired"],
        }
        for name, expected in endings.items():
            with self.subTest(name):
                self.assertEqual([lease.ending for lease in self.life(name).leases], expected)

    def test_order_is_that_of_the_sequence_numbers(self) -> None:
        for name in EXPECTED:
            life = self.life(name)
            seqs = [event.seq for point in life.points for event in point.events]
            self.assertEqual(seqs, sorted(seqs), name)
            self.assertEqual([p.index for p in life.points], list(range(len(life.points))), name)

    def test_a_clock_that_stepped_back_is_said_and_shown(self) -> None:
        life = self.life("clock_back")
        self.assertEqual([round(seconds) for _, seconds in life.steps_back], [3600, 1])
        told = " ".join(words(life))
        self.assertIn("The clock stepped back by 1 h before event 6", told)
        self.assertNotIn(("Outcome unknown for", "\N{MINUS SIGN}"), facts(life))

    def test_thousands_of_renewals_are_one_point_and_one_line(self) -> None:
        bench = jobs.heartbeat(self.folder, "h", 10_000)
        life = self.at(bench, LATER)
        self.assertEqual(life.doubts, [])
        self.assertLess(len(life.points), 20)
        lines = [line for line in table(life) if "10,000 times" in line.detail]
        self.assertEqual([line.seq for line in lines], ["6\N{EN DASH}10005"])

    def test_many_reconciles_are_summed_up_and_still_counted(self) -> None:
        life = self.life("reconcile_many")
        self.assertEqual(len(life.questions), 2)
        self.assertEqual([p.hidden for p in life.points if p.kind == "skipped"], [76])
        self.assertIn("76 more events are not told here", " ".join(words(life)))

    def test_a_contradiction_is_listed(self) -> None:
        bench = jobs.normal(self.folder, "n")
        changes = {
            "UPDATE jobs SET generation = 7": "the generation of the job is 7",
            "UPDATE jobs SET attempts = 3": "the claims the job counts are 3",
            "DELETE FROM checkpoints WHERE step = 'draft'": "the checkpoints are not those",
            "UPDATE events SET kind = 'levitated' WHERE seq = 4": "event 4 is of an unknown kind",
            "UPDATE checkpoints SET payload = replace(payload, 'report-', 'letter-') "
            "WHERE step = 'publish'": "another receipt than the report service holds",
        }
        for change, doubt in changes.items():
            with open(bench.path, "rb") as file:
                before = file.read()
            bench.edit(change)
            with self.subTest(change):
                life = self.at(bench, LATER)
                self.assertIn(doubt, "; ".join(life.doubts))
                self.assertIn("contradict", headline(life)[0])
            with open(bench.path, "wb") as file:
                file.write(before)

    def test_every_event_has_its_line_with_what_it_says(self) -> None:
        lines = table(self.life("cancel_after_effect"))
        self.assertEqual([line.seq for line in lines], [str(n) for n in range(1, 12)])
        said = [(line.kind, line.detail) for line in lines if not line.quiet]
        self.assertEqual(
            said[1:],
            [
                ("claimed", "w-7f2a"),
                ("step_committed", "collect"),
                ("step_committed", "draft"),
                ("step_committed", "verify"),
                ("cancelled", ""),
                ("effect_found", "report-5face520cd5c"),
            ],
        )
        self.assertTrue(said[0][1].endswith(", deadline +10 min"))
        self.assertRegex(lines[2].detail, r"^until \+31\.9\d? s$")

    def test_forged_histories_of_any_kind_stay_small(self) -> None:
        kinds = ("claimed", "reconcile_started", "approved", "dispatch_started", "failed", "x")
        for kind in kinds:
            bench = jobs.normal(self.folder, kind)
            bench.edit(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
                "INSERT INTO events (job_id, at, generation, kind, detail) "
                "SELECT ?, ? + i * 5, i, ?, 'x' FROM n",
                (jobs.JOB, jobs.BEGIN, kind),
            )
            with self.subTest(kind):
                life = self.at(bench, LATER)
                self.assertLess(len(life.points), 50)
                self.assertLess(len(table(life)), 200)
                self.assertLess(len(life.doubts), 10)


class Records(Folder):
    def test_one_job_is_found_and_several_are_asked_about(self) -> None:
        bench = jobs.normal(self.folder, "n")
        with bench.open() as lab:
            lab.submit("second")
        with self.assertRaisesRegex(UsageError, "report-001, second"):
            read_record(bench.path, None, lambda: LATER)
        self.assertEqual(read_record(bench.path, "second", lambda: LATER).job, "second")
        with self.assertRaisesRegex(NotFound, "no job x"):
            read_record(bench.path, "x\ud800", lambda: LATER)

    def test_cells_of_the_wrong_type_are_left_out_and_named(self) -> None:
        bench = jobs.normal(self.folder, "n")
        bench.edit("UPDATE jobs SET generation = '<b>', spec = '[1', lease_until = 9e999")
        bench.edit("UPDATE events SET at = 'soon', detail = x'00ff' WHERE seq = 3")
        life = self.at(bench, LATER)
        self.assertEqual(
            life.record.oddities,
            (
                "event 3: its kind or detail is no text",
                "event 3: its time is no usable number: soon",
                "jobs.spec is no JSON object",
                "jobs.generation is no usable number: <b>",
                "jobs.lease_until is no usable number: inf",
            ),
        )
        self.assertEqual((life.record.generation, life.record.lease_until), (None, None))
        self.assertIn("contradict", headline(life)[0])


class Wording(unittest.TestCase):
    def test_hidden_characters_become_visible_and_long_text_short(self) -> None:
        cases = {
            "plain text": "plain text",
            "": "(empty)",
            "a\nb\tc\x00": "a\\nb\\tc\\u0000",
            "\u202eabc\u2066": "\\u202eabc\\u2066",
            "\U000e0041": "\\U000e0041",
            "\ud83d": "\\ud83d",
            "e\u0301\u0302\u0303\u0304": "e\u0301\u0302\\u0303\\u0304",
            "a\u00a0b": "a\\u00a0b",
        }
        for text, shown in cases.items():
            self.assertEqual(visible(text), shown)
        self.assertEqual(
            visible("x" * 100, 10), "x" * 10 + "\N{HORIZONTAL ELLIPSIS} (100 characters)"
        )

    def test_times_in_words(self) -> None:
        cases = {
            0.0: "0 ms", 0.0001: "<1 ms", 0.48: "480 ms", 1.0: "1 s", 38.84: "38.8 s",
            59.99: "1 min", 122.0: "2 min 2 s", 3600: "1 h", 90061: "1 d 1 h",
            -3600: "\N{MINUS SIGN}1 h", 1e13: "over 100,000 days",
        }  # fmt: skip
        for seconds, said in cases.items():
            self.assertEqual(duration(seconds), said)
        self.assertEqual(offset(12.5, 10), "+2.5 s")
        self.assertEqual(offset(None, 10), "at an unreadable time")
        self.assertEqual((clock(0.0), clock(1e14)), ("00:00:00.000", "unreadable"))
