"""Experiments on the lab and proofs about it; the lab never imports this."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """The type of an option that counts something."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)
