"""Topics of queues, and options of the transport."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.contrib.kombu.names import bindings_topic, topic_of
from semel.contrib.kombu.options import TransportOptions, read_options
from semel.protos.errors import InvalidRequest

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,230}")


def test_a_queue_has_the_topic_of_its_name() -> None:
    assert topic_of("celery") == "celery"
    assert topic_of("celery", "billing") == "billing.celery"
    assert bindings_topic("/") == "kombu.bindings"
    assert bindings_topic("billing") == "billing.kombu.bindings"


@given(st.text(max_size=300), st.text(max_size=40))
def test_every_queue_has_a_topic_that_there_may_be(queue: str, host: str) -> None:
    topic = topic_of(queue, host)
    assert TOPIC.fullmatch(topic)
    assert topic not in (".", "..", bindings_topic(host))


@given(st.lists(st.text(max_size=300), unique=True, min_size=2, max_size=10))
def test_different_queues_have_different_topics(queues: list[str]) -> None:
    assert len({topic_of(queue) for queue in queues}) == len(queues)


def test_options_of_kombu_are_left_to_it() -> None:
    found = read_options({"max_retries": 3, "visibility_timeout": 60, "queues": 2})
    assert found == TransportOptions(queues=2)
    assert read_options(None) == TransportOptions()


def test_an_option_that_there_is_not_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'retry_steps_ms'"):
        read_options({"retry_step_ms": (1,)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"queues": 0},
        {"lock_ms": 1},
        {"session_ms": 0},
        {"retry_steps_ms": (-1,)},
        {"retry_steps_ms": (1,), "dead_letters": False},
        {"dedup_window_bytes": 5},
        {"polling_interval": 0},
        {"look_ms": -1},
        {"client": 3},
        {"bootstrap": 3},
        {"dead_letters": 1},
    ],
)
def test_a_value_that_may_not_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        read_options(wrong)


def test_a_new_worker_waits_as_long_as_a_task_may_take() -> None:
    options = read_options({"lock_ms": 60_000}).consumer_options()
    assert options["hand_over_ms"] == options["lock_ms"] == 60_000
    policy = read_options({"retry_steps_ms": [5]}).retry_policy()
    assert policy is not None
    assert policy.steps_ms == (5,)
    assert read_options({"dead_letters": False}).retry_policy() is None
