"""Compares the states of nodes with what their log says.

How it works. The broker's own state machine applies the log, and its state is compared with the one
that each node says it is in. The sequence table is compared with that of `raw_log.py`, too, which
shares none of the broker's rules.

Invariants checked here
1. A node's sequence table, and its whole state, follow from the log up to its applied index.

Not here: the log (`raw_log.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.broker.state import State
from tests.checking.raw_log import Fold, NodeLog, Table


def check_states(frames: Mapping[int, bytes], logs: Sequence[NodeLog], folded: Fold) -> list[str]:
    """Compares each node's state with the log as the broker's machine and this module apply it."""
    problems: list[str] = []
    state = State()
    for log in sorted(logs, key=lambda log: log.applied_index):
        if log.state is None:
            continue
        while state.applied_index < log.applied_index:
            state.apply_frame(frames[state.applied_index + 1])
        if b"".join(state.to_parts()) != log.state:
            problems.append(
                f"the state of node {log.node} is not the fold of the log up to {log.applied_index}"
            )
        told: Table = {
            (tuple(map(int, row.queue_key)), int(row.producer_id)): (  # type: ignore[misc]
                row.epoch,
                row.session,
                row.last_sequence,
            )
            for row in State.from_bytes(log.state).producers.rows()
        }
        ours = folded.tables.get(log.applied_index, {})
        for key in sorted(told.keys() | ours.keys()):
            if told.get(key) != ours.get(key):
                problems.append(
                    f"node {log.node}: queue and producer {key} stand at {told.get(key)}, "
                    f"the log says {ours.get(key)}"
                )
    return problems
