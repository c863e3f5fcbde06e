"""Mutants that change nothing that a caller could see, each with the reason. `tests/mutants.py` leaves them out."""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

EQUIVALENT: dict[str, str] = {}
"""`module: line  →  changed line`, as the campaign prints it, and why."""
