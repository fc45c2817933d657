"""Whether a broker node does its part in its group, so that another one may be restarted.

Not here: whether its event loop lives (`/livez` answers, and systemd's watchdog), what else may be
wrong (`semel doctor`).
"""

from __future__ import annotations

from typing import Final

from semel.broker.replica.replica import Replica

ENTRIES_BEHIND_MAX: Final = 10_000
"""A node that applies entries while messages come is always some behind; this many take well below
a second."""


def why_not_ready(replica: Replica) -> str:
    """A sentence that says what is missing; empty if the node is ready.

    A ready node is a member that quorums count, knows a master, would take mastership, and has
    applied what it knows to be committed.
    """
    core = replica.core
    if replica.role not in ("master", "slave"):
        return f"this node is {replica.role} in its group"
    if not core.master_id:
        return "this node knows no master of its group"
    if not replica.electable:
        return "this node is drained, repairs its data, or has not caught up"
    behind = core.commit_index - replica.state.applied_index
    if behind > ENTRIES_BEHIND_MAX:
        return f"this node has {behind} committed entries to apply"
    return ""
