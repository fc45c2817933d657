"""Each decoder gets some thousands of bad inputs in the test run; `./run soak fuzz` gives more."""

from __future__ import annotations

import random
import time

import pytest

from semel.protos.errors import CorruptBatch
from tests.fuzz import engine
from tests.fuzz.engine import input_of, run_targets
from tests.fuzz.kafka_record_targets import kafka_record_targets
from tests.fuzz.kafka_request_targets import kafka_request_targets
from tests.fuzz.login_targets import login_targets
from tests.fuzz.stored_targets import stored_targets
from tests.fuzz.targets import Target
from tests.fuzz.wire_targets import wire_targets

ALL = (
    *wire_targets(),
    *stored_targets(),
    *login_targets(),
    *kafka_record_targets(),
    *kafka_request_targets(),
)
TARGETS = {target.name: target for target in ALL}

NEVER_REFUSE = ("segment", "identity", "object name", "routes file", "error detail")
"""Decoders that answer nonsense with None, or with an error object."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_more_than_be_refused(name: str) -> None:
    outcome = run_targets([TARGETS[name]], seed=1, inputs=400)
    assert [str(each) for each in outcome.findings] == []
    assert outcome.inputs[name] == 400


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_taken_and_bad_ones_are_reached(name: str) -> None:
    """A corpus that is refused, or changes that stop at a checksum, would test nothing."""
    target = TARGETS[name]
    good = [target.refuses(data) for data in target.corpus]
    assert not any(good)
    rng = random.Random(1)
    if target.seal is not None:
        sealed = [target.seal(data, rng) for data in list(target.corpus) * 20]
        assert not all(map(target.refuses, sealed))
    seen = [target.refuses(input_of(target, 1, number)) for number in range(300)]
    assert len(set(seen)) == 2 or name in NEVER_REFUSE


def planted(data: bytes) -> None:
    """Forgets to look at the length."""
    if not data:
        raise CorruptBatch("nothing")
    data[4]


def test_a_planted_bug_is_found_and_found_again() -> None:
    target = Target(name="planted", corpus=[bytes(8)], run=planted)
    first = run_targets([target], seed=3, inputs=500).findings
    assert first
    assert first[0].error.startswith("IndexError")
    again = run_targets([target], seed=3, first=first[0].number, inputs=1).findings
    assert again == first[:1]


def test_an_input_that_takes_much_processor_time_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(data: bytes) -> None:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    monkeypatch.setattr(engine, "SLOW_S", 0.05)
    target = Target(name="slow", corpus=[bytes(8)], run=slow)
    (found,) = run_targets([target], seed=3, inputs=1).findings
    assert found.error.startswith("took 0.1 s")
