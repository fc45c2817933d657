"""A streaming query that goes on after one of its micro-batches was aborted.

How it works. A queue of the target that is split or moved while a micro-batch is staged aborts that
micro-batch: what is on hold for a queue does not go along with its slots. The sink cannot repeat
it: Spark gives rows to a sink's tasks only, and a commit that fails ends the query. Started again,
the query repeats the micro-batch from its checkpoint, and tasks stage anew for the queues as they
are now. `keep_running` does just that.

Invariants
1. Only an abort is answered so: then nothing of the micro-batch is stored. Everything else that
   ends a query is raised; were it answered so, too, the sink would still be exactly once.
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
"""In a row, without a finished micro-batch between."""


def keep_running(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Waits for the end of the query that `start` starts, always on the same checkpoint, and starts
    it again when one of its micro-batches was aborted. Returns the last one, once it has ended
    without an error. Raises Spark's exception for any other end.

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
            logger.warning("a micro-batch of query %s was aborted, it is repeated", query.id)
