"""The I/O thread: one event loop, shared by all clients of the process.

How it works. gRPC's asyncio layer needs one loop per process. The synchronous API needs a thread
that runs the loop beside the caller, and the asyncio API must keep encoding and compression off the
caller's loop. So there is one daemon thread with a loop (uvloop where it is installed). The first
client starts it, and the exit of the interpreter stops it. Calls hand coroutines over and wait for
the result, by blocking or by awaiting.

Invariants
1. After a fork the child has no I/O thread and gets none: its objects and new connections raise
   `Closed`. gRPC does not survive a fork while a call is under way, and one always is.
2. A call that times out or is interrupted cancels its coroutine.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from semel.protos.errors import Closed, InvalidRequest, TimedOut

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
IO_THREAD: Final = "semel-io"
_EXIT_WAIT_S: Final = 2.0


class Runtime:
    """A thread that runs an event loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = _new_loop()
        self.loop.set_exception_handler(_on_loop_exception)
        self.thread = threading.Thread(target=self._run, name=IO_THREAD, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, _Result]) -> concurrent.futures.Future[_Result]:
        """Starts a coroutine on the I/O thread."""
        if os.getpid() != self.pid:
            coroutine.close()
            raise Closed(f"this client belongs to process {self.pid}, which forked")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(
        self, coroutine: Coroutine[Any, Any, _Result], timeout: float | None, late: str
    ) -> _Result:
        """Blocks for the coroutine's result. Raises TimedOut, whose text begins with `late`, after
        `timeout` seconds, and Closed if the client is closed meanwhile."""
        if threading.current_thread() is self.thread:
            coroutine.close()
            raise InvalidRequest("a callback must not call a blocking method of the client")
        future = self.submit(coroutine)
        try:
            try:
                return future.result(timeout)
            except TimeoutError:
                if not future.done():
                    raise TimedOut(f"{late} within {timeout:g} s") from None
                return future.result()  # it came at the last moment, or raises its own TimeoutError
        except concurrent.futures.CancelledError:
            raise _closed() from None
        finally:
            future.cancel()

    async def await_run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Awaits the coroutine's result on the caller's own loop. Raises Closed if the client is
        closed meanwhile."""
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        future = self.submit(coroutine)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # A TaskGroup of the caller's would swallow the cancellation of a task of the client's.
            if future.cancelled() and (task is None or task.cancelling() == before):
                raise _closed() from None
            raise

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function on the I/O thread. A no-op once the thread has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        """Ends the loop and waits up to `_EXIT_WAIT_S` for the thread."""
        if os.getpid() == self.pid and self.thread.is_alive():
            self.call_soon(self.loop.stop)
            self.thread.join(_EXIT_WAIT_S)


def _closed() -> Closed:
    return Closed("the client was closed while the call was under way")


def finish(awaited: asyncio.Future[None] | None) -> None:
    """Ends a wait. A second call, or one without a waiter, is a no-op."""
    if awaited is not None and not awaited.done():
        awaited.set_result(None)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _on_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), BlockingIOError):
        # gRPC wakes every loop of the process for an event that only one of them finds.
        return
    loop.default_exception_handler(context)


_lock = threading.Lock()
_shared: Runtime | None = None


def shared_runtime() -> Runtime:
    """Returns the process's I/O thread, started if missing. Raises Closed in a forked child."""
    global _shared
    with _lock:
        if _shared is not None and _shared.pid != os.getpid():
            # gRPC's own threads are gone and its locks may be held for ever.
            raise Closed(
                f"process {_shared.pid} had a client and forked; gRPC cannot be used in its"
                " children: start them afresh (multiprocessing: the 'spawn' method)"
            )
        if _shared is None:
            _shared = Runtime()
        return _shared


@atexit.register
def _stop_shared() -> None:
    if _shared is not None:
        _shared.stop()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
