"""`python -m benchmarks [COMMAND] ...`: run (the default), report, publish, growth, instructions."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = ("run", "report", "publish", "growth", "instructions")

if __name__ == "__main__":
    command, arguments = "run", sys.argv[1:]
    if arguments and arguments[0] in COMMANDS:
        command, *arguments = arguments
    module = import_module(f"benchmarks.{'report' if command == 'publish' else command}")
    (module.publish if command == "publish" else module.main)(arguments)
