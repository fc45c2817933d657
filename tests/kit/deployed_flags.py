"""The programs that files of deploy/ run, with their flags, and which of these do not exist.

How it works. A text names a program by `semel VERB …`; the flags that follow are its own, until the
next program is named, and so are those before the first one. The real commands are asked which
flags and variables of the environment they know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import click

from semel.console.main import semel

NODES: Final = ("broker", "controller")
_COMMENT: Final = re.compile(r"^[ \t]*#.*$|\{\{/\*[^}]*\*/\}\}", re.M)
_WORD: Final = re.compile(
    r"(?<![\w./-])semel(?P<verb>(?: [a-z][a-z-]*)+)|(?<![\w-])(?P<flag>--[a-z][a-z-]*)"
)
_VARIABLE: Final = re.compile(r"\bSEMEL_(?P<node>BROKER|CONTROLLER)_(?P<name>[A-Z_]+)=")


@cache
def command(*words: str) -> click.Command:
    """The command behind `semel WORDS`; of a node, that of its own program. Raises KeyError."""
    if words[0] in NODES:
        module = __import__(f"semel.{words[0]}.__main__", fromlist=["main"])
        node: click.Command = module.main
        return node
    found: Any = semel
    for word in words:
        found = found.get_command(click.Context(found), word)
        if found is None:
            raise KeyError(" ".join(words))
    known: click.Command = found
    return known


def flags_of(*words: str) -> set[str]:
    """All flags that a command knows."""
    return {
        text
        for each in command(*words).params
        if isinstance(each, click.Option)
        for text in (*each.opts, *each.secondary_opts)
    }


def used(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(words of the command, flag), in their order. Asserts that a command is named."""
    program: tuple[str, ...] | None = None
    before: list[str] = []
    for found in _WORD.finditer(_COMMENT.sub("", text)):
        if found["flag"] is None:
            program = tuple(found["verb"].split())
            command(*program)
            for flag in before:
                yield program, flag
            before = []
        elif program is None:
            before.append(found["flag"])
        else:
            yield program, found["flag"]
    assert not before, f"flags without a program: {before}"


def unknown(text: str) -> list[str]:
    """What a text asks of programs that they do not know."""
    wrong = [
        f"semel {' '.join(program)} {flag}"
        for program, flag in used(text)
        if flag not in flags_of(*program)
    ]
    for found in _VARIABLE.finditer(text):
        flag = "--" + found["name"].lower().replace("_", "-")
        if flag not in flags_of(found["node"].lower()):
            wrong.append(found[0].rstrip("="))
    return wrong
