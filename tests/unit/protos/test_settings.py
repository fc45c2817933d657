"""Click options that are made from the fields of a config dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NewType

import click
import pytest
from click.testing import CliRunner

from semel.protos.settings import SettingOption, default_words, documentation, help_text, option

Number = NewType("Number", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A config as components have them."""

    data: Path
    """Where it
    lies."""

    number: Number
    """Which one it is."""

    pause_ms: int = 5_000
    """Pause between looks. Default 5 s: often enough."""

    address: str = ""
    """HOST:PORT of it. Default: as it listens. Others need it."""

    port: int | None = None
    """Port of the page. Default: off."""

    strict: bool = False
    """Refuses more. Default: no."""

    pairs: Mapping[int, str] = field(default_factory=dict)
    """N=HOST:PORT of others. Default: it is alone."""

    silent: int = 1
    undocumented = 2


@click.command(context_settings={"auto_envvar_prefix": "EXAMPLE"})
@option(Example, "data")
@option(Example, "number", "--no", type=click.IntRange(1))
@option(Example, "pause_ms")
@option(Example, "address", "--at", "address")
@option(Example, "port")
@option(Example, "strict")
@option(Example, "pairs", "--pair", "pairs", type=str, multiple=True)
def command(**given: Any) -> None:
    click.echo(repr(sorted(given.items())))


def made(name: str) -> SettingOption:
    (found,) = (one for one in command.params if one.name == name)
    assert isinstance(found, SettingOption)
    return found


def test_documentation_is_what_stands_below_a_field() -> None:
    texts = documentation(Example)
    assert texts["data"] == "Where it lies."
    assert set(texts) == {"data", "number", "pause_ms", "address", "port", "strict", "pairs"}


def test_without_sources_there_is_no_documentation_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass
    class Other:
        name: str = "x"

    def missing(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("semel.protos.settings.inspect.getsource", missing)
    assert documentation(Other) == {}


@pytest.mark.parametrize(
    ("text", "told", "words"),
    [
        ("The longest poll. Default 30 s.", "The longest poll.", ""),
        ("HOST:PORT. Default: as it listens. So it is.", "HOST:PORT.", "as it listens"),
        ("Two nodes. Default: no; it would be lost.", "Two nodes.", "no"),
        ("What it is. Default: sqlite alone, else: other.", "What it is.", "sqlite alone, else"),
        ("The Defaults of others.", "The Defaults of others.", ""),
        ("No more than that.", "No more than that.", ""),
    ],
)
def test_help_ends_where_the_default_begins(text: str, told: str, words: str) -> None:
    assert (help_text(text), default_words(text)) == (told, words)


def test_an_option_has_the_type_and_the_default_of_its_field() -> None:
    assert isinstance(made("data").type, click.Path)
    assert made("data").required
    assert made("no").required
    assert (made("pause_ms").type, made("pause_ms").default) == (click.INT, 5_000)
    assert (made("port").type, made("port").required) == (click.INT, False)
    assert made("strict").is_flag
    assert made("pairs").multiple


def test_help_shows_words_or_the_value() -> None:
    shown = " ".join(CliRunner().invoke(command, ["--help"], terminal_width=200).output.split())
    assert "Pause between looks. [default: 5000]" in shown
    assert "HOST:PORT of it. [default: as it listens]" in shown
    assert "Port of the page. [default: off]" in shown
    assert "Refuses more. --" in shown
    assert "N=HOST:PORT of others. Repeat it for each one. [default: it is alone]" in shown


def test_an_option_without_a_default_of_its_own_shows_that_of_the_field() -> None:
    @click.command
    @option(Example, "pause_ms", default=None)
    def other(pause_ms: int | None) -> None:
        click.echo(repr(pause_ms))

    assert "[default: 5000]" in CliRunner().invoke(other, ["--help"]).output
    assert CliRunner().invoke(other, []).output == "None\n"


def test_values_come_from_flags_and_environment() -> None:
    environment = {"EXAMPLE_PAUSE_MS": "7", "EXAMPLE_PAIRS": "1=a:1 2=b:2"}
    result = CliRunner().invoke(command, ["--data", "d", "--no", "3"], env=environment)
    assert result.exit_code == 0, result.output
    given = dict(eval(result.output, {"PosixPath": Path}))
    assert given == {
        "data": Path("d"),
        "no": 3,
        "pause_ms": 7,
        "address": "",
        "port": None,
        "strict": False,
        "pairs": ("1=a:1", "2=b:2"),
    }


def test_a_field_that_is_none_is_no_option() -> None:
    with pytest.raises(KeyError):
        option(Example, "undocumented")
