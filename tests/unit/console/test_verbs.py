"""What every verb of the console promises: an example, JSON, help that fits, no silent damage."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from semel.console.main import semel

ITS_OWN_OUTPUT = {"semel broker", "semel controller", "semel completion"}
"""The first two become the node's own program; the third prints code for a shell."""
DESTRUCTIVE = {
    "semel topic delete",
    "semel group delete",
    "semel node remove",
    "semel transaction abort",
}


def verbs(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what one types."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    ctx = click.Context(command)
    for name in command.list_commands(ctx):
        found = command.get_command(ctx, name)
        assert found is not None
        yield from verbs(found, f"{path} {name}")


VERBS = dict(verbs(semel, "semel"))


def faults(path: str, command: click.Command) -> list[str]:
    """What a verb does not keep."""
    names = {option for parameter in command.params for option in parameter.opts}
    found = []
    if not command.help:
        found.append("help")
    epilog = command.epilog or ""
    if "Example" not in epilog or path not in epilog:
        found.append("example")
    if "--json" not in names:
        found.append("--json")
    if path in DESTRUCTIVE and "--yes" not in names:
        found.append("--yes")
    return found


def test_all_nouns_are_walked() -> None:
    assert len(VERBS) > 25
    assert set(VERBS) >= DESTRUCTIVE


@pytest.mark.parametrize("path", sorted(set(VERBS) - ITS_OWN_OUTPUT))
def test_every_verb_has_an_example_and_json(path: str) -> None:
    assert faults(path, VERBS[path]) == []


def test_a_planted_poor_verb_is_found() -> None:
    @click.command()
    def poor() -> None:
        pass

    assert faults("semel topic delete", poor) == ["help", "example", "--json", "--yes"]


@pytest.mark.parametrize("path", sorted(set(VERBS) - {"semel broker", "semel controller"}))
def test_help_fits_a_narrow_terminal(path: str) -> None:
    arguments = [*path.split()[1:], "--help"]
    done = CliRunner().invoke(semel, arguments, prog_name="semel", terminal_width=80)
    assert done.exit_code == 0
    usage, *rest = done.output.splitlines()
    assert usage.startswith(f"Usage: {path}")
    too_long = [line for line in rest if len(line) > 80 and not line.strip().startswith("semel ")]
    assert too_long == []


@pytest.mark.parametrize("path", sorted({path.rpartition(" ")[0] for path in VERBS}))
def test_no_summary_is_cut_short(path: str) -> None:
    arguments = [*path.split()[1:], "--help"]
    done = CliRunner().invoke(semel, arguments, prog_name="semel", terminal_width=80)
    assert done.exit_code == 0
    _, *rest = done.output.splitlines()  # without the usage
    assert [line for line in rest if line.endswith("...")] == []


@pytest.mark.parametrize("path", sorted(VERBS))
def test_names_of_topics_and_groups_are_completed(path: str) -> None:
    """`NAME` of topic verbs that need an existing one, TOPIC, --topic, --group and so on."""
    for parameter in VERBS[path].params:
        wanted = parameter.name in ("topic", "topics", "group", "producer")
        wanted = wanted and isinstance(parameter.type, click.types.StringParamType)
        noun = path.split()[1]
        if parameter.name == "name" and noun in ("topic", "group", "producer"):
            wanted = path != "semel topic create"
        if wanted and parameter.name:
            assert parameter._custom_shell_complete is not None, parameter.name
