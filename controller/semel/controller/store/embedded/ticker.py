"""The thread on which one member runs.

How it works. The thread ticks the member, and between two ticks runs the posted actions; it passes
events to the event loop in one call per tick, and a master's lease each time it was renewed for a
while longer. pysyncobj's own thread swallows every exception, even
a failed sync; here any exception ends the thread and is reported to the store.

Not here: what a tick does (`member.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from semel.controller.store.embedded.member import Happened, Member

log = logging.getLogger(__name__)

TICK_S: Final = 0.02
POSTED_MAX: Final = 20_000
"""Messages beyond that number are dropped, as on a network."""
RENEW_S: Final = 0.1
"""A lease that ends later by at least this much is reported."""
STOP_S: Final = 5.0


class Ticker:
    """Runs one member on a thread of its own."""

    def __init__(
        self,
        member: Member,
        *,
        happened: Callable[[Happened], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Both callbacks are called on the thread; the call of `failed` is the last."""
        self._member = member
        self._happened = happened
        self._failed = failed
        self._posted: deque[Callable[[Member], None]] = deque()
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def post(self, action: Callable[[Member], None]) -> None:
        """Has `action` run on the thread soon. Callable from any thread."""
        self._posted.append(action)
        self._wake()

    def post_message(self, action: Callable[[Member], None]) -> None:
        """Like `post`, but drops the action while too many wait.

        This bounds the queue when the disk hangs and the other controllers go on sending.
        """
        if len(self._posted) < POSTED_MAX:
            self.post(action)

    def stop(self) -> bool:
        """Ends the thread after its present tick, and blocks until then.

        Returns False when it did not end within `STOP_S` because the disk hangs: it may then still
        write.
        """
        self._stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        return not self._thread.is_alive()

    def _wake(self) -> None:
        self._woken.set()
        node = self._member.node
        if node is not None:
            node.wake()

    def _run(self) -> None:
        member = self._member
        last: Happened | None = None
        try:
            while not self._stopping:
                self._woken.clear()
                for _ in range(len(self._posted)):
                    self._posted.popleft()(member)
                happened = member.tick(0 if self._posted else TICK_S)
                if happened.events or last is None or _differ(happened, last):
                    self._happened(happened)
                    last = happened
                if member.node is None:
                    self._woken.wait(TICK_S)
        except BaseException as error:
            log.critical("the metadata store must end", exc_info=error)
            self._failed(error)
        finally:
            member.close()


def _differ(one: Happened, other: Happened) -> bool:
    return (one.membership, one.incarnation, one.master, one.led_term) != (
        other.membership,
        other.incarnation,
        other.master,
        other.led_term,
    ) or one.lease_end >= other.lease_end + RENEW_S
