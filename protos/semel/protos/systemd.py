"""What a program tells systemd: that it is ready, that it stops, and that its event loop lives.

How it works. systemd names a datagram socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how often it
wants to hear of the program; sd_notify(3) defines both. Without these variables nothing is told, so
a program need not know what started it. The beats come from the event loop: one that hangs sends
none, and systemd starts the program anew.

Not here: readiness for load balancers and rolling restarts (`/readyz`, `metrics.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

BEATS: Final = 2
"""Beats in the time after which systemd would act, as sd_watchdog_enabled(3) advises."""


class ServiceManager:
    """The one that started this program, if it wants to hear of it."""

    def __init__(self, environment: Mapping[str, str] = os.environ, pid: int = 0) -> None:
        """`pid` is that of this process; 0 asks the system."""
        address = environment.get("NOTIFY_SOCKET", "")
        # An @ stands for the null byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._period_us = 0
        self.beat_s: float | None = None
        """Seconds between two beats; None if nobody waits for any."""
        period = environment.get("WATCHDOG_USEC", "")
        watched = environment.get("WATCHDOG_PID", "") in ("", str(pid or os.getpid()))
        if self._address and watched and period.isdecimal() and int(period):
            self._period_us = int(period)
            self.beat_s = self._period_us / 1e6 / BEATS

    def tell(self, *state: str) -> None:
        """Sends assignments such as READY=1. A manager that does not listen is no error: it may
        have been restarted."""
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_UNIX, kind) as sender, contextlib.suppress(OSError):
            sender.sendto("\n".join(state).encode(), self._address)

    async def beat(self) -> None:
        """Tells that the event loop lives, for as long as it does; until cancelled."""
        while self.beat_s is not None:
            self.tell("WATCHDOG=1")
            await asyncio.sleep(self.beat_s)

    @contextlib.asynccontextmanager
    async def serving(
        self, status: str, *, ends: Callable[[], bool] = lambda: True
    ) -> AsyncGenerator[None, None]:
        """Tells that the program is ready, beats, and tells when it begins to stop, or, unless
        `ends` says that it ends, to start anew as the same process."""
        self.tell("READY=1", f"STATUS={status}", *self._watch(self._period_us))
        beating = asyncio.ensure_future(self.beat())
        try:
            yield
        finally:
            beating.cancel()
            if ends():
                self.tell("STOPPING=1")
            else:
                now_us = time.monotonic_ns() // 1_000
                self.tell("RELOADING=1", f"MONOTONIC_USEC={now_us}", *self._watch(0))

    def _watch(self, period_us: int) -> tuple[str, ...]:
        """Has the manager expect beats this often from now on, or none for 0: a program that starts
        has no event loop for a while."""
        return () if self.beat_s is None else (f"WATCHDOG_USEC={period_us}",)
