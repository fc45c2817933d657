"""Queries that are started again: after which ends, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from semel.spark_connector.restarting import ABORTS_MAX, keep_running

ABORTED = "semel.protos.errors.TransactionAborted: queue 0 was split; nothing is stored"


class Query:
    """Ends at once: as it is told, with or without a micro-batch before."""

    id = "query"

    def __init__(self, end: str = "", *, progress: bool = False) -> None:
        self.recentProgress = [{"batchId": 0}] if progress else []
        self._end = end

    def awaitTermination(self) -> None:  # noqa: N802
        if self._end:
            raise StreamingQueryException(self._end)


def restarted(start: Callable[[], Query]) -> object:
    untyped: Callable[[], Any] = start  # one that Spark runs
    return keep_running(untyped)


def test_an_aborted_batch_is_repeated_until_it_is_through() -> None:
    queries = [Query(ABORTED), Query(ABORTED), Query()]
    last = queries[-1]
    assert restarted(lambda: queries.pop(0)) is last
    assert not queries


def test_every_other_end_is_raised() -> None:
    queries = [Query("TransactionFenced: another program"), Query()]
    with pytest.raises(StreamingQueryException, match="another program"):
        restarted(lambda: queries.pop(0))
    assert len(queries) == 1


def test_aborts_without_progress_end() -> None:
    started: list[Query] = []

    def start() -> Query:
        started.append(Query(ABORTED, progress=len(started) == 4))
        return started[-1]

    with pytest.raises(StreamingQueryException, match="was split"):
        restarted(start)
    assert len(started) == 4 + ABORTS_MAX
