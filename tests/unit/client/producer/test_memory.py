"""What all producers of a client hold together: `producer/memory.py` and its use at the intake."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.config import ProducerConfig, build
from semel.client.core.batching import Chunk
from semel.client.producer.intake import Intake
from semel.client.producer.memory import ProducerMemory
from semel.protos.errors import BufferFull, Closed

LIMIT = 10_000


def make_intake(memory: ProducerMemory, **options: object) -> Intake:
    config = build(ProducerConfig, {"batch_bytes": 500, **options})
    return Intake(config, wake=lambda: None, open_topic=None, memory=memory)


def append(intake: Intake, value: bytes = b"v", *, block: bool = True) -> tuple[Chunk, int]:
    return intake.append("t", value, None, None, None, None, None, block)


def fill(intake: Intake, told: str) -> None:
    """Until it is refused for that reason."""
    with pytest.raises(BufferFull, match=told):  # noqa: PT012
        while True:
            append(intake, bytes(600))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2_000), st.booleans()), max_size=60))
def test_what_is_held_is_the_sum_of_all_chunks(steps: list[tuple[int, int, bool]]) -> None:
    memory = ProducerMemory(1 << 30)
    intakes = [make_intake(memory) for _ in range(6)]
    for who, size, settle in steps:
        intake = intakes[who]
        if settle and intake.outstanding:
            topic = intake.topic("t")
            while (chunk := intake.take(topic, open_too=True)) is not None:
                intake.release(chunk)
        else:
            append(intake, bytes(size))
    for intake in intakes:
        for chunk in intake.snapshot():
            intake.take(intake.topic("t"), open_too=True)
            intake.release(chunk)
    assert memory.held == 0
    assert all(intake.buffered == 0 for intake in intakes)


def test_each_may_hold_as_much_as_is_free() -> None:
    memory = ProducerMemory(LIMIT)
    held = []
    for _ in range(4):
        intake = make_intake(memory, buffer_full="raise")
        fill(intake, "all producers")
        held.append(intake.buffered)
    assert held == sorted(held, reverse=True)
    assert held[0] >= LIMIT // 2
    assert held[-1] >= 600
    assert sum(held) == memory.held <= LIMIT + 4 * 700


def test_one_that_waits_goes_on_when_another_gives_back() -> None:
    memory = ProducerMemory(2_000)
    first, second = make_intake(memory), make_intake(memory)
    chunk, _ = append(first, bytes(2_500))
    done = threading.Event()

    def send() -> None:
        append(second, bytes(600))
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not done.wait(0.05)
    first.release(chunk)
    assert done.wait(0.4), "it was not woken, only looked again"
    thread.join()


def test_one_that_waits_for_others_hears_of_its_own_end() -> None:
    memory = ProducerMemory(2_000)
    first, second = make_intake(memory), make_intake(memory)
    append(first, bytes(2_500))
    caught: list[Exception] = []

    def send() -> None:
        try:
            append(second)
        except Closed as error:
            caught.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    second.fail(Closed("the producer is closed"))
    thread.join(5)
    assert caught


def test_with_nothing_of_its_own_there_is_nothing_to_drain() -> None:
    memory = ProducerMemory(2_000)
    first, second = make_intake(memory), make_intake(memory)
    append(first, bytes(2_500), block=False)
    assert second.has_room()
    append(second, bytes(600), block=False)
    assert not second.has_room()


def test_whoever_asks_for_a_large_buffer_gets_it() -> None:
    memory = ProducerMemory(LIMIT)
    memory.admit(LIMIT * 10)
    intake = make_intake(memory, buffer_bytes=LIMIT * 10, buffer_full="raise")
    fill(intake, "buffer_bytes is 100000")
    assert intake.buffered >= LIMIT * 10
