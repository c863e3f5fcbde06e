"""`tensorglot view`"""

from __future__ import annotations

import sys
import threading
import webbrowser

import click

from tensorglot.cli.options import (
    as_json,
    file_argument,
    reading_format,
    storage_option,
    storage_options,
)
from tensorglot.cli.terminal import message, print_json

__all__ = ["command"]


@click.command
@file_argument
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on localhost; default: any that is free.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
@reading_format
@storage_option
@as_json
def command(file: str, port: int, browser: bool, format: str | None, as_json: bool) -> None:
    """Show the same page for a file of any size, in the browser.

    Reads the index, serves the page on localhost, and computes the statistics of a
    tensor when its card is opened. The address contains a random token: requests
    without it are refused. Runs until it is interrupted.

    \b
    Examples:
      tensorglot view model.bt
      tensorglot view model.bt --no-browser --port 8000
    """
    import tensorglot as tg
    from tensorglot.report import Viewer

    if file == "-":
        raise click.UsageError("view needs a file, not stdin.")
    with (
        tg.open(file, format=format, storage_options=storage_options()) as archive,
        Viewer(archive, file, port) as viewer,
    ):
        if as_json:
            print_json({"file": file, "url": viewer.url})
            sys.stdout.flush()
        else:
            print(viewer.url, flush=True)
            message("press Ctrl-C to stop")
        if browser:
            webbrowser.open(viewer.url)
        threading.Event().wait()
