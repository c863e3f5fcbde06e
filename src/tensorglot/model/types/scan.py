"""The tokens of a type string, one at a time, and errors that show the line and column.

One regular expression finds the next token, so the time is linear in the text. Knows
no grammar beyond names, numbers and quoting.
"""

from __future__ import annotations

import re
from typing import NoReturn

from tensorglot.errors import TensorglotError

__all__ = ["Scanner", "unescape"]

_BLANK = r"(?:[ \t\r\n]++|\#[^\n]*+)*+"  # possessive: a comment is never backtracked into
_TOKEN = re.compile(
    rf"""{_BLANK}(?:
        (?P<int>(?:0|-?[1-9][0-9]*)(?![0-9]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<text>'(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*")
      | (?P<sign>\*\*|->|\.\.\.|[*?,:=()\[\]{{}}])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_BLANKS = re.compile(_BLANK)
_ESCAPE = re.compile(r"\\(?:([\\'\"/bfnrt])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|())", re.ASCII)
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_BEFORE_CARET, _AFTER_CARET = 60, 20


def unescape(text: str) -> str | None:
    """The text between quotes; None if an escape in it is invalid."""
    if "\\" not in text:
        return text
    if any(_escaped(match) is None for match in _ESCAPE.finditer(text)):
        return None
    return _ESCAPE.sub(lambda match: _escaped(match) or "", text)


def _escaped(match: re.Match[str]) -> str | None:
    if match[1]:
        return _ESCAPED[match[1]]
    code = int(match[2] or match[3] or "110000", 16)
    return None if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)


class Scanner:
    """Reads a text from left to right. The current token is `lexeme`, of a `kind`, at offset `at`."""

    def __init__(self, text: str, nbytes_max: int, fault: type[TensorglotError], beyond: type[TensorglotError]) -> None:
        self.text, self.nbytes_max, self.fault, self.beyond = text, nbytes_max, fault, beyond
        self.at = self.next = 0
        self.kind = self.lexeme = ""
        self.check_length(text)
        self.advance()

    def check_length(self, text: str) -> None:
        if len(text) > self.nbytes_max:
            raise self.beyond(
                f"the type has {len(text)} characters; Limits.type_nbytes allows {self.nbytes_max}",
                rule="dynd.type.length",
            )

    def advance(self) -> str:
        """Moves to the next token and returns the current one."""
        previous = self.lexeme
        match = _TOKEN.match(self.text, self.next)
        if match is None:
            blank = _BLANKS.match(self.text, self.next)
            self.at = blank.end() if blank else self.next
            self.refuse("unexpected character", "token")
        kind = match.lastgroup or ""
        self.kind, self.lexeme, self.at, self.next = kind, match[kind], match.start(kind), match.end()
        return previous

    def peek(self) -> str | None:
        """The token after the current one, if it is a sign."""
        match = _TOKEN.match(self.text, self.next)
        return match["sign"] if match else None

    def accept(self, token: str) -> bool:
        if self.lexeme != token or self.kind not in ("sign", "name"):
            return False
        self.advance()
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.refuse(f"expected '{token}'", "syntax")

    def integer(self, *, signed: bool = False) -> int:
        if self.kind != "int":
            self.refuse("expected a number", "syntax")
        if len(self.lexeme) > 19 or int(self.lexeme) >= 1 << 63 or (self.lexeme[0] == "-" and not signed):
            self.refuse("a number must be between 0 and 2**63 - 1", "size")
        return int(self.advance())

    def quoted(self) -> str:
        if self.kind != "text":
            self.refuse("expected a quoted string", "syntax")
        text = _ESCAPE.sub(self._unescape, self.lexeme[1:-1])
        self.advance()
        return text

    def _unescape(self, match: re.Match[str]) -> str:
        found = _escaped(match)
        if found is None:
            self.refuse("invalid escape", "field", self.at + 1 + match.start())
        return found

    def refuse(self, message: str, rule: str, at: int | None = None, *, beyond: bool = False) -> NoReturn:
        at = self.at if at is None else at
        begin = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        column = at - begin
        line = self.text[max(begin, at - _BEFORE_CARET) : min(len(self.text) if end < 0 else end, at + _AFTER_CARET)]
        shown = "".join(c if c.isprintable() else "?" for c in line)
        where = f"line {self.text.count(chr(10), 0, at) + 1}, column {column + 1}"
        caret = " " * min(column, _BEFORE_CARET) + "^"
        raise (self.beyond if beyond else self.fault)(
            f"{message}, at {where}:\n  {shown}\n  {caret}\n", rule=f"dynd.type.{rule}"
        )
