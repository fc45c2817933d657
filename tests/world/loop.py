"""One event loop for all processes of a simulated cluster, with a clock that only it moves.

How it works. It is asyncio's own loop without a selector: when nothing is ready, time jumps to the
next timer. Every handle was made by some process, named by a context variable; the handles of a
process that is dead are dropped (that is the whole of a crash), those of one that is stopped wait
(SIGSTOP, or a disk that blocks its loop). Within a process handles run in the order asyncio
promises; across processes the network's random latencies decide.

Executors and `call_soon_threadsafe` are simulated threads (`threads.py`), so that nothing ever runs
beside the loop.

Invariants
1. Whatever runs, runs alone; the order depends on the seed only. Hence tasks hash by their number:
   sets of tasks, as asyncio keeps them, are iterated in an order that repeats.
2. A dead process does nothing any more: neither handles nor threads nor `finally` blocks of its
   coroutines, which are kept until the run is over.
3. Time goes on: who does something again and again without waiting ends the run.

Not here: clocks as processes see them (`hosting.py`).
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.world.threads import SimThread


STILL_MAX = 300_000
"""Events at one moment; whole clusters that start at once have some thousand."""


class Killed(BaseException):
    """The process of the running code is gone. No handler of the product catches it."""


class Process:
    """One incarnation of a node or a client."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        """Host on which it runs; links of the network are between hosts."""
        self.alive = True
        self.stopped_until = 0.0
        """Its loop does not turn before this time."""
        self.parked: list[asyncio.Handle] = []
        self.threads: dict[SimThread, None] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.on_death: list[Callable[[], None]] = []
        self.clock_rate = 1.0
        self.clock_offset = 0.0
        """Offset of the monotonic clock, s."""
        self.wall_offset = 0.0
        self.after_event: Callable[[], None] | None = None
        """Called after each event of the process."""

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process] = ContextVar("simulated process")


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    _numbers = count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._number = next(SimTask._numbers)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: Any = None,
    **options: Any,
) -> SimTask:
    """`options`: the name, which Python before 3.13.3 sets afterwards."""
    task = SimTask(coroutine, loop=loop, context=context, **options)
    process = PROCESS.get(None) if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks.append(task)
    return task


def _close(task: asyncio.Task[Any]) -> None:
    """Closes a task's coroutine in a world that has ended. Each `finally` that awaits there, and
    each exit of a stack, holds it up once."""
    for _ in range(100):
        try:
            task.get_coro().close()
        except BaseException:
            continue
        return


class SimLoop(asyncio.BaseEventLoop):
    """Run it with `run`."""

    def __init__(self) -> None:
        super().__init__()
        SimTask._numbers = count()
        self.now = 0.0
        self.random = Random(0)
        """Replaced by the world's."""
        self.steps = 0
        self.errors: list[str] = []
        """Uncaught errors of tasks and callbacks; the run stops at the first one."""
        self.broken = False
        """True when a check has failed: the run stops."""
        self.spawn_thread: Callable[..., SimThread] | None = None
        self.listen: Callable[..., Any]
        self.connect: Callable[..., Any]
        """`listen` and `connect` are set by the network (`sockets.py`)."""
        self.readers: dict[object, Callable[[], None]] = {}
        """Callbacks for events of the kernel, by the object that has the event."""
        self.over = False
        self._dying: list[Process] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_numbers = count()
        self.set_task_factory(_make_task)  # type: ignore[arg-type]
        self.set_exception_handler(self._on_error)

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        process = PROCESS.get(None)
        if process is not None:
            delay /= process.clock_rate
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Any, *args: Any
    ) -> None:
        """`fd` is an object here, no descriptor; it calls its entry of `readers`."""
        self.readers[fd] = partial(callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self.readers.pop(fd, None) is not None

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers are skipped when they come up."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Runs `func` in a simulated thread of the calling process, that of the executor if it has
        only one."""
        future: asyncio.Future[Any] = self.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(finish, None, error)
            else:
                self.call_soon(finish, result, None)

        begin = getattr(executor, "begin", None)
        if begin is not None:  # see `executors.py`
            begin(work)
            return future
        assert self.spawn_thread is not None
        self.spawn_thread(work, "executor")
        return future

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return self.listen(protocol_factory, host, port)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.connect(protocol_factory, host, port)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Killed) or self.over or "destroyed" in context["message"]:
            return
        self.errors.append(f"{context['message']}: {error!r}")

    def kill(self, process: Process) -> None:
        """Nothing of the process runs from here on; its threads are unwound at the next step."""
        if process.alive:
            process.alive = False
            process.parked.clear()
            self._dying.append(process)

    def stop_process(self, process: Process, until: float) -> None:
        """The process' loop stands still until then."""
        if until > process.stopped_until:
            process.stopped_until = until
            context = Context()
            self.call_at(until, self._go_on, process, context=context)

    def _go_on(self, process: Process) -> None:
        """Lets a stopped process run again. It finds the connections that have become readable
        meanwhile in any order, so what came last may be handled first; the bytes of one connection
        stay in order."""
        if process.alive and process.stopped_until <= self.now:
            sources: dict[object, deque[asyncio.Handle]] = {}
            for handle in process.parked:
                source = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
                key = id(source) if getattr(source, "is_connection", False) else None
                sources.setdefault(key, deque()).append(handle)
            process.parked = []
            order: list[asyncio.Handle] = []
            waiting = list(sources.values())
            while waiting:
                one = self.random.choice(waiting)
                # Often all of it at once: so much is read from a connection in one go.
                for _ in range(self.random.choice((1, len(one)))):
                    order.append(one.popleft())
                if not one:
                    waiting.remove(one)
            self._ready.extendleft(reversed(order))  # type: ignore[attr-defined]

    def run(self, until: float) -> None:
        """Runs events up to the time `until`, or until something is `broken`."""
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        errors = self.errors
        began = self.steps  # of this moment
        events._set_running_loop(self)
        try:
            while not (self.broken or errors):
                if self._dying:
                    self._bury()
                if ready:
                    handle = ready.popleft()
                elif timers:
                    when = timers[0][0]
                    if when > until:
                        break
                    handle = heapq.heappop(timers)[2]
                    if when > self.now and not handle._cancelled:
                        self.now, began = when, self.steps
                else:
                    break
                if handle._cancelled:
                    continue
                process = handle._context.get(PROCESS)
                if process is not None:
                    if not process.alive:
                        continue
                    if process.stopped_until > self.now:
                        process.parked.append(handle)
                        continue
                self.steps += 1
                if self.steps - began > STILL_MAX:
                    errors.append(f"time stands still at {self.now}: {process} does {handle!r}")
                handle._run()
                if process is not None and process.after_event is not None and process.alive:
                    process.after_event()
            self.now = self.now if self.broken or errors else max(self.now, until)
        finally:
            events._set_running_loop(None)

    def _bury(self) -> None:
        while self._dying:
            process = self._dying.pop(0)
            for thread in list(process.threads):
                thread.unwind()
            for action in process.on_death:
                action()

    def end(self, processes: list[Process]) -> None:
        """Ends the run: unwinds everything."""
        self.over = True
        for process in processes:
            process.alive = False
            for thread in list(process.threads):
                thread.unwind()
        events._set_running_loop(self)
        try:
            for process in processes:
                for task in process.tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    if not task.done():
                        _close(task)
                process.tasks.clear()
        finally:
            events._set_running_loop(None)
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()
        self._closed = True
