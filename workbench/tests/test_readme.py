"""The README is held to the code: its commands run, its diagrams and tables are the lab's own."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

import approval_cli
import cli
from approval_runtime import APPROVALS, ApprovalEvent, ApprovalRuntime, Decision
from runtime import FAULTS, RECEIPTS, TABLES, Status
from workbench import readme
from workbench.prove.command import properties

TEXT = (readme.LAB / "README.md").read_text(encoding="utf-8")
CONTRACT = """
python3 cli.py memory-put && python3 cli.py submit && python3 cli.py run && python3 cli.py inspect && python3 evaluate.py
python3 -m unittest discover -s . -p test_lab.py -v
python3 cli.py submit --db crash.sqlite
python3 cli.py run --db crash.sqlite --lease-seconds 2 --fault after_collect
sleep 2; python3 cli.py run --db crash.sqlite; python3 evaluate.py --db crash.sqlite
python3 cli.py run --db effect.sqlite --lease-seconds 2 --fault after_effect
python3 cli.py submit --db api.sqlite --job api-001 --provider api --model M --endpoint https://HOST/compatible-mode/v1/chat/completions
python3 approval_cli.py submit; python3 approval_cli.py run; python3 approval_cli.py inspect
python3 approval_cli.py approve --actor reviewer --hash HASH; python3 approval_cli.py run; python3 approval_cli.py inspect
sleep 2; python3 approval_cli.py reconcile --db approved-effect.sqlite
"""  # noqa: E501 - as the contract's section 13 has them


def public(names: type) -> set[str]:
    """The values of a class of names, its bases' included."""
    values = {name: getattr(names, name) for name in dir(names) if name.isupper()}
    return set(values.values())


def arrows(diagram: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^  (\S+) --> (\w+):", diagram, re.MULTILINE))


class ReadmeTest(unittest.TestCase):
    """What a reader is told is what the code does."""

    def section(self, title: str) -> str:
        found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
        self.assertIsNotNone(found, title)
        return found[1] if found else ""

    def test_the_state_diagram_is_the_transition_table(self) -> None:
        jobs, approvals = re.findall(
            r"```mermaid\nstateDiagram-v2\n(.*?)```", self.section("Statuses and events"), re.S
        )
        declared = {
            (before, after)
            for before, followers in ApprovalRuntime.TRANSITIONS.items()
            for after in followers
        }
        self.assertEqual(declared | {("[*]", Status.QUEUED)}, arrows(jobs))
        self.assertEqual(public(Decision), {after for _, after in arrows(approvals)})

    def test_every_property_of_the_proof_has_its_row(self) -> None:
        rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", self.section("The proof"), re.M)
        self.assertEqual(dict(rows), properties())

    def test_every_event_kind_has_its_row(self) -> None:
        rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", self.section("Statuses and events"), re.M)
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(public(ApprovalEvent), named)

    def test_the_tables_have_the_columns_of_the_schema(self) -> None:
        schema = {**TABLES, **RECEIPTS, "approvals": APPROVALS}
        rows = dict(
            re.findall(
                r"^\| (\w+)(?: \(publisher\))? \| ([a-z_, ]+) \|$", self.section("Tables"), re.M
            )
        )
        for table, sql in schema.items():
            with self.subTest(table):
                columns = re.findall(r"^    ([a-z_]+) ", sql, re.M)
                self.assertEqual(", ".join(columns), rows[table])

    def test_exit_codes_and_faults_are_those_of_the_command_lines(self) -> None:
        codes = set(
            map(
                int,
                re.findall(
                    r"\b\d+\b", re.sub(r"\|[^|]*\|$", "|", self.section("Exit codes"), flags=re.M)
                ),
            )
        )
        self.assertEqual({0, 1, 2, 3, 75, 130, 143}, codes)
        self.assertIn(" ".join(FAULTS), TEXT)
        statuses = public(Status) | set(approval_cli.ApprovalCommandLine.EXITS)
        self.assertEqual(set(approval_cli.ApprovalCommandLine.EXITS), statuses)
        self.assertLess(set(cli.CommandLine.EXITS), statuses)

    def test_the_commands_of_the_contract_stand_there_as_they_are(self) -> None:
        typed = TEXT.replace("`", "\n")
        for command in CONTRACT.strip().splitlines():
            with self.subTest(command):
                self.assertIn(command, typed)

    def test_every_file_named_is_there(self) -> None:
        for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
            with self.subTest(target):
                self.assertTrue((readme.LAB / target).exists())

    def test_every_command_of_the_lab_ends_as_the_readme_says(self) -> None:
        lines = [
            line
            for line in readme.lines_of(TEXT)
            if "-m workbench" not in line.text and "-m unittest" not in line.text
        ]
        self.assertGreater(len(lines), 15)
        with readme.fresh_copy() as folder, readme.model() as endpoint:
            for line, trouble in readme.type_all(lines, folder, endpoint):
                with self.subTest(line.text):
                    self.assertIsNone(trouble)
            left = {path.name for path in Path(folder).glob("*.sqlite*")}
        self.assertFalse({name for name in left if name.endswith(("-wal", "-shm", "-journal"))})


if __name__ == "__main__":
    unittest.main()
