"""Command-line options that are made from the fields of a component's config dataclass.

How it works. A config dataclass documents each field in a string below it: first what the field
means, then its default and the reason for that. `option` makes the click option of one field from
it: the flag, the parameter's name (which is also the key in a TOML file and, in capitals, the end
of the environment variable), the type, the default and the help. The help is the documentation up
to the sentence that begins with `Default`. Two forms of that sentence exist:

- `Default 64 MiB: reason.` documents the value of the field; the help shows the value itself.
- `Default: as it listens.` gives a meaning in words, because the value (empty, None, a number that
  rises with each release) would say nothing; the help shows the words up to the first `.`, `;`
  or `:`.

`tools/reference.py` writes docs/reference.md from the same options, with the whole documentation.

Not here: which settings have a flag (each program's `__main__.py`), what the settings mean and
which values are refused (each component's `config.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound="Callable[..., Any]")

_DEFAULT: Final = re.compile(r"\s*\bDefault(?:: (?P<words>[^.;:]+)| (?=\S))")


class SettingOption(click.Option):
    """The option of one field; it remembers what the field's documentation says in full."""

    def __init__(
        self, *args: Any, field: str, documentation: str, shown_default: str, **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.field = field
        """The name of the field; that of the option may differ."""
        self.documentation = documentation
        self.shown_default = shown_default
        """As in the help; empty for a setting that must be given, and for a switch."""


@functools.cache
def documentation(config: type) -> Mapping[str, str]:
    """The documentation of each documented field of a config dataclass, on one line.

    Empty when the module was installed without its source: the help is poorer then, and the program
    runs all the same.
    """
    try:
        module = ast.parse(inspect.getsource(sys.modules[config.__module__]))
    except OSError:
        return {}
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == config.__name__:
            return dict(_documented(node))
    return {}


def option(
    config: type, name: str, *declarations: str, text: str = "", **attributes: Any
) -> Callable[[F], F]:
    """A decorator that adds the option of the field `name` of a config dataclass to a command.

    `text` stands in place of the field's documentation, for a flag with values of its own, and has
    the same form. `declarations` are click's own (flag and parameter name); without any the flag is
    the field's name with dashes. `attributes` are click's own, too, and win over what the field
    says. With `default=None` the option has no default of its own, so that the field's applies.
    """
    field = {one.name: one for one in dataclasses.fields(config)}[name]
    text = text or documentation(config).get(name, "")
    attributes = {**_attributes(config, field), **attributes}
    words = default_words(text)
    given = attributes.pop("default")
    if given is not None:
        attributes["default"] = given
    if attributes.get("is_flag") or attributes.get("required"):
        shown = words = ""
    elif given is None:
        shown = words = words or str(field.default)  # click has no value to show
    else:
        shown = words or str(given)
    told = help_text(text)
    if attributes.get("multiple"):
        told += " Repeat it for each one."
    return click.option(
        *(declarations or ("--" + name.replace("_", "-"),)),
        cls=SettingOption,
        field=name,
        documentation=text,
        shown_default=shown,
        help=told + (f"  [default: {words}]" if words else ""),
        show_default=not words,
        **attributes,
    )


def help_text(text: str) -> str:
    """The part of a field's documentation before its default."""
    return _DEFAULT.split(text, maxsplit=1)[0]


def default_words(text: str) -> str:
    """The default as a field's documentation has it in words; empty when it has the value."""
    found = _DEFAULT.search(text)
    return found["words"] or "" if found is not None else ""


def _documented(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield field.target.id, " ".join(str(text.value.value).split())


def _attributes(config: type, field: dataclasses.Field[Any]) -> dict[str, Any]:
    """The attributes of an option that follow from its field."""
    kind = typing.get_type_hints(config)[field.name]
    if isinstance(kind, types.UnionType):  # the type of a setting that may be None
        (kind,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
    kind = getattr(kind, "__supertype__", kind)
    if kind is bool:
        return {"is_flag": True, "default": None}
    attributes: dict[str, Any] = {"default": None}
    if field.default is not dataclasses.MISSING:
        attributes["default"] = field.default
    elif field.default_factory is dataclasses.MISSING:
        attributes["required"] = True
    if kind is int:
        attributes["type"] = click.INT
    elif kind is Path:
        attributes["type"] = click.Path(path_type=Path)
    return attributes
