"""The tokens of a type string, and errors that show the line and column.

One regular expression finds the tokens, each when the one before it is read. Knows no
grammar beyond names, numbers and quoting.
"""

from __future__ import annotations

import re
import string
from typing import NoReturn

from tensorglot.errors import TensorglotError

__all__ = ["Scanner", "fault_at"]

# Possessive, and every character is in a token or before one: the time is linear in the text.
_TOKEN = re.compile(
    r"""(?:[ \t\r\n]++|\#[^\n]*+)*+(
        0[0-9]*+ | -?[1-9][0-9]*+
      | [A-Za-z_][A-Za-z0-9_]*+
      | '(?:[^'\\\n]|\\.)*+'?+ | "(?:[^"\\\n]|\\.)*+"?+
      | \*\* | -> | \.\.\.
      | [\s\S]
      | \Z
    )""",
    re.VERBOSE | re.ASCII,
)
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"")
_KINDS = {
    **dict.fromkeys("*?,:=()[]{}", "sign"),
    **dict.fromkeys(string.digits, "int"),
    **dict.fromkeys(string.ascii_letters + "_", "name"),
    **dict.fromkeys(("**", "->", "..."), "sign"),
    "": "end",
}
"""The kinds of tokens, by the token or by its first character."""
_ESCAPE = re.compile(r"\\(?:([\\'\"/bfnrt])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|())", re.ASCII)
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_BEFORE_CARET, _AFTER_CARET = 60, 20


def _escaped(match: re.Match[str]) -> str | None:
    if match[1]:
        return _ESCAPED[match[1]]
    code = int(match[2] or match[3] or "110000", 16)
    return None if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)


def fault_at(error: type[TensorglotError], text: str, at: int, message: str, rule: str) -> TensorglotError:
    """The error for a character of a text, which it shows."""
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    column = at - begin
    line = text[max(begin, at - _BEFORE_CARET) : min(len(text) if end < 0 else end, at + _AFTER_CARET)]
    shown = "".join(c if c.isprintable() else "?" for c in line)
    where = f"line {text.count(chr(10), 0, at) + 1}, column {column + 1}"
    caret = " " * min(column, _BEFORE_CARET) + "^"
    return error(f"{message}, at {where}:\n  {shown}\n  {caret}\n", rule=f"dynd.type.{rule}")


class Scanner:
    """Reads a text from left to right. The current token is `lexeme`, of a `kind`, the `at`th of the text."""

    def __init__(
        self,
        text: str,
        nbytes_max: int,
        fault: type[TensorglotError],
        beyond: type[TensorglotError],
        read: str | None = None,
    ) -> None:
        """`read`, if given, is read instead of the text, which errors show."""
        self.text, self.nbytes_max, self.fault, self.beyond = text, nbytes_max, fault, beyond
        self.check_length(text)
        self.matches = _TOKEN.finditer(text if read is None else read)
        self.tokens: list[re.Match[str]] = []
        self.at = -1
        self.kind = self.lexeme = ""
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
        self.at += self.kind != "end"
        lexeme = self.lexeme = self._token(self.at)[1]
        self.kind = _KINDS.get(lexeme) or _KINDS.get(lexeme[0]) or self._rare_kind(lexeme)
        if self.kind == "int" and lexeme[0] == "0" != lexeme:
            self.refuse("unexpected character", "token")
        return previous

    def _token(self, number: int) -> re.Match[str]:
        while number >= len(self.tokens):
            self.tokens.append(next(self.matches))
        return self.tokens[number]

    @property
    def position(self) -> int:
        """The position of the current token in the text."""
        return self.tokens[self.at].start(1)

    def _rare_kind(self, lexeme: str) -> str:
        if _TEXT.fullmatch(lexeme):
            return "text"
        if lexeme[0] != "-" or lexeme == "-":
            self.refuse("unexpected character", "token")
        return "int"

    def peek(self) -> str | None:
        """The token after the current one."""
        return None if self.kind == "end" else str(self._token(self.at + 1)[1])

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
            self.refuse("invalid escape", "field", inside=1 + match.start())
        return found

    def refuse(
        self, message: str, rule: str, token: int | None = None, *, inside: int = 0, beyond: bool = False
    ) -> NoReturn:
        """Raises an error that shows a token, the current one by default, or a character inside it."""
        at = self.tokens[self.at if token is None else token].start(1) + inside
        raise fault_at(self.beyond if beyond else self.fault, self.text, at, message, rule)
