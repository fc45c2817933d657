"""Corrections of asyncio's faults in the supported versions of Python, in one place.

Use `compat.timeout`, `compat.timeout_at` and `compat.TaskGroup` instead of asyncio's, which the
linter refuses, and `compat.parts_writer` instead of a transport's `writelines`. In a Python without
the fault, the names are asyncio's own. docs/decisions/pythons.md lists the versions.

- *TaskGroup* before 3.13: if a task fails while the parent leaves the group, the parent's cancel
  count stays raised for good. And if a cancellation from outside meets a failure inside, it is
  lost, so a parent that handles the failure goes on for ever (cpython gh-116720).
- *timeout* before 3.11.4: in a task whose cancel count is not 0 it ends in CancelledError instead
  of TimeoutError (gh-102780). The count is not 0 in every clean-up after a cancellation.
- *writelines* on asyncio's own sockets: from 3.12.0 to 3.12.8 and in 3.13.0 and 3.13.1 it never
  pauses the writer, whose memory then grows without bound (CVE-2024-12254). Before 3.13.10, and in
  all of 3.12, it registers the file descriptor of a lost connection, which may be another
  connection's by then (gh-136234). uvloop has neither fault.
"""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Any

__all__ = ["TaskGroup", "parts_writer", "runtime", "timeout", "timeout_at"]


if sys.version_info >= (3, 13):
    TaskGroup = asyncio.TaskGroup
else:

    class TaskGroup(asyncio.TaskGroup):
        """As in Python 3.13: it takes back its own cancellation of the parent, and no other."""

        _parent_cancel_requested: bool
        _parent_task: asyncio.Task[object]

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            taken_back = self._parent_cancel_requested  # by the base class, first of all
            parent = self._parent_task
            try:
                await super().__aexit__(kind, error, traceback)
            except BaseExceptionGroup:
                self._settle(parent, taken_back)
                if parent.cancelling():  # from outside: it must be heard after the failure, too
                    parent.uncancel()
                    parent.cancel()
                raise
            except BaseException:
                self._settle(parent, taken_back)
                raise

        def _settle(self, parent: asyncio.Task[object], taken_back: bool) -> None:
            if self._parent_cancel_requested and not taken_back:
                parent.uncancel()


class _Timeout(asyncio.Timeout):  # type: ignore[misc]  # final for a type checker only
    """As in Python 3.11.4: it ignores cancellations of the task from before it was entered."""

    _entered: tuple[asyncio.Task[Any], int]
    """The task, and how many cancellations of it there were before."""

    async def __aenter__(self) -> _Timeout:
        task = asyncio.current_task()
        await super().__aenter__()
        assert task is not None
        self._entered = task, task.cancelling()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        expired = self.expired()
        await super().__aexit__(kind, error, traceback)
        # Not the current task: an abandoned generator is closed in none, or in another one.
        task, before = self._entered
        if expired and kind is asyncio.CancelledError and task.cancelling() <= before:
            raise TimeoutError from error


if sys.version_info >= (3, 11, 4):
    timeout = asyncio.timeout
    timeout_at = asyncio.timeout_at
else:

    def timeout(delay: float | None) -> asyncio.Timeout:
        """`asyncio.timeout`: raises TimeoutError in the block after `delay` seconds; never for
        None."""
        loop = asyncio.get_running_loop()
        return _Timeout(None if delay is None else loop.time() + delay)

    def timeout_at(when: float | None) -> asyncio.Timeout:
        """`asyncio.timeout_at`: raises TimeoutError in the block at this time of the loop."""
        return _Timeout(when)


def runtime() -> str:
    """Returns Python and event loop of this program, for its operator: "CPython 3.13.5, uvloop
    0.23.0"."""
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    if loop == "uvloop":
        loop += f" {version('uvloop')}"
    return f"{platform.python_implementation()} {platform.python_version()}, {loop}"


def parts_writer(
    transport: asyncio.WriteTransport,
) -> Callable[[Sequence[bytes | memoryview]], None]:
    """Returns a function that sends several parts in a row, as `writelines` should. It copies them
    only where `writelines` is faulty."""
    if type(transport).__module__.partition(".")[0] != "asyncio":
        return transport.writelines
    return lambda parts: transport.write(b"".join(parts))
