"""Tasks about broker groups: at most one for each group, and none waits for another group's.

How it works. A call to a broker group without a master waits for one, perhaps for long. If one task
called several groups in turn, or all of them in rounds, everybody would wait for the slowest. So
each kind of work has a set of tasks here, and each group's task begins as soon as the one before it
has ended.

Invariants
1. A set has no more tasks than there are broker groups.

Not here: what the tasks do (`consumer/locks.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from semel.protos.ids import GroupId

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]]
"""Starts a task of this name, and reports its failure."""


class GroupTasks:
    """One kind of work at all broker groups. Lives on the I/O thread."""

    def __init__(self, spawn: Spawn, name: str) -> None:
        self._spawn = spawn
        self._name = name
        self._tasks: dict[GroupId, asyncio.Task[Any]] = {}

    def running(self, group_id: GroupId) -> bool:
        """The group has a task that has not ended."""
        return group_id in self.groups()

    def groups(self) -> list[GroupId]:
        """Returns the groups that have a task."""
        return [group_id for group_id, task in self._tasks.items() if not task.done()]

    def start(self, group_id: GroupId, coroutine: Coroutine[Any, Any, None]) -> None:
        """Starts the task of a group that has none."""
        assert not self.running(group_id), f"{self._name}: group {group_id} has a task"
        self._tasks[group_id] = self._spawn(coroutine, f"{self._name}-{group_id}")

    async def ended(self, group_id: GroupId) -> None:
        """Returns once the group has no task. Its failure is not raised here."""
        task = self._tasks.get(group_id)
        if task is not None:
            await asyncio.wait([task])

    def cancel(self) -> None:
        """Cancels all tasks."""
        for task in self._tasks.values():
            task.cancel()
