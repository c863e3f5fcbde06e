"""The entry point of the command, also as `python -m tensorglot`: an interrupt of the imports prints no traceback."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the command line."""
    try:
        from tensorglot.cli import main as run

        run()
    except KeyboardInterrupt:
        if "_TENSORGLOT_COMPLETE" not in os.environ:
            print("error: interrupted", file=sys.stderr)
        os._exit(130)


if __name__ == "__main__":
    main()
