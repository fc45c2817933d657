"""The judge of `./run soak kafka-kills` finds each way in which a promise may be broken."""

from __future__ import annotations

import pytest

from tests.kit.numbered import Findings, NumberedJudge, value_of

STORED = {
    0: [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)],
    1: [(0, 0), (1, 0), (1, 1)],
}
"""Life and number of what each partition has."""
ACKED = {0: [2, 1], 1: [2, 2]}
CLEAN = Findings(stored=8, lost=0, twice=0, disordered=0, invented=0)


def judged(
    stored: dict[int, list[tuple[int, int]]], acked: dict[int, list[int]] = ACKED
) -> Findings:
    judge = NumberedJudge()
    for partition, messages in stored.items():
        for life, number in messages:
            judge.take(partition, [value_of(life, partition, number)])
    return judge.judge(acked)


def with_first(messages: list[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    return {**STORED, 0: messages}


def test_what_is_as_promised_is_clean() -> None:
    assert judged(STORED) == CLEAN
    assert CLEAN.clean


@pytest.mark.parametrize(
    ("stored", "acked", "expected"),
    [
        (with_first(STORED[0][:-1]), ACKED, CLEAN._replace(stored=7, lost=1)),
        (STORED, {0: [4, 1], 1: [2, 2]}, CLEAN._replace(lost=1)),
        (with_first([(0, 0), *STORED[0][2:]]), ACKED, CLEAN._replace(stored=7, lost=1)),
        (with_first([*STORED[0], (0, 1)]), ACKED, CLEAN._replace(stored=9, twice=1)),
        (with_first([(0, 1), (0, 0), *STORED[0][2:]]), ACKED, CLEAN._replace(disordered=1)),
        (with_first([*STORED[0], (7, 0)]), ACKED, CLEAN._replace(stored=9, invented=1)),
        ({}, ACKED, CLEAN._replace(stored=0, lost=7)),
    ],
)
def test_each_planted_fault_is_found(
    stored: dict[int, list[tuple[int, int]]], acked: dict[int, list[int]], expected: Findings
) -> None:
    found = judged(stored, acked)
    assert found == expected
    assert not found.clean


def test_messages_of_other_partitions_and_foreign_ones_are_invented() -> None:
    judge = NumberedJudge()
    judge.take(0, [value_of(0, 1, 0), b"foreign"])
    assert judge.judge({}) == CLEAN._replace(stored=2, invented=2)
