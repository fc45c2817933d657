"""Syncs that the kernel carries out for the event loop, without waking a thread.

How it works. `IOCB_CMD_FDSYNC` of Linux AIO (4.18 and newer) hands an fdatasync to a work queue of
the kernel and returns at once; an eventfd that the event loop watches signals its end. The library
(caio) calls io_submit and io_getevents, the latter never waiting.

One sync at the start (`KernelSyncs.open`) shows whether this works here: a sandbox may forbid it,
the machine's contexts may be used up (fs.aio-max-nr), or a file system may lack the operation. In
these cases there are no kernel syncs, and the log's thread does all syncs.

Invariants
1. One sync is under way at a time, and its result is never lost: either `on_done` or `wait` gets
   it. The kernel reports an error only once for each open file, so a second sync would succeed.

Not here: which writes are synced this way, and when (`log/writer.py`); files (`log/files.py`).
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
"""The exceptions that caio raises for some errnos of io_submit; it passes others on as they are."""

OnDone = Callable[[OSError | None], None]


class KernelSyncs:
    """The fdatasyncs of one log, one after the other. Create it with `open`."""

    def __init__(self, aio: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Raises SystemError when the kernel grants no AIO context."""
        self._aio = aio
        self._loop = loop
        self._context: Any = aio.Context(_REQUESTS)
        self._reaping = threading.Lock()
        self._result: int | None = 0
        """Result of the newest sync: 0, or a negative errno; None while it is under way."""
        self._on_done: OnDone | None = None
        """The callback that has not heard of the newest sync yet."""

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop, descriptor: int) -> KernelSyncs | None:
        """BLOCKING for one sync of `descriptor`, on the loop's thread. None when this machine or
        this file system does not support it."""
        try:
            # Not `from caio import`: the package without its extension defines this name as None.
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
        """Starts a sync of the file; the loop calls `on_done` later.

        When it raises OSError, no sync was started.
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
        """BLOCKING. Waits for the newest sync and returns its result. The caller must ignore
        `on_done`, which may or may not be called."""
        done = select.poll()
        done.register(self._context.fileno, select.POLLIN)
        while self._result is None:
            done.poll(_LOOK_AGAIN_MS)  # The loop may reap the result first.
            self._reap()
        return self._error()

    def close(self) -> None:
        """Makes the loop stop watching. Any thread may call it, once no sync is under way."""
        with contextlib.suppress(RuntimeError):  # The loop itself is closed.
            self._loop.call_soon_threadsafe(self._detach)

    def _detach(self) -> None:
        self._loop.remove_reader(self._context.fileno)
        self._context = None  # Dropping the context closes it.

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
            except SystemError as error:  # Its outcome is unknown, so it counts as failed.
                self._result = -error.args[0]

    def _on_result(self, result: int) -> None:
        """The library calls it, with the kernel's signed result as an unsigned number."""
        self._result = result - (1 << 64) if result >> 63 else result

    def _error(self) -> OSError | None:
        result = self._result
        assert result is not None
        return OSError(-result, f"fdatasync: {os.strerror(-result)}") if result < 0 else None
