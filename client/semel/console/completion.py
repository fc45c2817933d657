"""`semel completion`, and completion of names that only the cluster knows.

How it works. A completion runs the command line so far without executing it; names come from the
cluster that `--bootstrap` or the environment names, within `PATIENCE_MS`. When the cluster does not
answer, nothing is completed and no error is shown, because the user is typing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class

from semel.console.options import examples

if TYPE_CHECKING:
    from semel.client import Client

PATIENCE_MS: Final = 700


def _names(
    ask: Callable[[Client], Iterable[str]], option: str = "bootstrap"
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from semel.client import SemelError, connect

        where = ctx.params.get(option) or os.environ.get("SEMEL_BOOTSTRAP") or None
        try:
            with connect(
                where,
                connect_timeout_ms=PATIENCE_MS,
                request_timeout_ms=PATIENCE_MS,
                close_timeout_ms=PATIENCE_MS,
            ) as client:
                return [name for name in ask(client) if name.startswith(incomplete)]
        except SemelError:
            return []

    return complete


topics: Final = _names(lambda client: (topic.name for topic in client.admin.list_topics()))
"""`shell_complete` of an argument that is a topic."""
source_topics: Final = _names(
    lambda client: (topic.name for topic in client.admin.list_topics()), "source"
)
"""The same of a topic of the cluster that --from names."""
mirrored_topics: Final = _names(lambda client: _mirrored(client), "target")
"""The same of a copy in the cluster that --to names."""
groups: Final = _names(lambda client: client.admin.list_groups())
"""`shell_complete` of an argument that is a consumer group."""
producers: Final = _names(
    lambda client: (producer.name for producer in client.admin.list_producers())
)
"""`shell_complete` of an argument that is a named producer."""
transactions: Final = _names(
    lambda client: (one.transaction_id for one in client.transactions.list())
)
"""`shell_complete` of an argument that is a transaction."""


def _mirrored(client: Client) -> Iterable[str]:
    from semel.client.api.mirrors import describe_mirrored

    return (topic.name for topic in describe_mirrored(client).topics)


@click.command(epilog=examples('eval "$(semel completion bash)"'))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints completion code for SHELL: commands, options, and the cluster's names."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "semel", "_SEMEL_COMPLETE").source())
