"""Ranges into tasks: few tasks for many small queues, large ranges cut so that every core works.

How it works. A task costs about 30 ms whatever it reads, so a read gets one task for each
`TASK_ROWS` rows, at most one a core, unless the options ask for more. All ranges are laid end to
end and cut into that many equal lengths; a task takes what lies in its length, be it a part of one
range or many whole ones. Offsets are dense, so lengths are messages, exactly.

Invariants
1. Packing neither loses nor repeats an offset, and keeps the order of ranges.
2. No task has more than `records_max` rows; sizes differ by at most one.
3. A task holds at most one range of a queue.

Pure; not here: what the ranges are (`offsets.py`, `progress.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from semel.spark_connector.offsets import QueueRange

TASK_ROWS: Final = 100_000
"""Rows that take a task about as long as its start."""


def tasks_wanted(
    rows: int, *, cores: int, tasks_min: int | None = None, records_max: int | None = None
) -> int:
    """Tasks for so many rows: never more than rows, and at least one for any."""
    wanted = min(-(-rows // TASK_ROWS), cores)
    if records_max is not None:
        wanted = max(wanted, -(-rows // records_max))
    return min(max(wanted, tasks_min or 1), rows)


def pack(ranges: Sequence[QueueRange], tasks: int) -> list[tuple[QueueRange, ...]]:
    """The ranges in `tasks` lots of equal size; without any row, none."""
    rows = sum(each.count for each in ranges)
    tasks = min(tasks, rows)
    ends = [rows * (task + 1) // tasks for task in range(tasks)]
    lots: list[list[QueueRange]] = [[] for _ in ends]
    task = done = 0
    for whole in ranges:
        start = whole.start
        while start < whole.end:
            end = min(whole.end, start + ends[task] - done)
            lots[task].append(dataclasses.replace(whole, start=start, end=end))
            done += end - start
            start = end
            if done == ends[task]:
                task += 1
    return [tuple(lot) for lot in lots]
