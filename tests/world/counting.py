"""Counts what processes of a simulated cluster do: lines, allocations, disk operations, sends.

How it works. A trace function sees each call, line and return. A line of the product counts for the
role of the process that executes it, and so does what is allocated until the next event, or until
the line calls the simulator: what that copies, the kernel would have copied. An allocation is
*large* if bodies of batches are the only things of that size; a line that allocates so much has
copied one, and is remembered with its place. What lines allocate in smaller pieces is added up.

Both heaps are asked: Python's by its peak since the line began, Arrow's pool by what the line left
in it. The simulator's disks and connections are counted where they are entered.

The frames that a trace function is shown are allocated too, and are most of the small pieces: they
are the same from run to run, so the sum has a budget all the same, and comparing two runs that
execute the same lines leaves only the product's own allocations.

Invariants
1. At most one line is under way: simulated threads take turns, and a line ends where another one
   begins, where it returns, and where it calls the simulator.
2. What the hook does between the end of a line and the beginning of the next one is not counted.

Not seen: a copy that takes the place of another large thing freed within the same line; what
Arrow frees in the call that allocated it; what C libraries allocate beside both heaps (protobuf);
what takes the place of the simulator in production (sockets, gRPC, files).

Not here: what is counted, and when (`measuring.py`), how much may be (`test_budget.py`).
"""

from __future__ import annotations

import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from tests.world import sockets
from tests.world.disk import NodeFiles, _NodeFile
from tests.world.loop import PROCESS
from tests.world.rpc import SimCall, _Serving
from tests.world.sockets import SimTransport
from tests.world.threads import _Carrier

COPIES = "bodies copied by"
SMALL = "bytes in small pieces by"
_LARGE = 0.9
"""An allocation of at least this share of a body counts as a copy of one."""
_BELOW = ("/broker/log/files.py", "/broker/log/kernel_sync.py")
"""Modules of the product that call the kernel; they count as parts of the simulator."""
_PRODUCT = ("/semel/broker/", "/semel/client/", "/semel/protos/")


class _Code(Enum):
    """The owner of the code that a frame executes."""

    PRODUCT = "product"
    SIMULATOR = "simulator"
    LIBRARY = "library"
    """Counts for the line that called it."""


class Count:
    """Counts what happens in processes that have a role, while it is `counting`."""

    def __init__(self, body_bytes: int) -> None:
        """`body_bytes` is the size of a batch's body."""
        self.roles: dict[str, str] = {}
        """Role by host."""
        self.brokers: set[str] = set()
        """Hosts."""
        self.counted: Counter[str] = Counter()
        """"What of whom": number."""
        self.copied_at: Counter[str] = Counter()
        """Number of copied bodies, by role and line."""
        self._body_bytes = body_bytes
        self._active = False
        self._codes: dict[str, _Code] = {}
        self._pool = pa.default_memory_pool()
        # Made once: a method that is made anew would count as the line's.
        self._product_hook, self._simulator_hook = self._on_product, self._on_simulator
        # The line under way.
        self._role: str | None = None
        """The role of the process whose line it is; None while there is none."""
        self._place = "", 0
        self._heap_bytes = self._arrow_bytes = 0
        """Allocated bytes when the line began."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts from zero on while the block runs."""
        self.counted, self.copied_at = Counter(), Counter()
        traced = tracemalloc.is_tracing()
        tracemalloc.start()
        self._active = True
        try:
            yield
        finally:
            self._active, self._role = False, None
            if not traced:
                tracemalloc.stop()

    def count(self, what: str, number: int = 1) -> None:
        """Counts for the role of the running process, if it has one."""
        if (role := self._present()) is not None:
            self.counted[f"{what} {role}"] += number

    def _present(self) -> str | None:
        process = PROCESS.get(None) if self._active else None
        return None if process is None else self.roles.get(process.host)

    # --- lines

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The function for `sys.settrace`, called at each call of a function."""
        code = self._code(frame)
        if code is _Code.PRODUCT:
            if self._active:
                self._end()
                self._begin(frame)
            return self._product_hook
        if code is _Code.SIMULATOR and self._role is not None:
            self._end()
            frame.f_trace_lines = False
            return self._simulator_hook
        return None

    def _on_product(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._active:
            return self._product_hook
        if event == "line":
            self._end()
            self._begin(frame, lines=1)
        elif event == "return":
            self._end()
            self._go_on_below(frame)
        return self._product_hook

    def _on_simulator(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return" and self._active:
            self._go_on_below(frame)
        return self._simulator_hook

    def _code(self, frame: FrameType) -> _Code:
        name = frame.f_code.co_filename
        code = self._codes.get(name)
        if code is None:
            code = _Code.LIBRARY
            below = name.endswith(_BELOW)
            if any(part in name for part in _PRODUCT) and not below:
                code = _Code.PRODUCT
            elif "/tests/" in name or below:
                code = _Code.SIMULATOR
            self._codes[name] = code
        return code

    def _go_on_below(self, frame: FrameType) -> None:
        """A call returns: the product's line that made it goes on."""
        below = frame.f_back
        while below is not None and (code := self._code(below)) is not _Code.SIMULATOR:
            if code is _Code.PRODUCT:
                self._begin(below)
                return
            below = below.f_back

    # --- allocations

    def _begin(self, frame: FrameType, lines: int = 0) -> None:
        """A new line begins, or the rest of one."""
        self._role = role = self._present()
        if role is not None:
            self.counted[f"lines of {role}"] += lines
            self._place = frame.f_code.co_filename, frame.f_lineno
            self._arrow_bytes = self._pool.bytes_allocated()
            self._heap_bytes = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()  # behind the last thing that the hook allocates itself

    def _end(self) -> None:
        role = self._role
        if role is not None:
            peak = tracemalloc.get_traced_memory()[1]
            self._role = None
            for length in (
                peak - self._heap_bytes,
                self._pool.bytes_allocated() - self._arrow_bytes,
            ):
                if length > 0:
                    self._allocated(role, length)

    def _allocated(self, role: str, length: int) -> None:
        if length >= _LARGE * self._body_bytes:
            bodies = round(length / self._body_bytes)
            file, line = self._place
            self.counted[f"{COPIES} {role}"] += bodies
            self.copied_at[f"{role}, semel/{file.rpartition('/semel/')[2]}:{line}"] += bodies
        else:
            self.counted[f"{SMALL} {role}"] += length

    # --- entry points of the simulator

    @contextmanager
    def installed(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Traces this thread and the simulator's threads that are made meanwhile. Connections take
        everything in one piece."""
        run_carrier, before = _Carrier._run, NodeFiles.before
        sync_by_kernel = _NodeFile.sync_by_kernel
        read, write = _NodeFile.read, SimTransport.write
        put, answer = SimCall.put, _Serving.write

        def traced_carrier(carrier: _Carrier) -> None:
            sys.settrace(self.trace)
            run_carrier(carrier)

        def counted_before(files: NodeFiles, kind: str, *path: Path) -> None:
            self.count(f"{kind} of")
            before(files, kind, *path)

        def counted_sync_by_kernel(file: _NodeFile) -> None:
            self.count("sync of")
            sync_by_kernel(file)

        def counted_read(file: _NodeFile, length: int, offset: int) -> bytes:
            self.count("read of")
            return read(file, length, offset)

        def counted_write(transport: SimTransport, data: bytes) -> None:
            other = transport.other
            ends = {transport.process.host, other.process.host if other is not None else ""}
            whither = "to peers" if len(ends & self.brokers) == 2 else "on direct streams"
            self.count(f"sends {whither} of")
            self.count(f"bytes {whither} of", len(data))
            write(transport, data)

        def counted_put(call: SimCall, message: Any) -> None:
            self._by_grpc(message)
            put(call, message)

        async def counted_answer(serving: _Serving, message: Any) -> None:
            self._by_grpc(message)
            await answer(serving, message)

        exchanged: list[tuple[object, str, Callable[..., object] | float]] = [
            (_Carrier, "_run", traced_carrier),
            (NodeFiles, "before", counted_before),
            (_NodeFile, "sync_by_kernel", counted_sync_by_kernel),
            (_NodeFile, "read", counted_read),
            (SimTransport, "write", counted_write),
            (SimCall, "put", counted_put),
            (_Serving, "write", counted_answer),
            (sockets, "_SPLIT", 0.0),
            (sockets, "BUFFER_BYTES", 64 << 20),
        ]
        with patch.context() as patched:
            for target, name, value in exchanged:
                patched.setattr(target, name, value)
            old = sys.gettrace()
            sys.settrace(self.trace)
            try:
                yield
            finally:
                sys.settrace(old)

    def _by_grpc(self, message: Any) -> None:
        self.count("sends by gRPC of")
        length = len(message) if isinstance(message, bytes) else message.ByteSize()
        self.count("bytes by gRPC of", length)
