"""Packs ranges into tasks: few tasks for many small queues, and large ranges cut for every core.

How it works. A task costs about 30 ms whatever it reads, so a read gets one task for each
`TASK_ROWS` rows, and at most one per core, unless the options ask for more. All ranges are laid end
to end and cut into that many equal lengths; a task takes its length, which may be a part of one
range or many whole ones. Offsets are dense, so lengths are exact numbers of messages.

Invariants
1. Packing neither loses nor repeats an offset, and keeps the order of ranges.
2. No task has more than `records_max` rows; sizes differ by at most one.
3. A task holds at most one range of a queue.

Pure. Not here: the choice of ranges (`offsets.py`, `progress.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from semel.spark_connector.offsets import QueueRange

TASK_ROWS: Final = 100_000
"""Number of rows whose reading takes about as long as the start of a task."""


def tasks_wanted(
    rows: int, *, cores: int, tasks_min: int | None = None, records_max: int | None = None
) -> int:
    """Number of tasks for `rows` rows: at most one per row, and at least one if there is a row."""
    wanted = min(-(-rows // TASK_ROWS), cores)
    if records_max is not None:
        wanted = max(wanted, -(-rows // records_max))
    return min(max(wanted, tasks_min or 1), rows)


def pack(ranges: Sequence[QueueRange], tasks: int) -> list[tuple[QueueRange, ...]]:
    """The ranges in `tasks` lots of equal size; no lot when there is no row."""
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
