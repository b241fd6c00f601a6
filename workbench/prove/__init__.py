"""Instruments that try to break the lab, exhaustively within stated bounds."""
