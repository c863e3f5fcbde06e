"""The completion scripts of click, without what would cut or lose a value.

Names of tensors have any character: `onnx::MatMul_12`, `dense/kernel:0`, `a, b`.

- Bash splits words at `:` and `=`, and replaces only what follows. The script passes the
  line, which is split here, and a completion is what comes after the last of these signs.
  Bash inserts a completion as it is, and names come from files that may be hostile:
  `$(…)` in one would be executed. So completions are quoted.
- Zsh and fish quote what they insert, and replace the whole word. Of `--option=value`
  click completes the value alone.

A value ends at the end of its line: `complete` offers no names with line breaks.
"""

from __future__ import annotations

import os
import re
import shlex

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

__all__ = ["SHELLS"]

_CURSOR = "\0"
_PLAIN_IN_QUOTES = re.compile(r"[\w@%+=:,./*?\[\]-]+")
"""What means itself between quotes of both kinds."""

_BASH = r"""%(complete_func)s() {
    local IFS=$'\n' completion
    COMPREPLY=()
    for completion in $(env COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
            %(complete_var)s=bash_complete "$1"); do
        case $completion in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${completion#plain,}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_FISH = r"""function %(complete_func)s
    for completion in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct) \
            %(prog_name)s)
        set -l fields (string split --max 1 -- , $completion)
        switch $fields[1]
            case dir
                __fish_complete_directories $fields[2]
            case file
                __fish_complete_path $fields[2]
            case plain
                echo -- $fields[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Bash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        *words, last = split_arg_string(os.environ["COMP_WORDS"] + _CURSOR)
        return words[1:], last.removesuffix(_CURSOR)

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        try:
            shlex.split(os.environ["COMP_WORDS"])
        except ValueError:  # within quotes, which bash does not split
            return [item for item in found if item.type != "plain" or _PLAIN_IN_QUOTES.fullmatch(item.value)]
        breaks = [sign for sign in ":=" if sign in os.environ.get("COMP_WORDBREAKS", "")]
        kept = incomplete[: 1 + max(map(incomplete.rfind, breaks), default=-1)]
        return [_replaced(item, shlex.quote(item.value.removeprefix(kept))) for item in found]


class _WholeWords(ShellComplete):
    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if not (equals and option.startswith("--")):
            return found
        return [_replaced(item, f"{option}={item.value}") for item in found]


class _Zsh(_WholeWords, ZshComplete): ...


class _Fish(_WholeWords, FishComplete):
    source_template = _FISH


def _replaced(item: CompletionItem, value: str) -> CompletionItem:
    """The same completion with another value, if it has one: a path is completed by the shell."""
    return CompletionItem(value, item.type, item.help) if item.type == "plain" else item


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
for _name, _shell in SHELLS.items():
    add_completion_class(_shell, _name)
