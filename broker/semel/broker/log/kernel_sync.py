"""Syncs that the kernel carries out, started and heard of by the event loop: no thread is woken.

How it works. `IOCB_CMD_FDSYNC` of Linux AIO (4.18 and newer) hands an fdatasync to a work queue of
the kernel and returns at once; an eventfd that the event loop watches tells when it is done. The
library (caio) calls io_submit and io_getevents, the latter never waiting.

Whether that works here is found out by one sync at the start (`KernelSyncs.open`): a sandbox may
forbid it, the machine's contexts may be used up (fs.aio-max-nr), a file system may have no such
operation. Then it is as if there were none, and the log's thread syncs all.

Invariants
1. One sync is under way at a time, and its result is never lost: `on_done` has it, or `wait`. The
   kernel tells an error once for each open file, so a second sync would succeed.

Not here: who may be synced so, and when (`writer.py`); files (`files.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any, Final

_log = logging.getLogger(__name__)

_REQUESTS: Final = 2
_LOOK_AGAIN_MS: Final = 10
_ERRORS: Final = {OverflowError: errno.EAGAIN, ValueError: errno.EINVAL}
"""By which caio tells some errnos of io_submit; others it tells as they are."""

OnDone = Callable[[OSError | None], None]


class KernelSyncs:
    """Fdatasyncs of one log, one after the other. Made by `open`."""

    def __init__(self, aio: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Raises SystemError when the kernel gives no context."""
        self._aio = aio
        self._loop = loop
        self._context: Any = aio.Context(_REQUESTS)
        self._reaping = threading.Lock()
        self._result: int | None = 0
        """Of the newest sync: 0, or an errno below zero; None while it is under way."""
        self._on_done: OnDone | None = None
        """Who is still to hear of it."""

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop, descriptor: int) -> KernelSyncs | None:
        """BLOCKING, for one sync of `descriptor`; on the loop's thread. None: not on this machine,
        or not on this file system."""
        try:
            # Not `from caio import`: without its extension the package has a None of that name.
            import caio.linux_aio as linux_aio

            syncs = cls(linux_aio, loop)
            syncs.start(descriptor, lambda _: None)
            error = syncs.wait()
            if error is not None:
                raise error
            loop.add_reader(syncs._context.fileno, syncs._on_readable)
        except (ImportError, OSError, SystemError, NotImplementedError) as error:
            _log.info("the log's thread does all syncs, the kernel takes none: %s", error)
            return None
        return syncs

    def start(self, descriptor: int, on_done: OnDone) -> None:
        """Begins to make durable what was written; `on_done` is called later, on the loop.

        Raises OSError; then nothing is under way.
        """
        assert self._result is not None
        operation = self._aio.Operation.fdsync(descriptor)
        operation.set_callback(self._on_result)
        self._result, self._on_done = None, on_done
        try:
            taken = self._context.submit(operation)
        except (OverflowError, ValueError, SystemError) as error:
            self._result, self._on_done = 0, None
            number = _ERRORS.get(type(error)) or error.args[0]
            raise OSError(number, f"io_submit: {os.strerror(number)}") from error
        assert taken == 1

    def wait(self) -> OSError | None:
        """BLOCKING. The newest sync's result; `on_done` does not matter any more, called or not."""
        done = select.poll()
        done.register(self._context.fileno, select.POLLIN)
        while self._result is None:
            done.poll(_LOOK_AGAIN_MS)  # the loop may be quicker
            self._reap()
        return self._error()

    def close(self) -> None:
        """Any thread, once nothing is under way. The loop watches no more."""
        with contextlib.suppress(RuntimeError):  # it is closed itself
            self._loop.call_soon_threadsafe(self._detach)

    def _detach(self) -> None:
        self._loop.remove_reader(self._context.fileno)
        self._context = None  # which closes it

    def _on_readable(self) -> None:
        self._reap()
        on_done = self._on_done
        if self._result is not None and on_done is not None:
            self._on_done = None
            on_done(self._error())

    def _reap(self) -> None:
        with self._reaping:
            try:
                self._context.poll()
            except BlockingIOError:
                return
            try:
                self._context.process_events(_REQUESTS)
            except SystemError as error:  # what became of it is unknown: as bad as failed
                self._result = -error.args[0]

    def _on_result(self, result: int) -> None:
        """Called by the library, which takes the kernel's number for one without a sign."""
        self._result = result - (1 << 64) if result >> 63 else result

    def _error(self) -> OSError | None:
        result = self._result
        assert result is not None
        return OSError(-result, f"fdatasync: {os.strerror(-result)}") if result < 0 else None
