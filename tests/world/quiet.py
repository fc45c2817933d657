"""Where the product's log lines go while a simulated cluster runs."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager

from tests.world.world import World


class _TraceHandler(logging.Handler):
    """The product's own log lines in the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.trace is not None:
            self._world.trace.append(
                f"{self._world.now:10.6f}        | {record.levelname.lower()} "
                f"{record.name.removeprefix('semel.')}: {record.getMessage()}"
            )


class Quiet(AbstractContextManager[None]):
    """Keeps the product's log from the outside; a traced run has it in its trace."""

    def __init__(self, world: World) -> None:
        self._logger = logging.getLogger("semel")
        self._handler = _TraceHandler(world)
        self._traced = world.trace is not None

    def __enter__(self) -> None:
        logger = self._logger
        self._old = (logger.level, logger.propagate)
        logger.propagate = False
        logger.setLevel(logging.INFO if self._traced else logging.CRITICAL + 1)
        logger.addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._old[0])
        self._logger.propagate = self._old[1]
