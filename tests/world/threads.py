"""Threads that run one at a time: blocking code of the product, scheduled by the simulated loop.

How it works. A simulated thread is an operating system's thread that runs only while it holds the
baton. The loop hands it over and waits until it comes back: when the thread blocks (a lock, a
condition, a queue, a disk operation) or ends. What wakes it is always an event of the loop. So the
writer, the keeper and the readers of a node run their own unchanged code, switches happen exactly
where real ones matter, and the order depends on the seed alone. Sometimes a thread is also
switched away from when it has let go of its last lock: what it has looked at under the lock may be
another thing by the time it acts on it.

Invariants
1. Exactly one thread of the run is running.
2. A thread of a dead process gets the baton once more, to unwind with `Killed`.
3. The loop never blocks: a lock that it wants and a thread holds is an error of the run.
4. What a signal raises on the loop (Ctrl-C, a time limit) is raised when the baton is back, so that
   a run can be ended at any moment.

Not here: which modules get these instead of `threading` (`hosting.py`).
"""

from __future__ import annotations

import _thread
import queue
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final

from tests.world.loop import PROCESS, Killed, Process, SimLoop

SWITCH: Final = 0.03
"""How often a thread is switched away from where it lets go of its last lock."""


def _closed() -> _thread.LockType:
    """A gate that somebody has to open."""
    gate = _thread.allocate_lock()
    gate.acquire()
    return gate


class _Carrier:
    """An operating system's thread, used for one simulated thread after the other."""

    def __init__(self, threads: Threads) -> None:
        self.gate = _closed()
        self.job: Callable[[], None] | None = None
        self._threads = threads
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            self.gate.acquire()
            if self.job is None:
                return
            self.job()
            self.job = None
            self._threads.idle.append(self)
            self._threads.give_back()


class SimThread:
    """One simulated thread; made by `Threads.spawn`."""

    def __init__(
        self, threads: Threads, run: Callable[[], None], name: str, context: Context
    ) -> None:
        self.name = name
        self.process: Process = context[PROCESS]
        self.ended = False
        self.context = context
        self._body_context = context.copy()
        self._threads = threads
        self._run = run
        self._carrier: _Carrier | None = None
        self._ticket = 0
        self._begun = False
        self.locks = 0
        """Number of locks that it holds."""
        self.process.threads[self] = None

    def start(self) -> None:
        self._threads.loop.call_soon(self._resume, 0, context=self.context)

    def _body(self) -> None:
        try:
            if self.process.alive:
                self._body_context.run(self._run)
        except Killed:
            pass
        except BaseException as error:
            self._threads.loop.errors.append(f"thread {self.name}: {error!r}")
        self.ended = True
        self.process.threads.pop(self, None)

    def _resume(self, ticket: int) -> None:
        """Called on the loop: gives the baton to the thread, and waits until it comes back."""
        if ticket != self._ticket or self.ended:
            return
        threads = self._threads
        self._ticket += 1
        if self._carrier is None:
            self._carrier = threads.idle.pop() if threads.idle else _Carrier(threads)
            self._carrier.job = self._body
        before, threads.current = threads.current, self
        try:
            threads.hand_over(self._carrier.gate)
        finally:
            threads.current = before

    def unwind(self) -> None:
        """Ends the thread; called on the loop, after the process died."""
        while not self.ended:
            if self._carrier is None:
                self.ended = True
                self.process.threads.pop(self, None)
                return
            self._resume(self._ticket)

    @property
    def ticket(self) -> int:
        """The ticket of the next wait, which must be passed to `wake`."""
        return self._ticket

    def park(self) -> None:
        """Called in the thread: gives the baton back until it is woken. Raises Killed."""
        if self.process.alive:
            assert self._carrier is not None
            self._threads.give_back()
            self._carrier.gate.acquire()
        if not self.process.alive:
            raise Killed

    def wake(self, ticket: int) -> None:
        """Lets the thread go on at the next turn of the loop; called from anywhere."""
        self._threads.loop.call_soon(self._resume, ticket, context=self.context)

    def sleep(self, delay: float) -> None:
        """In the thread."""
        loop = self._threads.loop
        loop.call_at(loop.now + delay, self._resume, self._ticket, context=self.context)
        self.park()


class Threads:
    """The scheduler of one run, and what modules find in place of `threading` and `queue`."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self._main_gate = _closed()
        self._handed_over = False
        self.idle: list[_Carrier] = []
        self.current: SimThread | None = None
        loop.spawn_thread = self.spawn

    def spawn(self, run: Callable[[], None], name: str) -> SimThread:
        thread = SimThread(self, run, name, copy_context())
        thread.start()
        return thread

    def hand_over(self, gate: _thread.LockType) -> None:
        """Called on the loop: gives the baton to the thread behind the gate, and waits until it is
        back."""
        raised: BaseException | None = None
        self._handed_over = True
        gate.release()
        while True:
            try:
                self._main_gate.acquire()
                break
            except BaseException as error:  # raised by a signal
                raised = error
                if not self._handed_over:
                    break
        if raised is not None:
            self._main_gate = _closed()  # nobody knows whether the old one is open, or will be
            raise raised

    def give_back(self) -> None:
        """Called in a thread: the loop has the baton again."""
        gate, self._handed_over = self._main_gate, False
        gate.release()

    def maybe_switch(self) -> None:
        """Called when a lock was released: an operating system may switch threads here, too."""
        thread = self.current
        if thread is None or thread.locks or not thread.process.alive:
            return
        if self.random.random() < SWITCH:
            thread.sleep(self.random.choice((0.0, 0.0, 0.001, 0.01)))

    def end(self) -> None:
        """Lets the carriers go."""
        for carrier in self.idle:
            carrier.job = None
            carrier.gate.release()
        self.idle.clear()

    # What the product finds under the names of `threading` and `queue`.

    def Lock(self) -> SimLock:  # noqa: N802
        return SimLock(self)

    def RLock(self) -> SimLock:  # noqa: N802
        return SimLock(self)

    def Condition(self, lock: SimLock | None = None) -> SimCondition:  # noqa: N802
        return SimCondition(self, lock)

    def Event(self) -> SimEvent:  # noqa: N802
        return SimEvent(self)

    def Thread(self, *, target: Any, name: str = "", daemon: bool = True) -> _Unstarted:  # noqa: N802
        return _Unstarted(self, target, name)

    def SimpleQueue(self) -> SimQueue:  # noqa: N802
        return SimQueue(self)

    def current_thread(self) -> object:
        return self.current or self

    Empty = queue.Empty


class _Unstarted:
    """`threading.Thread`, as far as it is used."""

    def __init__(self, threads: Threads, target: Callable[[], None], name: str) -> None:
        self._threads = threads
        self._target = target
        self._name = name
        self._thread: SimThread | None = None
        self._ended = SimEvent(threads)

    def start(self) -> None:
        def run() -> None:
            try:
                self._target()
            finally:
                self._ended.set()

        self._thread = self._threads.spawn(run, self._name)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class _Waiters:
    """Threads that wait for one thing; the first that came is served first."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._line: deque[tuple[SimThread, int]] = deque()

    def wait(self, timeout: float | None = None) -> None:
        thread = self._threads.current
        if thread is None:
            raise AssertionError("the event loop of a node waits for one of its threads")
        self._line.append((thread, thread.ticket))
        if timeout is None:
            thread.park()
        else:
            thread.sleep(timeout)

    def wake(self, number: int | None = None) -> None:
        line = self._line
        while line and number != 0:
            thread, ticket = line.popleft()
            thread.wake(ticket)
            if ticket == thread.ticket and number is not None:
                number -= 1


class SimLock:
    """A lock, reentrant for the thread that holds it."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._owner: object = None
        self._depth = 0
        self._waiters: _Waiters | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me: object = self._threads.current or self._threads
        while self._depth and self._owner is not me:
            if not blocking:
                return False
            if self._waiters is None:
                self._waiters = _Waiters(self._threads)
            self._waiters.wait()
        if not self._depth and isinstance(me, SimThread):
            me.locks += 1
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            if isinstance(self._owner, SimThread):
                self._owner.locks -= 1
            self._owner = None
            if self._waiters is not None:
                self._waiters.wake(1)

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
        self._threads.maybe_switch()

    def suspend(self) -> int:
        """Releases the lock altogether, for a wait."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        self.acquire()
        self._depth = depth


class SimCondition:
    """`threading.Condition`."""

    def __init__(self, threads: Threads, lock: SimLock | None) -> None:
        self._threads = threads
        self._lock = lock or SimLock(threads)
        self._waiters = _Waiters(threads)
        self._signals = 0
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *arguments: object) -> None:
        self._lock.__exit__(*arguments)

    def wait(self, timeout: float | None = None) -> bool:
        before = self._signals
        depth = self._lock.suspend()
        try:
            self._waiters.wait(timeout)
        finally:
            if self._threads.current is None or self._threads.current.process.alive:
                self._lock.take_back(depth)
            else:
                self._lock._depth = depth  # so that unwinding can let go of it
        return self._signals > before

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        loop = self._threads.loop
        end = None if timeout is None else loop.now + timeout
        result = predicate()
        while not result:
            left = None if end is None else end - loop.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, number: int = 1) -> None:
        self._signals += 1
        self._waiters.wake(number)

    def notify_all(self) -> None:
        self._signals += 1
        self._waiters.wake()


class SimEvent:
    """`threading.Event`."""

    def __init__(self, threads: Threads) -> None:
        self._waiters = _Waiters(threads)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class SimQueue:
    """`queue.SimpleQueue`."""

    def __init__(self, threads: Threads) -> None:
        self._waiters = _Waiters(threads)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            self._waiters.wait(timeout)
            while not self._items and timeout is None:
                self._waiters.wait()
        if not self._items:
            raise queue.Empty
        return self._items.popleft()
