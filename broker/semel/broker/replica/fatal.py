"""Ends the process when its disk fails or a replica contradicts itself: it must not go on with
wrong memory."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

from semel.broker.config import BrokerConfig
from semel.protos.logs import is_json

logger = logging.getLogger(__name__)

OTHERS_S: Final = 1.0
"""How long to wait for other threads that are logging right now, so that a stuck one does not keep
the process from ending."""


def end_process(reason: str) -> NoReturn:
    """Ends the process from any thread, with `reason` as the last line of stderr.

    A failure on one thread often shows on another in the same moment, whose traceback would stand
    behind the reason, or within it. So the locks of the log are taken first, for good.
    """
    locks = [handler.lock for handler in logging.getLogger().handlers if handler.lock is not None]
    taken = [lock.acquire(timeout=OTHERS_S) for lock in locks]
    if all(taken):
        logger.critical("the process ends reason=%s", reason)
    if not (is_json() and all(taken)):
        sys.stderr.write(f"error: {reason}\n")
        sys.stderr.flush()
    os._exit(1)


class Halting(Protocol):
    """An object with `halting` methods."""

    config: BrokerConfig
    on_fatal: Callable[[str], None]


Method = TypeVar("Method", bound=Callable[..., None])


def halting(method: Method) -> Method:
    """Makes every error of an input's handler fatal.

    A failed assertion or a diverged state means that memory is wrong, and any other error leaves
    what the core has decided half performed. The event loop would only log it, and the node would
    go on. So no error here answers a request: requests are refused before the core is asked.
    """

    @functools.wraps(method)
    def guarded(self: Halting, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:
            logger.critical("replica halts", exc_info=error)
            self.on_fatal(
                f"node {self.config.node_id} halts: {type(error).__name__}: {error}. Its peers "
                "have the data; start it again, and keep its log file for a report"
            )

    return cast("Method", guarded)
