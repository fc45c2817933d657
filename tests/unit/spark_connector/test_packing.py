"""Ranges packed into tasks: nothing lost, nothing twice, everything even."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.spark_connector.offsets import QueueRange
from semel.spark_connector.packing import TASK_ROWS, pack, tasks_wanted


@st.composite
def plans(draw: st.DrawFn) -> list[QueueRange]:
    counts = draw(st.lists(st.integers(1, 500), max_size=12))
    starts = draw(st.lists(st.integers(0, 1 << 50), min_size=12, max_size=12))
    return [
        QueueRange(topic="t", topic_id=1, queue=queue, start=start, end=start + count)
        for queue, (count, start) in enumerate(zip(counts, starts, strict=False))
    ]


def offsets(ranges: list[QueueRange]) -> list[tuple[int, int]]:
    return [(each.queue, at) for each in ranges for at in range(each.start, each.end)]


@given(plans(), st.integers(1, 40))
def test_packing_loses_and_repeats_nothing_and_is_even(
    ranges: list[QueueRange], tasks: int
) -> None:
    lots = pack(ranges, tasks)
    assert offsets([each for lot in lots for each in lot]) == offsets(ranges)
    rows = len(offsets(ranges))
    assert len(lots) == min(tasks, rows)
    sizes = [sum(each.count for each in lot) for lot in lots]
    assert not sizes or max(sizes) - min(sizes) <= 1
    for lot in lots:
        assert len({each.queue for each in lot}) == len(lot)


def test_many_tiny_queues_are_few_tasks() -> None:
    tiny = [QueueRange(topic="t", topic_id=1, queue=queue, start=0, end=10) for queue in range(64)]
    assert len(pack(tiny, tasks_wanted(640, cores=2))) == 1


def test_one_large_queue_keeps_every_core_at_work() -> None:
    assert tasks_wanted(10 * TASK_ROWS, cores=4) == 4
    whole = QueueRange(topic="t", topic_id=1, queue=0, start=5, end=5 + 10 * TASK_ROWS)
    assert [lot[0].count for lot in pack([whole], 4)] == [10 * TASK_ROWS // 4] * 4


@given(
    st.integers(0, 1 << 40),
    st.integers(1, 64),
    st.none() | st.integers(1, 1_000),
    st.none() | st.integers(1 << 30, 1 << 41),
)
def test_the_number_of_tasks_is_what_was_asked_for(
    rows: int, cores: int, least: int | None, most: int | None
) -> None:
    tasks = tasks_wanted(rows, cores=cores, tasks_min=least, records_max=most)
    assert tasks <= rows
    assert bool(tasks) == bool(rows)
    assert tasks >= min(rows, least or 1)
    assert most is None or not tasks or -(-rows // tasks) <= most
    if least is None and most is None:
        assert tasks <= cores
