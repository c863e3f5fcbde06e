"""`tensorglot hash`"""

from __future__ import annotations

import click

from tensorglot.cli.options import file_argument, patterns_argument, reading_options, source_of, verb_options
from tensorglot.cli.terminal import fit_names, message, name_text, one_line, print_json
from tensorglot.errors import plural

__all__ = ["command"]


@click.command
@file_argument
@patterns_argument
@reading_options
def command(file: str, patterns: tuple[str, ...], format: str | None, as_json: bool) -> int:
    """Print the CID of every tensor, and of all together.

    A CID is a hash of type, shape and values: the same tensor has the same CID in
    every container, compressed or not. The last line is the CID of all tensors and
    their names, without metadata. Checksums are compared if there are any: a tensor
    that fails is listed without a CID, and the exit code is 1.

    \b
    Examples:
      tensorglot hash model.bt
      tensorglot hash model.bt --json | jq -r .cid
    """
    import tensorglot as tg

    with verb_options("hashing") as options:
        identity = tg.identify(source_of(file), select=patterns or None, format=format, **options)
    if as_json:
        print_json({"file": file, **identity.to_dict()})
    else:
        cids = list(identity.tensors.values())
        names = fit_names([name_text(name) for name in identity.tensors], max(map(len, cids), default=0) + 2)
        for name, cid in zip(names, cids, strict=True):
            print(f"{cid}  {name}")
        for problem in identity.problems:
            message(one_line(str(problem)))
        if identity.cid is not None:
            print(f"\n{identity.cid}  together, {plural(len(identity.tensors), 'tensor')}")
    return 0 if identity.ok else 1 if len(identity.problems) > len(identity.unsupported) else 4
