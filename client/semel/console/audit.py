"""`semel audit`: the audit logs of all nodes, as one.

Not here: what is written into them (`semel.protos.security.audit`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import render
from semel.console.config import chosen, node_options
from semel.console.options import client_options, examples, open_client

if TYPE_CHECKING:
    from semel.client.admin.audit import AuditEvent

LINES_MAX: Final = 500
"""Lines of one call."""


@click.command(
    epilog=examples(
        "semel audit",
        "semel audit --result denied --search user:anna --max 20",
        "semel audit --controller 1 --json",
        more="Nodes write an audit log with --audit-log FILE; the newest lines come first. Results"
        " are denied, unauthenticated, done, changed, unchanged, refused and logged in. To read it"
        " takes the right `security cluster`.",
    )
)
@click.option("--search", default="", help="Only lines with this text in a value.")
@click.option("--result", default="", help="Only lines with this result.")
@click.option(
    "--max", "most", type=click.IntRange(1), default=100, show_default=True, help="Most lines."
)
@node_options
@client_options
def audit(
    search: str,
    result: str,
    most: int,
    brokers: tuple[int, ...],
    controllers: tuple[int, ...],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Shows who did what, and what was refused."""
    nodes = chosen(brokers, controllers)
    with open_client(bootstrap) as client:
        found = client.admin.read_audit(
            search=search, result=result, limit=min(most, LINES_MAX), **nodes
        )
        events = list(found.events)
        while len(events) < most and not found.end:
            found = client.admin.read_audit(
                found.positions,
                search=search,
                result=result,
                limit=min(most - len(events), LINES_MAX),
                **nodes,
            )
            events += found.events
    for each in found.unread:
        render.warn(f"{each.node} is not shown: {each.reason}")
    if found.without:
        render.warn(f"no audit log is kept by {', '.join(found.without)}")
    rows = [each.as_dict() for each in events]
    shown: dict[str, Any] = {"events": rows, "end": found.end}
    render.Output(as_json=as_json).show(shown, _table(events))


def _table(events: list[AuditEvent]) -> Any:
    return render.table(
        ["time", "who", "call", "what", "result", "from", "node"],
        [
            [
                event.time,
                event.who,
                event.method,
                event.what,
                f"{event.result}: {event.reason}" if event.reason else event.result,
                event.address,
                event.node,
            ]
            for event in events
        ],
    )
