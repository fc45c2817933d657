"""The verdict of the steady soak notices growth, and nothing else."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter

import pytest

from tests.soak.steady import Sample, Watched, findings

MIB = 1 << 20


def samples(memory: list[float], descriptors: int = 20, threads: int = 5) -> list[Sample]:
    open_files = Counter(socket=descriptors - 3, segment=3)
    names = Counter(event_engine=4, python=threads - 4)
    return [Sample(int(mib * MIB), names, open_files) for mib in memory]


def test_a_wobble_is_steady() -> None:
    assert findings("broker 1", samples([100, 103, 99, 101, 98, 104, 100, 102, 99, 101])) == []


@pytest.mark.parametrize("last", [94.0, 106.0])
def test_memory_that_moves_is_told(last: float) -> None:
    (text,) = findings("broker 1", samples([100.0] * 5 + [last] * 5))
    assert text == f"broker 1: memory went from 100.0 to {last} MiB"


def test_one_descriptor_or_thread_more_is_told() -> None:
    before, after = samples([100.0] * 6), samples([100.0] * 6, descriptors=21, threads=6)
    assert findings("broker 1", before + after) == [
        "broker 1: descriptors went from 20 to 21",
        "    socket from 17 to 18",
        "broker 1: threads went from 5 to 6",
        "    python from 1 to 2",
    ]


def test_a_call_that_comes_and_goes_is_no_leak() -> None:
    calm = samples([100.0] * 6)
    assert findings("broker 1", [*calm, *samples([100.0], descriptors=21), *calm]) == []


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(AssertionError, match="say nothing"):
        findings("broker 1", samples([100.0] * 8))


def test_descriptors_are_counted_by_kind() -> None:
    watched = Watched("this", os.getpid())
    watched.take()
    with socket.socket(), socket.socket():
        watched.take()
    before, after = (sample.descriptors for sample in watched.samples)
    assert after - before == Counter(socket=2)


def test_threads_are_counted_by_name() -> None:
    watched = Watched("this", os.getpid())
    watched.take()
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        watched.take()
    finally:
        done.set()
        thread.join()
    before, after = (sample.threads for sample in watched.samples)
    assert (after - before).total() == 1
