"""Ends the process when a replica contradicts itself, instead of going on with wrong memory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from semel.broker.config import BrokerConfig
from semel.protos.errors import SemelError

logger = logging.getLogger(__name__)


class Halting(Protocol):
    """What has such methods."""

    config: BrokerConfig
    on_fatal: Callable[[str], None]


Method = TypeVar("Method", bound=Callable[..., None])


def halting(method: Method) -> Method:
    """For the handler of an input: what it raises, unless it is an answer to a request, is fatal.

    A failed assertion or a diverged state means that memory is wrong. An event loop would only log
    it, and the node would go on.
    """

    @functools.wraps(method)
    def guarded(self: Halting, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except SemelError:
            raise
        except Exception as error:
            logger.critical("replica halts", exc_info=error)
            self.on_fatal(
                f"node {self.config.node_id} halts: {type(error).__name__}: {error}. Its peers "
                "have the data; start it again, and keep its log file for a report"
            )

    return cast("Method", guarded)
