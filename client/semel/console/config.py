"""`semel config show|set`: settings of running nodes.

Not here: what they mean (docs/reference.md, and `--help` of `semel broker` and `semel controller`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import click

from semel.console import render
from semel.console.options import client_options, examples, open_client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semel.client import SettingInfo

NODES_SHOWN = 3
"""Number of nodes that are named when many have a value in common."""


@click.group()
def config() -> None:
    """Settings of running nodes: show and change them."""


def node_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --broker and --controller; without any all nodes are meant."""
    broker = click.option(
        "--broker", "brokers", type=click.IntRange(1), multiple=True, help="This broker. Repeat."
    )
    controller = click.option(
        "--controller",
        "controllers",
        type=click.IntRange(1),
        multiple=True,
        help="This controller. Repeat.  [default: all brokers and controllers]",
    )
    return broker(controller(function))


def chosen(brokers: Sequence[int], controllers: Sequence[int]) -> dict[str, Any]:
    """What these options mean for a call of `client.admin`."""
    if not brokers and not controllers:
        return {}
    return {"brokers": brokers, "controllers": controllers}


@config.command(
    epilog=examples(
        "semel config show",
        "semel config show --settable",
        "semel config show scrub_bytes_per_second --broker 2",
        more="Names are those of a TOML file. `changed` marks what was changed since a node was"
        " started; the page docs/reference.md says what each setting means.",
    )
)
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--settable", is_flag=True, help="Only what `semel config set` can change.")
@node_options
@client_options
def show(
    names: tuple[str, ...],
    settable: bool,
    brokers: tuple[int, ...],
    controllers: tuple[int, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Shows settings as the nodes have them now."""
    with open_client(bootstrap) as client:
        found = client.admin.show_settings(names, **chosen(brokers, controllers))
    if settable:
        found = [each for each in found if each.changeable]
    rows = [{**each.as_dict(), "changed": each.changed} for each in found]
    render.Output(as_json=as_json).show({"settings": rows}, _table(found))


def _table(found: list[SettingInfo]) -> Any:
    """One row for each value of a setting, with the nodes that have it."""

    def what(each: SettingInfo) -> tuple[str, str, str, str, bool, str]:
        return each.kind, each.name, each.value, each.default, each.changed, each.allowed

    rows = []
    for (kind, name, value, default, changed, allowed), having in itertools.groupby(
        sorted(found, key=what), what
    ):
        numbers = [str(each.id) for each in having]
        nodes = ", ".join(numbers[:NODES_SHOWN]) + (" …" if len(numbers) > NODES_SHOWN else "")
        rows.append(
            [
                name,
                value,
                "" if value == default else default,
                allowed or "restart",
                "changed" if changed else "",
                f"{kind} {nodes}",
            ]
        )
    rows.sort(key=lambda row: (row[5].split()[0], row[0]))
    return render.table(["setting", "value", "default", "may be set to", "", "nodes"], rows)


@config.command(
    "set",
    epilog=examples(
        "semel config set compaction_bytes_per_second 67108864",
        "semel config set scrub_bytes_per_second 0 --broker 2",
        "semel config set scrub_bytes_per_second --reset",
        more="A change counts at once, and until a node is started again: write what is to stay"
        " into its file, flags or environment as well. `semel config show --settable` lists what"
        " can be changed; everything else needs a restart (semel cluster restart --rolling).",
    ),
)
@click.argument("name")
@click.argument("value", type=int, required=False)
@click.option("--reset", is_flag=True, help="To the value that each node was started with.")
@node_options
@client_options
def set_value(
    name: str,
    value: int | None,
    reset: bool,
    brokers: tuple[int, ...],
    controllers: tuple[int, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Changes a setting of running nodes, until they are started again."""
    if reset == (value is not None):
        raise click.UsageError("give either a VALUE or --reset")
    with open_client(bootstrap) as client:
        changed = client.admin.change_setting(name, value, **chosen(brokers, controllers))
    text = "\n".join(
        f"{each.kind} {each.id}: {name} is {each.value}"
        + (f", it was {each.before}" if each.before != each.value else " already")
        for each in changed
    )
    out = render.Output(as_json=as_json)
    out.show({"changes": [each.as_dict() for each in changed]}, text)
