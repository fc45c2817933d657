"""Keeps a streaming query running after one of its micro-batches was aborted.

How it works. When a queue of the target topic is split or moved while a micro-batch is staged, that
micro-batch is aborted, because staged messages do not move along with the queue's slots. The sink
cannot repeat it: Spark gives rows only to a sink's tasks, and a failed commit ends the query. When
the query is started again, it repeats the micro-batch from its checkpoint, and its tasks stage anew
for the present queues. `keep_running` does just that.

Invariants
1. Only an abort leads to a restart: nothing of the micro-batch is stored then. Anything else that
   ends a query is raised; restarting then would still be exactly once.
2. A query that is aborted again and again without finishing a micro-batch is given up.

Not here: why a batch is aborted (`semel.client`), the sink (`writer.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from semel.protos.errors import TransactionAborted

logger = logging.getLogger(__name__)

ABORTS_MAX: Final = 10
"""Number of aborts in a row, without a finished micro-batch in between, that ends it."""


def keep_running(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Waits for the end of the query that `start` starts, always on the same checkpoint.

    Starts it again when one of its micro-batches was aborted. Returns the last query once it has
    ended without an error. Raises Spark's exception for any other end.

    keep_running(lambda: writer.start())
    """
    aborts = 0
    while True:
        query = start()
        try:
            query.awaitTermination()
            return query
        except PySparkException as error:
            if TransactionAborted.__name__ not in str(error):
                raise
            aborts = 1 if query.recentProgress else aborts + 1
            if aborts >= ABORTS_MAX:
                raise
            logger.warning("a micro-batch was aborted, it is repeated query=%s", query.id)
