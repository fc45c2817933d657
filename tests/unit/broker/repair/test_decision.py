"""What every member says of a damaged entry, and what is concluded."""

from __future__ import annotations

from itertools import product

import pytest

from semel.broker.repair.decision import Verdict, decide
from semel.protos.ids import NodeId
from semel.protos.v1.raft_pb2 import (
    ENTRY_STATE_ABSENT as ABSENT,
)
from semel.protos.v1.raft_pb2 import (
    ENTRY_STATE_DAMAGED as DAMAGED,
)
from semel.protos.v1.raft_pb2 import (
    ENTRY_STATE_HELD as HELD,
)
from semel.protos.v1.raft_pb2 import (
    ENTRY_STATE_TORN as TORN,
)
from semel.protos.v1.raft_pb2 import (
    ENTRY_STATE_UNKNOWN as UNKNOWN,
)
from semel.protos.v1.raft_pb2 import (
    EntryState,
)

SILENT = None
ALL: list[EntryState | None] = [ABSENT, DAMAGED, HELD, TORN, UNKNOWN, SILENT]


@pytest.mark.parametrize("others", [2, 4])
@pytest.mark.parametrize("torn", [False, True])
def test_every_combination(others: int, torn: bool) -> None:
    members = [NodeId(number) for number in range(2, 2 + others)]
    seen: set[Verdict] = set()
    for said in product(ALL, repeat=others):
        states = {
            node: state for node, state in zip(members, said, strict=True) if state is not None
        }
        verdict = decide(members, states, torn=torn)
        seen.add(verdict)
        if HELD in said or SILENT in said or said.count(UNKNOWN) > 1:
            assert verdict is Verdict.WAIT, "somebody has it, or may have it"
        elif torn and DAMAGED not in said:
            assert verdict is Verdict.CUT
        elif UNKNOWN in said:
            assert verdict is Verdict.WAIT, "it was whole once, and may be whole elsewhere"
        else:
            assert verdict is Verdict.LOST, "it was whole once: it is never cut"
    assert (Verdict.CUT in seen) == torn


def test_a_group_of_one_asks_nobody() -> None:
    assert decide([], {}, torn=True) is Verdict.CUT
    assert decide([], {}, torn=False) is Verdict.LOST
