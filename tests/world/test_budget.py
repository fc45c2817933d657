"""What one batch may cost brokers and client, counted, not timed: a guard against slow, right code.

How it works. Budgets stand here, for each way to store a batch and to read it; what a run counts
must lie between their least and their most. What may rise with the messages of a batch is found by
comparing a run of small batches with one of large ones. Bugs are planted: each check must find its
own.

Pythons differ by two lines of a hundred (3.12 and newer execute fewer of a comprehension) and by
one byte of ten (objects are of other sizes): the bounds of these two are wide enough for each, and
all else is the same on all of them.

A budget that is exceeded is a mistake, or is raised with a reason. A budget that is far from used
up must be lowered; the test fails then, too.

Not here: how it is counted (`counting.py`, `measuring.py`), seconds (`benchmarks/`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from semel.broker.replica.proposer import Proposer
from semel.broker.replication.sender import _Stream
from semel.broker.state import Admission
from semel.client.producer.intake import Intake
from tests.world.counting import COPIES, SMALL
from tests.world.measuring import (
    ARRAY,
    BODY_BYTES,
    CLIENT,
    FEW,
    LIST,
    MANY,
    MASTER,
    PHASES,
    POLL,
    POLL_ARROW,
    POLL_ARROW_MEMORY,
    POLL_MEMORY,
    SLAVES,
    Cost,
    measure,
)

Budget = Mapping[str, tuple[float, float]]
"""Least and most of one batch of MANY messages, all slaves together. The least of lines is there to
be moved: what has become cheaper is not to become dearer again."""

STORED: Budget = {
    "lines of the master": (1_850, 2_200),  # 60 of them see whether readers can read it
    "lines of the slaves": (1_680, 2_030),
    "bodies copied by the master": (3, 3),  # off the connection, out of the request, into the entry
    "bodies copied by the slaves": (4, 4),  # each: off the connection, out of the message
    # 3.12 makes the most, and a planted loop, which makes numbers, must still fit. 5,000 of them
    # see whether readers can read it.
    "bytes in small pieces by the master": (138_000, 174_000),
    "bytes in small pieces by the slaves": (118_000, 152_000),
    "write of the master": (2, 2),  # the entry, and its ID
    "write of the slaves": (4, 4),
    "sync of the master": (1, 1),
    "sync of the slaves": (2, 2),
    "sends to peers of the master": (2, 2.5),
    "sends to peers of the slaves": (2, 2.5),
    "bytes to peers of the master": (2 * BODY_BYTES, 2.02 * BODY_BYTES),  # once to each slave
    "bytes to peers of the slaves": (150, 250),
    "sends on direct streams of the client": (1, 1.1),
    "sends on direct streams of the master": (1, 1.2),
    "bytes on direct streams of the client": (BODY_BYTES, 1.01 * BODY_BYTES),
    "bytes on direct streams of the master": (30, 60),
    "sends by gRPC of the master": (0, 0.2),  # to the controller, sooner than they would
    "sends by gRPC of the slaves": (0, 0.2),
    "bytes by gRPC of the master": (-5, 20),
    "bytes by gRPC of the slaves": (0, 20),
}
FETCHED: Budget = {
    "lines of the master": (70, 110),  # some of them to see that no quota limits the answer
    "lines of the slaves": (-15, 30),
    "bodies copied by the master": (1, 1),  # into the answer
    "bytes in small pieces by the master": (6_500, 11_000),
    "bytes in small pieces by the slaves": (-2_000, 1_500),  # a report more or less
    "sends to peers of the master": (-0.1, 0.1),
    "sends to peers of the slaves": (-0.1, 0.1),
    "bytes to peers of the master": (-20, 20),
    "bytes to peers of the slaves": (-20, 20),
    "sends on direct streams of the client": (0.1, 0.25),
    "sends on direct streams of the master": (0.1, 0.25),
    "bytes on direct streams of the client": (0, 20),
    "bytes on direct streams of the master": (BODY_BYTES, 1.01 * BODY_BYTES),
    "sends by gRPC of the client": (0, 0.15),  # asks for the stream
    "sends by gRPC of the master": (-0.1, 0.15),
    "sends by gRPC of the slaves": (-0.1, 0.1),
    "bytes by gRPC of the client": (0, 5),
    "bytes by gRPC of the master": (-10, 10),
    "bytes by gRPC of the slaves": (-10, 10),
}
"""Several batches come in one answer. A figure below zero means that less happened than in an idle
window."""
PLACED: Budget = {
    **FETCHED,
    "lines of the master": (70, 145),
    "bodies copied by the master": (0, 0.3),
    "bytes on direct streams of the master": (0, 0.3 * BODY_BYTES),
}
"""The kernel puts all but the first answer into memory of the client."""
BUDGETS: Mapping[str, Budget] = {
    # Arrays may be Arrow's or numpy's: 14 lines and 3 KB of a batch that is sent, and 1 KB of one
    # that is read, are calls that hide which.
    LIST: {
        **STORED,
        "lines of the client": (1_075, 1_220),
        "bodies copied by the client": (3, 3),  # the list's array, the batch, the request
        "bytes in small pieces by the client": (97_000, 118_500),
    },
    ARRAY: {
        **STORED,
        "lines of the client": (1_075, 1_220),
        "bodies copied by the client": (2, 2),  # the batch, the request
        "bytes in small pieces by the client": (97_000, 118_500),
    },
    POLL: {
        **FETCHED,
        "lines of the client": (7 * MANY + 300, 7 * MANY + 420),
        "bodies copied by the client": (2, 2),  # off the connection, out of the answer
        "bytes in small pieces by the client": (620_000, 740_000),
    },
    POLL_ARROW: {
        **FETCHED,
        # A reader opens its stream in here, which others could share: 110 lines for all batches.
        # Whether a batch carries a context is three lines a batch.
        "lines of the client": (360, 460),
        "bodies copied by the client": (1, 1),  # off the connection
        "bytes in small pieces by the client": (42_500, 56_500),
    },
    POLL_MEMORY: {
        **PLACED,
        "lines of the client": (7 * MANY + 300, 7 * MANY + 480),
        "bodies copied by the client": (1, 1.3),
        "bytes in small pieces by the client": (620_000, 740_000),
    },
    POLL_ARROW_MEMORY: {
        **PLACED,
        "lines of the client": (360, 500),
        "bodies copied by the client": (0, 0.3),
        # As above, a reader opens its stream in here.
        "bytes in small pieces by the client": (42_000, 55_000),
    },
}
LINES_A_MESSAGE = {(phase, "lines of the client"): 7 for phase in (POLL, POLL_MEMORY)}
"""A message is an object: made in three lines, asked for its value in three, which is cut out in
one. Nothing else executes a line a message."""
STORED_A_MESSAGE: Budget = {MASTER: (0, 16), SLAVES: (3, 18), CLIENT: (24, 35)}
FETCHED_A_MESSAGE: Budget = {MASTER: (5, 18), SLAVES: (-5, 6), CLIENT: (38, 55)}
BYTES_A_MESSAGE: Mapping[str, Budget] = {
    LIST: STORED_A_MESSAGE,
    ARRAY: STORED_A_MESSAGE,
    POLL: {**FETCHED_A_MESSAGE, CLIENT: (1_500, 1_800)},  # its value, and objects
    POLL_ARROW: FETCHED_A_MESSAGE,
    POLL_MEMORY: {**FETCHED_A_MESSAGE, CLIENT: (1_500, 1_800)},
    POLL_ARROW_MEMORY: FETCHED_A_MESSAGE,
}
"""Bytes of each further message, in pieces smaller than a body: a number in a column takes eight,
an object 24 or more. One more pass of maintenance in a window makes five for a slave."""

Costs = Mapping[str, Cost]
"""Costs by phase."""


@pytest.fixture(scope="module")
def measured() -> dict[int, Costs]:
    """Costs by the number of messages in a batch."""
    with pytest.MonkeyPatch.context() as patch:
        return {count: measure(count, patch) for count in (FEW, MANY)}


def outside(budget: Budget, found: Mapping[str, float]) -> dict[str, float]:
    """Figures that lie outside of their bounds, or have none."""
    values = {name: found.get(name, 0) for name in (*budget, *found)}
    return {
        name: value
        for name, value in values.items()
        if not budget.get(name, (0, 0))[0] <= value <= budget.get(name, (0, 0))[1]
    }


def rising(few: Costs, many: Costs) -> list[str]:
    """The counts that rise by more than one for every second message, beyond what is allowed."""
    return [
        f"{phase}: {what}"
        for phase in many
        for what, number in many[phase].counts.items()
        if not what.startswith(("bytes", COPIES))
        and number - few[phase].counts.get(what, 0)
        > (LINES_A_MESSAGE.get((phase, what), 0) + 0.5) * (MANY - FEW)
    ]


def bytes_a_message(few: Cost, many: Cost) -> dict[str, float]:
    """Bytes in small pieces that each further message takes, by role."""
    return {
        role: round((many.counts[what] - few.counts[what]) / (MANY - FEW))
        for role in (MASTER, SLAVES, CLIENT)
        for what in [f"{SMALL} {role}"]
    }


@pytest.mark.parametrize("phase", PHASES)
def test_a_batch_stays_within_its_budget(measured: dict[int, Costs], phase: str) -> None:
    cost = measured[MANY][phase]
    assert not outside(BUDGETS[phase], cost.counts), cost.copies


def test_only_bytes_rise_with_the_messages_of_a_batch(measured: dict[int, Costs]) -> None:
    assert not rising(measured[FEW], measured[MANY])


@pytest.mark.parametrize("phase", PHASES)
def test_what_each_message_adds_stays_within_its_budget(
    measured: dict[int, Costs], phase: str
) -> None:
    found = bytes_a_message(measured[FEW][phase], measured[MANY][phase])
    assert not outside(BYTES_A_MESSAGE[phase], found)


def planted(patch: pytest.MonkeyPatch, owner: type, name: str, code: str) -> None:
    """The method is as `code` has it, which sees its module, and the true one as `original`."""
    namespace = {**vars(sys.modules[owner.__module__]), "original": getattr(owner, name)}
    part = "client" if owner.__module__.startswith("semel.client") else "broker"
    exec(compile(code, f"/semel/{part}/planted.py", "exec"), namespace)
    patch.setattr(owner, name, namespace[name])


def test_a_planted_loop_over_messages_is_found(
    measured: dict[int, Costs], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(
        monkeypatch,
        Admission,
        "admit_batch",
        """
def admit_batch(self, header, *arguments, **options):
    for _ in range(header.count):
        pass
    return original(self, header, *arguments, **options)
""",
    )
    planted(
        monkeypatch,
        Intake,
        "bulk_pieces",
        """
def bulk_pieces(self, topic, values, *arguments):
    for _ in bytes(len(values)):  # allocates one piece, and not one for each number
        pass
    return original(self, topic, values, *arguments)
""",
    )
    many = measure(MANY, monkeypatch, [ARRAY])
    assert rising(measured[FEW], many) == [
        f"{ARRAY}: lines of the client",
        f"{ARRAY}: lines of the master",
    ]
    assert outside(BUDGETS[ARRAY], many[ARRAY].counts).keys() == {
        "lines of the client",
        "lines of the master",
    }


def test_a_planted_copy_of_a_body_is_found_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        Proposer,
        "submit_batch",
        """
def submit_batch(self, header, data, sink):
    data = bytes(memoryview(data))
    original(self, header, data, sink)
""",
    )
    planted(
        monkeypatch,
        Intake,
        "append_piece",
        """
def append_piece(self, intake, piece, *arguments):
    values = piece[0].values
    values = values.take(np.arange(len(values)))
    return original(self, intake, piece, *arguments)
""",
    )
    cost = measure(MANY, monkeypatch, [ARRAY])[ARRAY]
    assert outside(BUDGETS[ARRAY], cost.counts).keys() == {
        f"{COPIES} {MASTER}",
        f"{COPIES} {CLIENT}",
    }
    assert "1 by the master, semel/broker/planted.py:3" in cost.copies
    assert "1 by the client, semel/client/planted.py:4" in cost.copies


def test_planted_objects_without_a_line_are_found(
    measured: dict[int, Costs], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(
        monkeypatch,
        Admission,
        "admit_batch",
        """
def admit_batch(self, header, *arguments, **options):
    list(map(float, range(header.count)))
    return original(self, header, *arguments, **options)
""",
    )
    # After the same work as what it is compared with: else the windows meet other ticks and passes.
    cost = measure(MANY, monkeypatch, [LIST, ARRAY])[ARRAY]
    found = bytes_a_message(measured[FEW][ARRAY], cost)
    assert outside(BYTES_A_MESSAGE[ARRAY], found).keys() == {MASTER}


def test_a_planted_send_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        _Stream,
        "_write",
        """
def _write(self, message, frames):
    head = encode_message(message)
    length = len(head) + sum(map(len, frames))
    for part in (encode_head(length), head, *frames):
        self._transport.write(part)
""",
    )
    cost = measure(MANY, monkeypatch, [ARRAY])[ARRAY]
    assert "sends to peers of the master" in outside(BUDGETS[ARRAY], cost.counts)
