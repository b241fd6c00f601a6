"""The timeline's pages in a real headless Chromium: console, geometry at three widths, contrast."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Sequence

from workbench.tests import timeline_jobs as jobs
from workbench.tests.test_timeline_story import LATER
from workbench.timeline.command import draw

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for found in map(shutil.which, BROWSERS) if found), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=60000",
    "--window-size=1500,1200",
)
WIDTHS = (500, 1200, 1400)
LOOKED_AT = (  # each kind of shape once; the geometry of all kinds is computed elsewhere
    "normal",
    "effect_commit_gap",
    "three_effects",
    "retry_after",
    "memory_revoked_after_effect",
    "cancel_after_effect",
    "rejected",
    "approved_effect",
    "reconcile_many",
    "parked_by_cancel",
    "clock_back",
    "foreign_receipt",
    "service_missing",
    "hostile",
)
LOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "timeline_look.js")


@unittest.skipIf(CHROMIUM is None, "no Chromium on this machine: pages were not looked at")
class Pages(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def open(self, content: str, *flags: str) -> str:
        """The page as it is after loading; anything on its console is a failure."""
        path = os.path.join(self.folder, "page.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        profile = tempfile.mkdtemp(dir=self.folder)
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *flags, f"file://{path}"]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        errors = done.stderr.decode("utf-8", "replace")
        self.assertEqual(re.findall(r"CONSOLE.*", errors), [])
        self.assertEqual(done.returncode, 0, errors[-2000:])
        return done.stdout.decode("utf-8")

    def test_geometry_and_contrast_of_every_kind_of_job_at_three_widths(self) -> None:
        result = self.look(LOOKED_AT)
        self.assertEqual(len(result), len(LOOKED_AT) * len(WIDTHS))
        for page, wrong in result.items():
            with self.subTest(page):
                self.assertEqual(wrong, [])

    def look(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Page and width -> what is wrong there, measured by a script beside the pages."""
        frames = []
        for name in names:
            drawn = draw(jobs.made(name), None, "html", lambda: LATER)
            for width in WIDTHS:
                frames.append(
                    f'<iframe data-name="{name}" data-width="{width}" srcdoc="{html.escape(drawn)}"'
                    f' style="width:{width}px;height:6000px;border:0"></iframe>'
                )
        with open(LOOK, encoding="utf-8") as file:
            script = file.read()
        wrapper = f'<!doctype html><meta charset="utf-8"><script>{script}</script>{"".join(frames)}'
        seen = self.open(wrapper, "--dump-dom")
        found = re.search(r'<pre id="result">BEGIN(.*)END</pre>', seen, re.DOTALL)
        self.assertIsNotNone(found, "the measuring script did not finish")
        assert found is not None
        result: dict[str, list[str]] = json.loads(html.unescape(found[1]))
        return result

    def test_a_hostile_page_opens_as_it_was_written(self) -> None:
        seen = self.open(draw(jobs.made("hostile"), None, "html", lambda: LATER), "--dump-dom")
        self.assertNotIn("owned</title>", seen)
        self.assertNotIn("<script", seen)

    def test_a_picture_can_be_shown_by_an_image_element(self) -> None:
        path = os.path.join(self.folder, "picture.svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(draw(jobs.made("approved_effect"), None, "svg", lambda: LATER))
        shown = (
            '<!doctype html><title>none</title><img src="picture.svg" onload="document.title ='
            " 'loaded ' + this.naturalWidth + ' ' + this.naturalHeight\">"
        )
        found = re.search(r"<title>loaded (\d+) (\d+)</title>", self.open(shown, "--dump-dom"))
        self.assertIsNotNone(found)
        assert found is not None
        self.assertGreater(int(found[1]), 900)
