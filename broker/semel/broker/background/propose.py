"""Proposes the records of a master's background work; no caller needs their results."""

from __future__ import annotations

import logging

from semel.broker.replica.replica import Replica
from semel.protos.errors import NotMaster, SemelError
from semel.protos.v1 import control_pb2

logger = logging.getLogger(__name__)


async def propose(replica: Replica, record: control_pb2.ControlRecord) -> None:
    """Returns once `record` is applied or refused; the next look or the next master tries again."""
    try:
        await replica.submit_control(record)
    except NotMaster:
        pass  # the next master does it
    except SemelError as error:
        logger.warning("not done, it is tried again record=%s error=%s", record, error)
