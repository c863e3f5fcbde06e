"""`tensorglot view`"""

from __future__ import annotations

import sys
import threading
import webbrowser
from contextlib import nullcontext

import click

from tensorglot.cli.options import PATH, file_argument, reading_options, storage_options_of
from tensorglot.cli.terminal import message, print_json

__all__ = ["command"]


@click.command
@file_argument
@click.argument("file2", type=PATH, required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on localhost; default: any that is free.")
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
@reading_options
def command(file: str, file2: str | None, port: int, browser: bool, format: str | None, as_json: bool) -> None:
    """Show the page of `report` in the browser, for files of any size.

    The page is that of `tensorglot report`. Reads the index, serves the page on
    localhost, and computes the statistics of a tensor when its card is opened. With two
    files a tensor is compared when its card is opened, and all of them by a button of
    the page. The address contains a random token: requests without it are refused.
    Runs until it is interrupted.

    \b
    Examples:
      tensorglot view model.bt
      tensorglot view before.bt after.bt
      tensorglot view model.bt --no-browser --port 8000
    """
    import tensorglot as tg
    from tensorglot.report import Viewer

    if "-" in (file, file2):
        raise click.UsageError("view needs a file, not stdin.")
    of_one, of_two = storage_options_of(file, file2)
    with (
        tg.open(file, format=format, storage_options=of_one) as archive,
        tg.open(file2, storage_options=of_two) if file2 is not None else nullcontext() as other,
        Viewer(archive, file, port, other=other, other_name=file2 or "") as viewer,
    ):
        if as_json:
            print_json({"file": file, "file2": file2, "url": viewer.url})
            sys.stdout.flush()
        else:
            print(viewer.url, flush=True)
            message("press Ctrl-C to stop")
        if browser:
            webbrowser.open(viewer.url)
        threading.Event().wait()
