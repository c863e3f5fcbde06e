"""Types: the canonical text, the parser's refusals and their carets, and its bounds."""

from __future__ import annotations

import dataclasses
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from bounds import seconds
from dynd_random import LEAVES, SYMBOLIC, random_type, sized
from peers import needs
from tensorglot import dynd
from tensorglot.errors import FormatError, InputError, LimitError, UnsupportedError
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.types import algebra as T
from tensorglot.model.types.text import parse_canonical, parse_each

SPELLINGS = {
    "real": "float64",
    "uintptr": "uint64",
    "size": "uint64",
    "fixed[3]**2 * int8": "3 * 3 * int8",
    "3**4*int8": "3 * 3 * 3 * 3 * int8",
    "bytes[align=8]": "bytes",
    "fixed_bytes[0]": "bytes[0]",
    "string[ 'U16' ]": "string",
    "fixed_string[3,'utf-16']": "fixed_string[3, 'utf16']",
    'fixed_string[3, "U32"]': "fixed_string[3, 'utf32']",
    "{ a : int , }": "{a: int32}",
    '{"a\'b": int}': "{'a\\'b': int32}",
    "{'\\u00E9\\U0001F600\\n': int}": "{'\\u00e9\\U0001f600\\n': int32}",
    "{'\x7f': int}": "{'\\u007f': int32}",
    "{_a1: int}": "{_a1: int32}",
    "{'\\u0008': int8}": "{'\\b': int8}",
    "{'\\u0009': int8}": "{'\\t': int8}",
    "{'\\u000a': int8}": "{'\\n': int8}",
    "{'\\u000c': int8}": "{'\\f': int8}",
    "{'\\u000d': int8}": "{'\\r': int8}",
    "{'\\u000b': int8}": "{'\\u000b': int8}",
    "{'1a': int}": "{'1a': int32}",
    "(...)": "(...)",
    "(int, ...)": "(int32, ...)",
    "{...}": "{...}",
    "() -> ()": "() -> ()",
    "(..., x: T) -> T": None,
    "( T , x : T , ... ) -> T": "(T, x: T, ...) -> T",
    "(T) -> (T) -> T": "(T) -> (T) -> T",
    "? ( T ) -> T": "?(T) -> T",
    "3 * (T) -> T": "3 * (T) -> T",
    "A... * N * Fixed**2 * var * T": "A... * N * Fixed * Fixed * var * T",
    "storage[2*3*4*int8, axis=[1,0,2]]": "storage[2 * 3 * 4 * int8, axis=[1, 0]]",
    "storage[2*3*var*int8, axis=[1,0]]": "storage[2 * 3 * var * int8, axis=[1, 0]]",
    "storage[2*3*int8, order='C']": "2 * 3 * int8",
    "storage[2*int8, order='F']": "2 * int8",
    "storage[int8, order='F']": "int8",
    "storage[int8, axis=[]]": "int8",
    "merkle[ var*int8 ]": "merkle[var * int8]",
    "complex[float16]": "complex[float16]",
    "complex[ T ]": "complex[T]",
    "fixed_bytes[ N, align=2 ]": "bytes[N]",
    "(bytes[N], N * complex[Float])": "(bytes[N], N * complex[Float])",
    "complex[float128]": "complex[float128]",
    "date": "date",
    "time[s]": "time['s']",
    'timedelta[ "ms" ]': "timedelta['ms']",
    "datetime['ns']": "datetime['ns']",
    "datetime[us,tz='Europe/Paris']": "datetime['us', tz='Europe/Paris']",
    "datetime['us', tz='\\u00E9\\'']": "datetime['us', tz='\\u00e9\\'']",
    "decimal[38,0]": "decimal[38, 0]",
    "decimal[5 , -38]": "decimal[5, -38]",
    "decimal[5, -1]": "decimal[5, -1]",
    "bytes[9223372036854775807]": "bytes[9223372036854775807]",
    "map[string,?map[int,date]]": "map[string, ?map[int32, date]]",
    "array[ Float ]": "array[Float]",
    "# a comment\nvar # of lists\n*\t# of numbers\nint8#": "var * int8",
    "{a # ':' }\n: # \"'\n int8, '#b': int8 }": "{a: int8, '#b': int8}",
    "{'a\\/b': int8}": "{'a/b': int8}",
    "\n var *\t\r\n int8 \n": "var * int8",
}
REFUSED = {
    "": "syntax",
    "foo": "name",
    "uint": "name",
    "var**2": "syntax",
    "3**0 * int8": "size",
    "3 * 4": "syntax",
    "{a: int8, a: int8}": "field",
    "{a int8}": "field",
    "{3: int8}": "field",
    "{a: int8 b: int8}": "syntax",
    "{a: int8": "syntax",
    "(int8,, int8)": "syntax",
    "(x: int8, int8) -> T": "field",
    "(..., int8)": "syntax",
    "{'\\q': int8}": "field",
    "{'\\ud83d\\ude00': int8}": "field",
    "{'\\U00110000': int8}": "field",
    "{'\\ud800': int8}": "field",
    "{'\\udfff': int8}": "field",
    "{'a\nb': int8}": "token",
    "complex[int8]": "complex",
    "complex[bfloat16]": "complex",
    "complex[N * T]": "syntax",
    "bytes[n]": "syntax",
    "bytes[N...]": "syntax",
    "bytes[9223372036854775808]": "size",
    "fixed_string[4611686018427387904, 'utf32']": "size",
    "storage[2 * int8, axis=[1, 0]]": "axis",
    "storage[var * 2 * int8, axis=[1, 0]]": "axis",
    "storage[2 * 3 * int8]": "syntax",
    "storage[2 * 3 * int8, axis=[1, 0, 2]]": "axis",
    "storage[2 * 3 * int8, axis=[0, 1, 2]]": "axis",
    "storage[2 * 3 * int8, axis=[1, 1]]": "axis",
    "storage[int8, axis=[0]]": "axis",
    "storage[2 * 3 * int8, axis=[1, 0], order='F']": "syntax",
    "storage[2 * var * int8, order='F']": "axis",
    "storage[2 * ?3 * int8, order='F']": "axis",
    "storage[2 * pointer[3 * int8], order='F']": "axis",
    "storage[2 * 3 * var * int8, order='F']": "axis",
    "storage[var * int8, order='C']": "axis",
    "storage[N * M * int8, order='F']": "axis",
    "storage[2 * storage[2 * 3 * int8, order='F'], order='F']": "axis",
    "datetime": "name",
    "time['h']": "unit",
    "timedelta[]": "syntax",
    "datetime['us', tz='']": "tz",
    "datetime['us', 'UTC']": "syntax",
    "decimal[0, 0]": "decimal",
    "decimal[39, 0]": "decimal",
    "decimal[5, 39]": "decimal",
    "decimal[5]": "syntax",
    "decimal[-5, 2]": "size",
    "decimal[5, -0]": "token",
    "(decimal[5, 39, int8)": "decimal",
    "(decimal[39, int8)": "syntax",
    "(datetime[, int8)": "syntax",
    "(datetime['us', tz='', int8)": "tz",
    "(bytes[N, int8)": "syntax",
    "(x: T)": "field",
    "-3 * int8": "size",
    "map[int8]": "syntax",
    "map[int8, int8, int8]": "syntax",
    "{a: int8 # }": "syntax",
    "int8 # a comment\n é": "token",
    "storage[2 * 3 * int8, order='K']": "axis",
    "pointer": "name",
    "int8[3]": "name",
    "?": "syntax",
    "? ?int8": "option",
    "?option[int8]": "option",
    "1" * 5000 + " * int8": "size",
    "é": "token",
    "\ud800": "token",
}


@pytest.mark.parametrize("text", [text for text, canonical in SPELLINGS.items() if canonical])
def test_spellings(text):
    t = dynd.parse(text)
    assert str(t) == SPELLINGS[text]
    assert dynd.parse(str(t)) == t
    assert hash(dynd.parse(str(t))) == hash(t)


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:40]))
def test_refusals(text):
    with pytest.raises(InputError) as caught:
        dynd.parse(text)
    assert caught.value.rule == f"dynd.type.{REFUSED[text]}"


def test_an_open_list_ends_there():
    with pytest.raises(InputError, match=r"rule dynd\.type\.syntax"):
        dynd.parse("(..., x: T) -> T")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_element_type_has_a_name(row):
    t = T.dense(row, (2, 3))
    assert dynd.parse(str(t)) == t
    assert T.dense_parts(t) == (row, (2, 3))
    assert dynd.parse(row.name) == T.dense(row, ())


def test_the_caret_is_under_the_fault():
    with pytest.raises(InputError) as caught:
        dynd.parse("{\n  a: int8,\n  b: foo\n}")
    lines = str(caught.value).splitlines()
    assert "line 3, column 6" in lines[0]
    assert lines[1][lines[2].index("^") :].startswith("foo")


def test_of_a_long_line_what_is_near_the_fault_is_shown() -> None:
    fields = ", ".join(f"f{i}: int8" for i in range(20))
    with pytest.raises(InputError) as caught:
        dynd.parse(f"{{{fields}, g: foo, {fields}}}")
    line, caret = str(caught.value).splitlines()[1:3]
    assert (line.strip(), caret) == (f"{f'{fields}, g: '[-60:]}{f'foo, {fields}'[:20]}", f"  {' ' * 60}^")


@settings(deadline=None, max_examples=500, database=None)
@given(st.integers(0, 2**32))
def test_parse_of_str(seed):
    t = random_type(Random(seed))
    assert dynd.parse(str(t)) == t
    assert str(dynd.parse(str(t).replace(" ", "  ") if "'" not in str(t) else str(t))) == str(t)
    assert parse_canonical(str(t)) == t


@settings(deadline=None, max_examples=1000, database=None)
@given(st.text("?*()[]{}.,:->'\\ \n3vartinN" + "é", max_size=30) | st.text(max_size=20))
def test_any_text_is_parsed_or_refused(text):
    try:
        t = dynd.parse(text)
    except InputError as error:
        assert error.rule.startswith("dynd.type.")  # noqa: PT017
    else:
        assert dynd.parse(str(t)) == t


@pytest.mark.parametrize("text", [None, 3, b"int8", ["int8"], dynd.parse("int8")])
def test_a_type_must_be_parsed_from_a_str(text):
    with pytest.raises(InputError, match=r"rule dynd\.type\.text"):
        dynd.parse(text)


def test_the_length_of_a_text_has_a_bound_that_can_be_raised():
    text = "{" + ", ".join(f"a{i}: int8" for i in range(10_000)) + "}"
    with pytest.raises(InputError) as caught:
        dynd.parse(text)
    assert caught.value.rule == "dynd.type.length"
    assert "type_nbytes" in str(caught.value)
    assert str(dynd.parse(text, Limits(type_nbytes=1 << 20))) == text
    packed = sized(text.encode()) + bytes(10_000)
    assert str(dynd.unpack(packed, limits=Limits(type_nbytes=1 << 20)).type) == text
    with pytest.raises(LimitError):
        dynd.unpack(packed)
    with pytest.raises(LimitError):
        parse_canonical("var * int8", Limits(type_nbytes=9))


ATTACKS = {
    "pointers": "pointer[" * 125_000,
    "parentheses": "(" * 1_000_000,
    "braces": "{a:" * 333_333,
    "options": "?" * 1_000_000,
    "dimensions": "var * " * 166_666 + "int8",
    "functions": "() -> " * 166_666 + "T",
    "fields": "{" + ", ".join(f"a{i}: int8" for i in range(80_000)) + "}",
    "digits": "9" * 1_000_000 + " * int8",
    "quote": "{'" + "x" * 1_000_000,
    "escapes": "{'" + "\\u0041" * 160_000 + "': int8}",
    "blanks": " " * 1_000_000,
    "lines": "\n" * 1_000_000 + "foo",
    "comments": "#\n" * 500_000 + "foo",
    "a comment": "#" * 1_000_000 + "\n\xe9",
    "maps": "map[int8, " * 100_000,
}


CANONICAL = [
    "(int8, ?string, (3 * int8, int8))",
    "{a: int8, 'b,': (int8), c: {d: int8}, '': {}}",
    "2 * {a: 3 * int8, b: date}",
    "map[string, ?map[bytes[3], char]]",
    "storage[2 * 3 * 4 * var * int8, axis=[2, 0, 1]]",
    "(pointer[?type], array[(A, ...)], merkle[N * T])",
    "(N... * Fixed * complex[T], x: ... * bytes[N], ...) -> () -> {a: Any, ...}",
    "(time['us'], timedelta['ns'], datetime['s', tz='\\u00e9\\'/'], decimal[38, -2])",
    "(fixed_string[9, 'utf16'], fixed_string[1], complex[float16], complex[float64])",
    "{'\\n\\\\': void, '\\U0001f600': int128, 'a b': ?pointer[float4_e2m1fn]}",
]
"""Texts that together have everything that the grammar has."""
CHARACTERS = " ,:'()[]{}?*a1A.-\\"


def parts(type: T.Type) -> list[Any]:
    """A type as lists of its class and its fields, and so on inside."""

    def plain(value: Any) -> Any:
        if isinstance(value, T.Type):
            return parts(value)
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return [type.__class__.__name__, *(plain(getattr(type, field.name)) for field in dataclasses.fields(type))]


def check_that_the_parser_agrees(text: str, limits: Limits = DEFAULT) -> None:
    """Data accepts a text if and only if it is how the parser's result is printed, and refuses it by the same rule."""
    expected, rule = None, "dynd.type.canonical"
    try:
        expected = dynd.parse(f" {text}", limits)  # not the canonical spelling, which is read in another way
    except InputError as error:
        rule = str(error.rule)
    if expected is not None and str(expected) == text:
        assert parts(parse_canonical(text, limits)) == parts(expected)
        assert parts(dynd.parse(text, limits)) == parts(expected)
        assert T.symbolic(parse_canonical(text, limits)) == T.symbolic(expected)
    else:
        with pytest.raises(FormatError) as caught:
            parse_canonical(text, limits)
        # A name that is there twice may be found before or after what is wrong beside it. No canonical text has powers.
        assert caught.value.rule == rule or "dynd.type.field" in (caught.value.rule, rule) or "**" in text


@pytest.mark.parametrize("text", CANONICAL)
def test_every_text_of_one_other_character_is_as_the_parser_says(text: str) -> None:
    assert str(parse_canonical(text)) == text
    for at in range(len(text) + 1):
        for character in CHARACTERS:
            check_that_the_parser_agrees(text[:at] + character + text[at:])
            check_that_the_parser_agrees(text[:at] + character + text[at + 1 :])
        check_that_the_parser_agrees(text[:at] + text[at + 1 :])
        check_that_the_parser_agrees(text[:at])


@settings(deadline=None, max_examples=1000, database=None)
@given(st.integers(0, 2**32))
def test_texts_with_pieces_of_others_are_as_the_parser_says(seed: int) -> None:
    rng = Random(seed)
    text = str(random_type(rng)) if rng.random() < 0.5 else rng.choice([*CANONICAL, *SPELLINGS, *REFUSED])[:300]
    for _ in range(rng.choice([0, 1, 1, 2])):
        other = rng.choice([*CANONICAL, *SPELLINGS])
        begin, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        first, last = sorted(rng.randrange(len(other) + 1) for _ in range(2))
        text = text[:begin] + other[first : min(last, first + 9)] + text[rng.choice([begin, end]) :]
    limits = rng.choice([DEFAULT, Limits(type_depth=3), Limits(rank=2)])
    check_that_the_parser_agrees(text, limits)


@settings(max_examples=400)
@given(st.text(" ,:'(){}ab_1*?3", max_size=12))
def test_fields_of_any_characters_are_as_the_parser_says(text: str) -> None:
    check_that_the_parser_agrees(f"{{{text}}}")
    check_that_the_parser_agrees(f"{{a: int8, {text}}}")


@pytest.mark.parametrize(
    ("inner", "rule"),
    [
        ("int9", "name"), ("int8!", "token"), ("(int8", "syntax"), ("??int8", "option"),
        ("storage[2 * 3 * int8, axis=[0, 0]]", "axis"), ("{a: int8, a: int8}", "field"), ("var * " * 65, "rank"),
        ("pointer[" * 70, "depth"), ("int", "canonical"), ("decimal[39, 0]", "decimal"), ("map[int8]", "syntax"),
        ("datetime['h']", "unit"), ("fixed_string[0]", "fixed_string"), ("complex[int8]", "complex"),
        ("datetime['s', tz='']", "tz"), ("fixed_string[3, 'x']", "encoding"), ("99999999999999999999 * int8", "size"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_of_a_long_text_as_of_a_short_one(inner: str, rule: str) -> None:
    items = ", ".join(f"({i} * int8, {{a{i}: string}})" for i in range(500))
    found = set()
    for begin, end in (
        ("(", ")"), (f"(({items}), ", f", {items})"), (f"({items}, ", ")"), (f"map[{{a: ({items}), b: int8}}, ", "]"),
        (f"((({items}), ", f"), {items})"), (f"?pointer[({items}, ", ")]"), (f"() -> ({items}, ", ")"),
    ):  # fmt: skip
        with pytest.raises(FormatError) as caught:
            parse_canonical(f"{begin}{inner}{end}")
        found.add(caught.value.rule)
        column = int(re.findall(r"column (\d+):", str(caught.value))[0]) - 1
        assert len(begin) - 1 <= column <= len(begin) + len(inner) + (len(end) if inner == "(int8" else 0)
    assert found == {f"dynd.type.{rule}"}


def test_what_follows_a_long_type_is_said_to_follow_it() -> None:
    long = f"({', '.join(f'{i} * int8' for i in range(999))})"
    for text, rule in (
        (f"{long} int8", "syntax"), (f"({long} int8)", "syntax"), (f"map[{long}; int8]", "token"),
        (f"{long} -> {long} -> ", "syntax"), (f"(x: {long}, int8) -> T", "field"), (f"(x: {long})", "field"),
        (f"?pointer[?{long}]", "option"), (f"storage[2 * {long}, axis=[1, 0]]", "axis"), (f"{long}\n", "canonical"),
        (f"{{a: {long}, a: int8}}", "field"), (f"array[{long}", "syntax"), (f"{long} -> N -> int8", "syntax"),
        (f"{long} -> N  * int8", "canonical"), (f"{long}->int8", "canonical"), (f"() -> {long}->int8", "canonical"),
        (f"map[int8, {long}->int8]", "canonical"), (f"map[int8, {long} -> N  * int8]", "canonical"),
        (f"map[int8, {long} int8]", "syntax"), (f"{'N' * 99}  * int8", "canonical"), (f"?{long}->int8", "canonical"),
    ):  # fmt: skip
        with pytest.raises(FormatError) as caught:
            parse_canonical(text)
        assert caught.value.rule == f"dynd.type.{rule}", text[-20:]


def test_a_type_that_was_read_is_a_value_like_any_other() -> None:
    for text in CANONICAL:
        made = dynd.parse(f" {text}")
        for found in (parse_canonical(text), pickle.loads(pickle.dumps(parse_canonical(text)))):
            assert (found, hash(found), repr(found)) == (made, hash(made), repr(made))
            assert parts(found) == parts(made)
            with pytest.raises(AttributeError, match=r"no attribute 'absent'|has no attribute"):
                found.absent  # type: ignore[attr-defined]
    first, second = parse_canonical("(3 * var * int8, 3 * var * int8)").children
    assert first is second, "what has the same text is made once"


def test_a_type_that_was_read_keeps_few_others_alive() -> None:
    """In a file of many types, and inside a long type."""
    texts = [f"{{x{i}: {text}}}" for i in range(300) for text in CANONICAL]
    rows = parse_each(texts, DEFAULT)
    inside = parse_each([f"({', '.join(texts)})"], Limits(type_nbytes=1 << 20)).type(0).children
    for found in ([rows.type(row) for row in rows.roots.tolist()], inside):
        for text, type in zip(texts[-40:], found[-40:], strict=True):
            assert type.origin is None or len(pickle.dumps(type.origin)) < 40_000
            assert parts(type) == parts(dynd.parse(f" {text}"))
            assert T.symbolic(type) == T.symbolic(dynd.parse(f" {text}"))


def test_threads_may_ask_for_the_parts_of_one_type() -> None:
    fields = [f"a{i}: ({i} * var * int8, {{b: string}})" for i in range(1500)]
    type = parse_canonical(f"{{{', '.join(fields)}}}")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: type.children, range(8)))
    assert all(one is other for children in found for one, other in zip(children, found[0], strict=True))


def test_items_that_repeat_are_as_deep_as_limits_allow():
    text = f"({', '.join(['(' * 63 + ')' * 63] * 9)})"
    assert str(parse_canonical(text)) == text
    with pytest.raises(LimitError):
        parse_canonical(f"({', '.join([f'({text})'] * 9)})")


@pytest.mark.parametrize("nbytes", [1 << 20, 1 << 16], ids=["1 MB", "64 KiB"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_long_texts_are_refused_at_once(attack, nbytes):
    text = ATTACKS[attack][:nbytes]

    def refused():
        with pytest.raises(InputError):
            dynd.parse(text)
        with pytest.raises(FormatError):
            parse_canonical(text)

    bound = 0.1 if nbytes > 1 << 16 else 1
    assert seconds(refused, bound) < bound


def test_a_power_of_a_dimension_is_refused_in_data_before_it_is_repeated():
    for text in ("3 ** 2 * int8", "(int8, 3 ** 2 * string)", "{a: 3 ** 99 * int8}", "var ** 2 * int8"):
        with pytest.raises(FormatError) as caught:
            parse_canonical(text)
        assert caught.value.rule == "dynd.type.canonical"


def test_depth_and_rank_have_bounds_that_can_be_raised():
    for text in ("pointer[" * 64 + "int8" + "]" * 64, "?1 * " * 64 + "int8", "1 * " * 64 + "complex[float32]"):
        assert str(dynd.parse(text)) == text
    deeper = "pointer[" * 65 + "int8" + "]" * 65
    longer = "var * " * 65 + "int8"
    for text, rule in ((deeper, "dynd.type.depth"), (longer, "dynd.type.rank")):
        with pytest.raises(InputError) as caught:
            dynd.parse(text)
        assert caught.value.rule == rule
        with pytest.raises(LimitError):
            parse_canonical(text)
        assert str(dynd.parse(text, Limits(type_depth=10_000, rank=10_000))) == text


def test_deep_types_need_no_recursion():
    t: T.Type = T.Void()
    for _ in range(100_000):
        t = T.Pointer(t)
    assert len(str(t)) == 100_000 * len("pointer[]") + 4
    assert hash(t) == hash(str(t))
    assert not T.symbolic(t)
    assert T.fold(t, lambda _, inner: 1 + sum(inner)) == 100_001


def test_expansion_is_bounded():
    def refused():
        with pytest.raises(InputError) as caught:
            dynd.parse("{" + ",".join(f"a{i}:1**64*int8" for i in range(3_000)) + "}")
        assert caught.value.rule in ("dynd.type.rank", "dynd.type.length")

    assert seconds(refused, 1) < 1


@pytest.mark.parametrize("text", [*SYMBOLIC, "array[T]", "{a: Any}"])
def test_symbolic(text):
    t = dynd.parse(text)
    assert T.symbolic(t) == (not text.startswith("array"))
    if T.symbolic(t):
        with pytest.raises(InputError) as caught:
            dynd.deserialize(b"", t)
        assert caught.value.rule == "dynd.symbolic"


@pytest.mark.parametrize("name", ["", "n", "3", "N M", "N\n", "É"])
def test_a_variable_has_a_name_that_can_be_parsed(name):
    element = T.Scalar(BY_NAME["int8"])
    for make in (
        T.Symbol,
        lambda name: T.SymbolicDim(name, False, element),
        lambda name: T.SymbolicSized("bytes", name),
    ):
        with pytest.raises(InputError) as caught:
            make(name)
        assert caught.value.rule == "dynd.type.symbol"
    assert str(T.SymbolicDim("", True, element)) == "... * int8"


def test_types_are_values():
    assert len({*LEAVES, *LEAVES}) == len({str(t) for t in LEAVES})
    assert T.Fixed(3, T.Scalar(BY_NAME["int32"])) == dynd.parse("3 * int")
    assert repr(dynd.parse("3*int")) == "Type('3 * int32')"
    with pytest.raises(AttributeError):
        dynd.parse("3 * int8").size = 4


DEEP = {
    "tuples": (lambda t: T.Tuple((t,)), b""),
    "lists": (T.Var, b"\1"),
    "options": (lambda t: T.Option(T.Tuple((t,))), b"\1"),
}


def deep(case, levels):
    wrap, byte = DEEP[case]
    t = T.String()
    for _ in range(levels):
        t = wrap(t)
    return t, byte * levels + b"\1x"


@pytest.mark.parametrize(("case", "levels"), [("tuples", 100_000), ("lists", 3000), ("options", 3000)])
def test_values_of_deep_types(case, levels):
    """Types made by hand, as text has bounds."""
    t, data = deep(case, levels)
    tensor = dynd.deserialize(data, t)
    assert tensor.serialize() == data
    inner = tensor.tolist()
    while not isinstance(inner, str):
        (inner,) = inner
    assert inner == "x"


@pytest.mark.parametrize("case", DEEP)
def test_deep_values_go_nowhere_that_does_not_take_them(case):
    t, data = deep(case, 1000)
    tensor = dynd.deserialize(data, t)
    assert dynd.serialize(tensor.tolist(), t) == data
    for call in (tensor.cid, lambda: tg.dumps({"t": tensor}, format="ztensor"), lambda: dynd.pack(tensor)):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.rule in ("dynd.type.length", "dynd.type.depth", "dynd.type.rank")
    for library, call in (("awkward", tensor.awkward), ("pyarrow", tensor.arrow)):
        needs(library)
        with pytest.raises(UnsupportedError, match=f"rule dynd.{library.removeprefix('py')}"):
            call()
