"""Pictures of files: a report in one HTML file, a viewer for large files, and a page that opens dropped files.

    grid        a matrix as blocks: mean, minimum and maximum of each, in one pass
    data        the numbers of a page: the index as columns, a card for each tensor
    changes     what differs between two files, and where inside each tensor
    cards       cards of one file or of two, made one at a time
    page        the numbers and the assets as one HTML file
    notebook    archives, tensors and results as small tables in Jupyter
    server      a page on localhost, whose cards are computed when they are opened

`assets` has what the browser runs: HTML, CSS and plain JavaScript that make no request to
another host. Names and metadata of files are never markup: they reach the page as JSON,
and the document as text nodes.
"""

from __future__ import annotations

from tensorglot.report.page import opener, write
from tensorglot.report.server import Viewer

__all__ = ["Viewer", "opener", "write"]


def __dir__() -> list[str]:
    return __all__
