"""Consumers that ask again get the same batches, in bounded memory."""

from __future__ import annotations

from semel.gateway.fetching.queue_runs import RUN_BYTES_MAX, RUNS_MAX, KafkaBatch, QueueRuns


def batch(start: int, end: int, size: int = 10) -> KafkaBatch:
    return KafkaBatch(start, end, bytes(size))


def test_an_offset_inside_a_batch_finds_the_batch_and_all_behind_it() -> None:
    runs = QueueRuns()
    runs.add([batch(0, 5), batch(5, 9)], 1.0)
    assert [each.base_offset for each in runs.find(3, 1.0)] == [0, 5]
    assert [each.base_offset for each in runs.find(5, 1.0)] == [5]
    assert not runs.find(9, 1.0)
    assert runs.bytes == 20


def test_what_touches_a_run_goes_on_with_it() -> None:
    runs = QueueRuns()
    runs.add([batch(0, 5)], 1.0)
    runs.add([batch(5, 9)], 2.0)
    runs.add([], 2.0)
    assert [each.base_offset for each in runs.find(0, 3.0)] == [0, 5]


def test_few_places_are_kept_and_the_oldest_goes_first() -> None:
    runs = QueueRuns()
    for place in range(RUNS_MAX + 1):
        runs.add([batch(100 * place, 100 * place + 1)], float(place))
    assert not runs.find(0, 9.0)
    assert runs.find(100, 9.0)
    assert runs.bytes == 10 * RUNS_MAX


def test_a_run_forgets_its_beginning_and_never_what_came_last() -> None:
    runs = QueueRuns()
    size = RUN_BYTES_MAX // 2
    for place in range(4):
        runs.add([batch(place, place + 1, size)], 1.0)
    assert runs.bytes <= RUN_BYTES_MAX
    assert not runs.find(1, 1.0)
    assert runs.find(3, 1.0)
    runs.add([batch(4, 5, 2 * RUN_BYTES_MAX)], 1.0)
    assert [each.base_offset for each in runs.find(4, 1.0)] == [4]
    assert runs.bytes == 2 * RUN_BYTES_MAX


def test_what_nobody_reads_goes() -> None:
    runs = QueueRuns()
    runs.add([batch(0, 5)], 1.0)
    runs.add([batch(50, 55)], 1.0)
    assert runs.find(50, 3.0)
    runs.forget_unused(2.0)
    assert not runs.find(0, 4.0)
    assert runs.find(50, 4.0)
    runs.forget_oldest()
    runs.forget_oldest()
    assert runs.bytes == 0
