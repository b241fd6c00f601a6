"""The timeline as drawn: geometry, contrast, hostile text, the three formats, the command."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import html.parser
import io
import itertools
import os
import re
import stat
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from unittest import mock

from workbench.tests import timeline_jobs as jobs
from workbench.tests.test_timeline_story import EXPECTED, LATER, Folder
from workbench.timeline import command
from workbench.timeline.figure import TARGET, sheet_of
from workbench.timeline.image import image
from workbench.timeline.layout import Axis, Label
from workbench.timeline.page import page
from workbench.timeline.rail import RULES as RAIL_RULES
from workbench.timeline.sheet import Sheet, anchor_x
from workbench.timeline.style import DARK, LIGHT, TEXTS
from workbench.timeline.text import columns, text

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SVG = "{http://www.w3.org/2000/svg}"
NAMES = (*EXPECTED, "hostile")
MODIFIERS = {"m", "hu"}  # classes that do not colour a text


class Box:
    """The space that a label takes."""

    def __init__(self, label: Label, axis: Axis) -> None:
        x = anchor_x(label, axis)
        self.left, self.right = x + label.left, x + label.right
        self.top, self.bottom = label.y - 0.74 * label.size, label.y + 0.2 * label.size
        self.text = label.text

    def meets(self, other: Box) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > 0.5 and down > 0.5


def solved(life_sheet: Sheet) -> tuple[Axis, list[Box]]:
    axis = life_sheet.solve(TARGET)
    return axis, [Box(label, axis) for label in life_sheet.labels]


class Geometry(Folder):
    def test_no_label_meets_another_or_leaves_the_picture(self) -> None:
        for name in NAMES:
            axis, boxes = solved(sheet_of(self.life(name)))
            with self.subTest(name):
                for one, other in itertools.combinations(boxes, 2):
                    self.assertFalse(one.meets(other), (one.text, other.text))
                for box in boxes:
                    self.assertGreaterEqual(box.left, 0, box.text)
                    self.assertLessEqual(box.right, axis.end + 0.5, box.text)

    def test_points_keep_their_order_and_every_gap_its_floor(self) -> None:
        for name in NAMES:
            axis, _ = solved(sheet_of(self.life(name)))
            gaps = [after - before for before, after in itertools.pairwise((*axis.xs, axis.end))]
            self.assertGreaterEqual(min(gaps), 24, name)

    def test_no_shape_has_a_negative_size_and_bars_stay_between_the_lanes(self) -> None:
        for name in NAMES:
            root = ElementTree.fromstring(image(self.life(name)))
            bars = [e for e in root.iter(f"{SVG}rect") if e.get("class") in ("lease", "apw")]
            rules = [e for e in root.iter(f"{SVG}line") if e.get("class") in ("rule", "wall")]
            lines = sorted(float(rule.get("y1", "")) for rule in rules)
            with self.subTest(name):
                for element in root.iter(f"{SVG}rect"):
                    if element.get("width", "").endswith("%"):
                        continue
                    self.assertGreaterEqual(float(element.get("width", "0")), 0)
                for bar in bars:
                    top, bottom = float(bar.get("y", "")), float(bar.get("y", "")) + 26
                    above = max(y for y in lines if y < top)
                    below = min(y for y in lines if y > top)
                    self.assertGreater(top - above, 10)
                    self.assertGreater(below - bottom, 10)

    def test_a_gap_says_its_time_and_a_long_one_that_it_is_shortened(self) -> None:
        drawn = image(self.life("approved_effect"))
        self.assertIn(">38.8 s</text>", drawn)
        self.assertEqual(drawn.count('class="brk"'), 2)
        self.assertIn("clock set back 1 h", image(self.life("clock_back")))

    def test_inferred_shapes_are_dashed_or_hatched_and_recorded_ones_are_not(self) -> None:
        gap = image(self.life("effect_commit_gap"))
        for css in ("dead", "lost", "guess", "life dash", "tick dash"):
            self.assertIn(f'class="{css}"', gap)
        plain = image(self.life("normal"))
        for css in ("dead", "lost", "guess"):
            self.assertNotIn(f'class="{css}"', plain)
        rules = re.sub(r"\s", "", image(self.life("normal")))
        for css in (".dead{", ".lost{", ".guess{", ".life.dash{"):
            body = rules[rules.index(css) :].split("}")[0]
            self.assertTrue("stroke-dasharray" in body or "hatch" in body, css)
        self.assertNotIn("dash", rules[rules.index(".msg{") :].split("}")[0])

    def test_a_receipt_whose_time_no_event_records_is_nowhere_solid(self) -> None:
        for name in ("foreign_receipt", "no_history"):
            with self.subTest(name):
                upright = page(self.life(name)).partition('<ol class="rail">')[2]
                rails = set(re.findall(r'class="(l4 [^"]*)"', upright))
                self.assertEqual(rails, {"l4 maybe bad"})
                self.assertIn(f".rail .{'.'.join(rails.pop().split()[1:])}{{", RAIL_RULES)
                self.assertIn("╎ ╎", text(self.life(name), 100))

    def test_the_boundary_stands_where_a_call_became_possible(self) -> None:
        self.assertIn("Publish boundary", image(self.life("normal")))
        self.assertIn("Dispatch boundary", image(self.life("approval")))
        self.assertIn("not reached: nothing can have been sent", image(self.life("waiting")))
        self.assertIn("never settled", image(self.life("budget_spent_unknown")))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class Contrast(Folder):
    def test_every_text_stands_out_by_4_5_to_1_in_both_schemes(self) -> None:
        for scheme in (LIGHT, DARK):
            for css, ink, grounds in TEXTS:
                for ground in grounds:
                    found = contrast(scheme[ink], scheme[ground])
                    self.assertGreaterEqual(found, 4.5, (css, ink, ground))

    def test_no_text_of_any_picture_is_missing_from_that_table(self) -> None:
        known = {frozenset(css.split()) - MODIFIERS for css, _, _ in TEXTS}
        for name in NAMES:
            root = ElementTree.fromstring(image(self.life(name)))
            used = {frozenset(e.get("class", "").split()) for e in root.iter(f"{SVG}text")}
            self.assertLessEqual({css - MODIFIERS for css in used}, known, name)

    def test_the_colours_tested_are_the_colours_of_the_page(self) -> None:
        drawn = page(self.life("normal"))
        for scheme in (LIGHT, DARK):
            for colour, value in scheme.items():
                self.assertIn(f"--{colour}:{value};", drawn)
        for chip in ("q", "r", "w", "k", "ok"):
            self.assertIn(f".chip.{chip}{{", RAIL_RULES)


class Strict(html.parser.HTMLParser):
    """Collects what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


class Hostile(Folder):
    def test_a_page_is_made_of_its_own_elements_only_whatever_a_field_holds(self) -> None:
        plain, nasty = Strict(), Strict()
        plain.feed(page(self.life("approved_before_effect")) + page(self.life("forged")))
        nasty.feed(page(self.life("hostile")))
        self.assertLessEqual(nasty.tags, plain.tags | {"bdi", "tspan"})
        self.assertLessEqual(nasty.attributes, plain.attributes | {"textlength", "lengthadjust"})
        self.assertEqual(nasty.links, [])

    def test_no_picture_holds_a_character_that_hides_or_reorders(self) -> None:
        life = self.life("hostile")
        for drawn in (page(life), image(life), text(life, 100)):
            for character in set(drawn) - {"\n"}:
                self.assertTrue(character.isprintable(), hex(ord(character)))
            self.assertIn("\\u202e", drawn)
            self.assertLess(len(drawn), 60_000)
        ElementTree.fromstring(image(life))

    def test_nothing_is_loaded_and_no_script_runs(self) -> None:
        for name in NAMES:
            drawn = page(self.life(name))
            self.assertNotRegex(drawn, r"(?i)<(script|link|iframe|img|object)|@import|url\((?!#)")
            self.assertIn("default-src &#x27;none&#x27;", drawn)

    def test_right_to_left_letters_are_kept_to_themselves(self) -> None:
        bench = jobs.Bench(self.folder, "rtl")
        bench.submit()
        bench.run("\u05e9\u05dc-7")
        life = self.at(bench, LATER)
        self.assertIn("<bdi>\u05e9\u05dc</bdi>-7", page(life))
        self.assertIn('<tspan class="iso">\u05e9\u05dc</tspan>-7', image(life))


class Size(Folder):
    def test_ten_thousand_events_make_a_small_page(self) -> None:
        bench = jobs.heartbeat(self.folder, "h", 10_000)
        life = self.at(bench, LATER)
        self.assertLess(len(page(life)), 60_000)
        self.assertLess(len(text(life, 80)), 6_000)
        self.assertIn("renewed 10,000 times", page(life))


class Terminal(Folder):
    def test_lines_fit_the_terminal(self) -> None:
        for name in NAMES:
            for width in (60, 80, 120):
                for line in text(self.life(name), width).splitlines():
                    self.assertLessEqual(columns(line), width + 1, (name, line))

    def test_an_encoding_without_box_characters_gets_ascii(self) -> None:
        for encoding in ("ascii", "cp1252", "no-such-encoding"):
            drawn = text(self.life("approved_effect"), 90, encoding)
            self.assertTrue(drawn.isascii(), encoding)
            self.assertIn("[Crashed or stalled]", drawn)
        self.assertIn("┃", text(self.life("approved_effect"), 90, "utf-8"))

    def test_it_tells_the_same_story_in_the_same_order(self) -> None:
        drawn = text(self.life("approved_effect"), 100)
        places = [
            drawn.index(said)
            for said in (
                "Submitted → queued",
                "Approved by reviewer → queued",
                "Dispatch recorded",
                "[The report is saved, once]",
                "[Crashed or stalled]",
                "[The lease runs out]",
                "Found: publish committed → effect_confirmed",
            )
        ]
        self.assertEqual(places, sorted(places))


def fingerprint(path: str) -> dict[str, str]:
    folder = os.path.dirname(path)
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = hashlib.sha256(file.read()).hexdigest()
    return found


class Commands(Folder):
    def run_command(self, *arguments: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        command.configure(parser)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command.execute(parser.parse_args(arguments))
        return code, out.getvalue(), err.getvalue()

    def test_drawing_changes_no_file(self) -> None:
        bench = jobs.dispatched(self.folder, "d")
        before = fingerprint(bench.path)
        for form in command.FORMATS:
            self.assertEqual(self.run_command("--db", bench.path, "--format", form)[0], 0)
        self.assertEqual(fingerprint(bench.path), before)

    def test_the_format_follows_the_file_and_the_file_is_whole_or_absent(self) -> None:
        bench = jobs.normal(self.folder, "n")
        starts = {"a.html": "<!doctype html>", "a.svg": "<svg ", "a.txt": "Job ", "a": "<!doctype"}
        for name, start in starts.items():
            path = os.path.join(self.folder, name)
            self.assertEqual(self.run_command("--db", bench.path, "-o", path), (0, "", ""))
            with open(path, encoding="utf-8") as file:
                self.assertTrue(file.read().startswith(start), name)
            self.assertTrue(stat.S_IMODE(os.stat(path).st_mode) & stat.S_IRUSR)
        with mock.patch("os.replace", side_effect=OSError("no room")):
            code, _, err = self.run_command("--db", bench.path, "-o", path + "x")
        told = f"error: -o {path + 'x'!r} cannot be written: no room; name another file\n"
        self.assertEqual((code, err), (1, told))
        self.assertFalse([name for name in os.listdir(self.folder) if "part" in name])

    def test_without_a_file_the_picture_goes_to_standard_output(self) -> None:
        bench = jobs.normal(self.folder, "n")
        self.assertTrue(self.run_command("--db", bench.path)[1].startswith("<!doctype html>"))
        drawn = self.run_command("--db", bench.path, "--format", "text", "-o", "-")[1]
        self.assertIn("Generation 1 claims the job", drawn)

    def test_errors_are_one_line_with_the_exit_codes_of_the_lab(self) -> None:
        bench = jobs.normal(self.folder, "n")
        folder = os.path.join(self.folder, "folder")
        os.mkdir(folder)
        link = os.path.join(self.folder, "link.html")
        os.symlink(bench.path, link)
        cases = {
            ("--db", os.path.join(self.folder, "nope")): 1,
            ("--db", folder): 1,
            ("--db", ":memory:"): 1,
            ("--db", bench.path, "--job", "a\nb"): 1,
            ("--db", bench.path + ".publisher.sqlite"): 1,
            ("--db", bench.path, "-o", bench.path): 2,
            ("--db", bench.path, "-o", link): 2,
            ("--db", bench.path, "-o", bench.path + ".publisher.sqlite"): 2,
            ("--db", bench.path, "-o", folder): 2,
            ("--db", bench.path, "-o", os.path.join(folder, "no", "x.html")): 1,
        }
        before = fingerprint(os.path.join(folder, "x")), os.path.getsize(bench.path)
        for arguments, expected in cases.items():
            with self.subTest(arguments):
                code, out, err = self.run_command(*arguments)
                self.assertEqual((code, out), (expected, ""))
                self.assertRegex(err, r"\Aerror: [^\n]+\n\Z")
                self.assertNotRegex(err, r"\.part|Errno")
        self.assertEqual(
            (fingerprint(os.path.join(folder, "x")), os.path.getsize(bench.path)), before
        )

    def test_a_picture_can_be_drawn_as_of_a_given_time(self) -> None:
        bench = jobs.waiting(self.folder, "w")
        drawn = self.run_command(
            "--db", bench.path, "--format", "text", "--now", str(bench.clock.at + 5)
        )[1]
        self.assertIn("Waiting for a person to decide", drawn)

    def test_as_typed_in_a_shell_into_a_pipe_that_closes_and_a_full_device(self) -> None:
        bench = jobs.normal(self.folder, "n")
        base = [sys.executable, "-W", "error", "-m", "workbench", "timeline", "--db", bench.path]
        script = '"$@" | head -c 20; exit "${PIPESTATUS[0]}"'
        closed = subprocess.run(
            ["bash", "-c", script, "x", *base], cwd=ROOT, capture_output=True, check=False
        )
        self.assertEqual((closed.returncode, closed.stderr), (0, b""))
        self.assertEqual(closed.stdout, b"<!doctype html><html")
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                done = subprocess.run(
                    base, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
                )
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rb"\Aerror: [^\n]+\n\Z")
