"""`tensorglot dynd`: values of any type between JSON, `.npy`, canonical bytes, CBOR and hexadecimal digits.

Reads all input, calls `tensorglot.dynd`, and writes the result. The JSON form of values
is that of `tensorglot.dynd.json`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.group import Group
from tensorglot.cli.options import (
    PATH,
    as_json,
    storage_option,
    storage_options_for,
    storage_options_of,
    write_output,
)
from tensorglot.cli.terminal import print_json, print_result

if TYPE_CHECKING:
    from tensorglot.model.tensor import Tensor

__all__ = ["command"]

_file = click.argument("file", type=PATH, default="-")
_type = click.option("--type", "type_text", metavar="TYPE", help="The type of the value, e.g. 'var * {x: ?int32}'.")
_output = click.option("-o", "--output", type=PATH, help="Write to this file, atomically.")


@click.group(cls=Group)
def command() -> None:
    """Serialize values of any type to canonical bytes, and back.

    A value is JSON, an array in a .npy file, or a table in a .parquet file. In JSON
    bytes are {"$hex": "00ff"}, a complex number is the pair of its parts, and an
    element of array[T] is {"$type": ..., "$value": ...}. Files may be at URLs. Each
    of the commands has --json.

    \b
    Examples:
      echo '[[1], [2]]' | tensorglot dynd encode --type 'var * var * int8' --hex
      tensorglot dynd type 'fixed[3]**2*real'
    """


@command.command
@_file
@_type
@click.option("--pack", is_flag=True, help="Write the type before the value: a .dynd file.")
@click.option("--hex", "as_hex", is_flag=True, help="Write hexadecimal digits.")
@_output
@storage_option
@as_json
def encode(file: str, type_text: str | None, pack: bool, as_hex: bool, output: str | None, as_json: bool) -> None:
    """Write the canonical bytes of a value.

    Without --type the type is inferred: numbers are int64 or float64, a list is N * T
    if all lists of its dimension have the same length, else var * T. FILE is - for the
    standard input.

    \b
    Examples:
      tensorglot dynd encode weights.npy --pack -o weights.dynd
      echo '["a", null]' | tensorglot dynd encode --hex
    """
    from tensorglot import dynd

    storage_options_of(file, output)
    tensor = _value(file, type_text)
    data = dynd.pack(tensor) if pack else tensor.serialize()
    _write(data, as_hex, output, as_json, {"type": str(tensor.type), "cid": tensor.cid(), "nbytes": len(data)})


@command.command
@_file
@_type
@click.option("--hex", "as_hex", is_flag=True, help="FILE has hexadecimal digits.")
@click.option("-o", "--output", type=PATH, help="Write to this file: Parquet if it ends in .parquet, else JSON.")
@storage_option
@as_json
def decode(file: str, type_text: str | None, as_hex: bool, output: str | None, as_json: bool) -> None:
    """Print the value of canonical bytes, as JSON.

    Without --type the bytes must begin with their type, as a .dynd file does. With
    --json the type is printed, too. With -o the value is written to a file.

    \b
    Examples:
      tensorglot dynd decode weights.dynd
      echo 03010203 | tensorglot dynd decode --hex --type 'var * int8'
    """
    from tensorglot import dynd

    storage_options_of(file, output)
    with _naming(file):
        data = _bytes(file, as_hex)
        tensor = dynd.unpack(data) if type_text is None else dynd.deserialize(data, type_text)
    _write_value(tensor, output, as_json)


@command.command("type")
@click.argument("text", required=False)
@click.option("--of", "file", type=PATH, help="The type of the value in this file.")
@storage_option
@as_json
def type_(text: str | None, file: str | None, as_json: bool) -> None:
    """Print the canonical spelling of a type.

    \b
    Examples:
      tensorglot dynd type 'var*{x:int, y:option[real],}'
      tensorglot dynd type --of weights.npy
    """
    from tensorglot import dynd
    from tensorglot.model.types.algebra import symbolic

    if (text is None) == (file is None):
        raise click.UsageError("Pass a type, or a file with --of.")
    storage_options_of(file)
    type = dynd.parse(text) if text is not None else _value(file or "-", None).type
    print_result({"type": str(type), "symbolic": symbolic(type)}, str(type), as_json=as_json)


@command.command
@_file
@_type
@click.option("--dag", is_flag=True, help="As a DAG-CBOR node with the type beside the bytes.")
@click.option("--decode", "decoding", is_flag=True, help="FILE is CBOR; print its value as JSON.")
@click.option("--hex", "as_hex", is_flag=True, help="CBOR as hexadecimal digits.")
@_output
@storage_option
@as_json
def cbor(
    file: str, type_text: str | None, dag: bool, decoding: bool, as_hex: bool, output: str | None, as_json: bool
) -> None:
    """Write a value as CBOR, or print the value of CBOR.

    \b
    Examples:
      echo '{"a": 1, "b": "x"}' | tensorglot dynd cbor --hex
      echo 83010203 | tensorglot dynd cbor --decode --hex
    """
    from tensorglot import dynd

    storage_options_of(file, output)
    profile: Any = "dag" if dag else "exchange"
    if decoding:
        with _naming(file):
            tensor = dynd.from_cbor(_bytes(file, as_hex), type_text, profile=profile)
        _write_value(tensor, output, as_json)
        return
    tensor = _value(file, type_text)
    data = dynd.to_cbor(tensor, profile=profile)
    _write(memoryview(data), as_hex, output, as_json, {"type": str(tensor.type), "nbytes": len(data)})


def _naming(file: str) -> AbstractContextManager[None]:
    """Adds the path of a file to errors about its contents."""
    from tensorglot.io.local import add_path_to_errors

    return add_path_to_errors(None if file == "-" else file)


def _bytes(file: str, as_hex: bool) -> bytes:
    from tensorglot.errors import InputError

    if "://" in file:
        data = _download(file)
    else:
        with click.open_file(file, "rb") as stream:
            data = stream.read()
    if not as_hex:
        return data
    try:
        return bytes.fromhex(data.decode("ascii", "replace"))
    except ValueError as error:
        raise InputError(f"invalid hexadecimal digits: {error}", rule="dynd.hex") from error


def _download(url: str) -> bytes:
    from tensorglot.io.place import as_place
    from tensorglot.io.source import source_for

    with closing(source_for(as_place(url, storage_options_for(url)))) as source:
        return source.read_bytes(0, source.size)


def _value(file: str, type_text: str | None) -> Tensor:
    import tensorglot as tg
    from tensorglot.dynd.json import from_json

    if file.lower().endswith(".npy"):
        return tg.dynd.array(tg.load(file, format="npy", storage_options=storage_options_for(file))["data"], type_text)
    if file.lower().endswith(".parquet"):
        found = tg.dynd.from_parquet(file, storage_options=storage_options_for(file))
        return found if type_text is None else tg.dynd.array(found.tolist(), type_text)
    type = None if type_text is None else tg.dynd.parse(type_text)
    with _naming(file):
        return from_json(_bytes(file, False), type)


def _write_value(tensor: Tensor, output: str | None, as_json: bool) -> None:
    """Prints a value as JSON, or writes it to a file."""
    from tensorglot import dynd
    from tensorglot.dynd.json import to_json

    if output is None:
        print_json({"type": str(tensor.type), "value": to_json(tensor)} if as_json else to_json(tensor))
        return
    if output.lower().endswith(".parquet"):
        dynd.to_parquet(tensor, output, storage_options=storage_options_for(output))
    else:
        write_output(output, [dynd.to_json(tensor).encode() + b"\n"])
    if as_json:
        print_json({"type": str(tensor.type), "output": output})


def _write(data: memoryview, as_hex: bool, output: str | None, as_json: bool, about: dict[str, Any]) -> None:
    from tensorglot.io.stream import write_stream

    piece = data.hex().encode() + b"\n" if as_hex else data
    if output is not None:
        write_output(output, [piece])
        about["output"] = output
    elif as_json:
        about["hex"] = data.hex()
    elif not as_hex and sys.stdout.isatty():
        raise click.UsageError("stdout is a terminal: pass --hex or -o FILE.")
    else:
        write_stream(sys.stdout.buffer, [piece])
    if as_json:
        print_json(about)
