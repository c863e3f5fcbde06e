"""`python -m benchmarks [COMMAND] ...`: run (the default) or one of COMMANDS."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "run": ("run", "main"),
    "report": ("report", "main"),
    "publish": ("report", "publish"),
    "compare": ("claims", "main"),
    "record": ("record", "main"),
    "growth": ("growth", "main"),
    "compression": ("compression", "main"),
    "instructions": ("instructions", "main"),
}
"""The module of each, and its function."""

if __name__ == "__main__":
    command, arguments = "run", sys.argv[1:]
    if arguments and arguments[0] in COMMANDS:
        command, *arguments = arguments
    module, function = COMMANDS[command]
    getattr(import_module(f"benchmarks.{module}"), function)(arguments)
