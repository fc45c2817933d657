"""The page of all settings: what it promises of flags, variables and keys is what programs take."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from semel.protos.settings import SettingOption
from tools.reference import PAGE, PROGRAMS, Program, page


def entries(program: Program) -> dict[str, str]:
    """Each flag of a program with the line of facts below its heading."""
    _, _, section = page().partition(f"## `{program.title}`\n")
    section, _, _ = section.partition("\n## ")
    return dict(re.findall(r"### `(--[a-z-]+)`\n\n(.+?)\n\n", section, flags=re.S))


def options(program: Program) -> list[click.Option]:
    return [option for option in program.command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
def test_every_flag_has_an_entry(program: Program) -> None:
    assert list(entries(program)) == [option.opts[0] for option in options(program)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
def test_every_variable_is_read(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = program.command.context_settings["auto_envvar_prefix"]
    context = click.Context(program.command, auto_envvar_prefix=prefix)
    for option in options(program):
        (variable,) = re.findall(rf"`({prefix}_\w+)`", entries(program)[option.opts[0]])
        monkeypatch.setenv(variable, "given")
        assert option.resolve_envvar_value(context) == "given"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
def test_the_file_may_have_exactly_the_keys_that_are_named(
    program: Program, tmp_path: Path
) -> None:
    (config,) = [option for option in options(program) if option.is_eager]
    facts = " ".join(entries(program).values())
    keys = re.findall(r"TOML `(\w+)`", facts)
    others = {str(option.name) for option in options(program)} - {*keys, "config"}
    assert config.callback is not None
    file = tmp_path / "settings.toml"
    file.write_text("".join(f'{key} = "given"\n' for key in keys))
    context = click.Context(program.command)
    config.callback(context, config, file)
    assert context.default_map == dict.fromkeys(keys, "given")
    for key in others:
        file.write_text(f'{key} = "given"\n')
        with pytest.raises(click.BadParameter, match=key):
            config.callback(context, config, file)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.title)
def test_the_text_of_a_choice_is_about_its_words(program: Program) -> None:
    """Also where the field behind the flag is a number."""
    for option in options(program):
        if isinstance(option, SettingOption) and isinstance(option.type, click.Choice):
            assert all(f"{word}:" in option.documentation for word in option.type.choices)
            assert f"Default {option.shown_default}." in option.documentation


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
