"""The floor's client: one process that measures throughput, round trips or reads, and prints JSON.

It runs as a process of its own so that its event loop never shares an interpreter with Semel's SDK.

    python -m benchmarks.floor_client append ADDRESS --batch-bytes 65536 --seconds 3 --in-flight 32
    python -m benchmarks.floor_client round-trip ADDRESS --batch-bytes 1024 --seconds 3
    python -m benchmarks.floor_client paced ADDRESS --batch-bytes 1024 --seconds 3 --rate 1000
    python -m benchmarks.floor_client tail ADDRESS --batch-bytes 1024 --seconds 3 --rate 1000
    python -m benchmarks.floor_client read ADDRESS --batch-bytes 262144 --seconds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from benchmarks.floor_node import (
    APPEND_METHOD,
    CHANNEL_OPTIONS,
    READ_METHOD,
    STAMP_BYTES,
    TAIL_METHOD,
    die_with_parent,
    run_loop,
    work,
)
from benchmarks.harness import percentile

WARM_UP_SECONDS = 0.5


class Appender:
    """A stream to the master with a window of messages that are not acknowledged yet."""

    def __init__(
        self, channel: grpc.aio.Channel, batch_bytes: int, in_flight: int, work_us: int
    ) -> None:
        self._work_us = work_us
        self._call: Any = channel.stream_stream(APPEND_METHOD)()
        self._data = bytes(STAMP_BYTES) + os.urandom(batch_bytes - STAMP_BYTES)
        self._in_flight = in_flight
        self._sent = 0
        self._acked = 0
        self._progress = asyncio.Event()

    async def receive(self) -> None:
        """Count acknowledgements until the stream ends."""
        while (reply := await self._call.read()) is not grpc.aio.EOF:
            self._acked = int.from_bytes(reply, "little")
            self._progress.set()

    async def _until_pending(self, limit: int) -> None:
        while self._sent - self._acked > limit:
            self._progress.clear()
            await self._progress.wait()

    async def run(self, seconds: float) -> tuple[int, float]:
        """Messages committed within about `seconds`, and the exact time that took."""
        before = self._sent
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            await self._until_pending(self._in_flight - 1)
            await self._call.write(self._data)
            self._sent += 1
        await self._until_pending(0)
        return self._sent - before, time.perf_counter() - start

    async def round_trips(self, seconds: float) -> list[float]:
        """Duration of each message in seconds, sent and awaited one at a time."""
        durations = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            work(self._work_us)
            await self._call.write(self._data)
            self._sent += 1
            await self._until_pending(0)
            work(self._work_us)
            durations.append(time.perf_counter() - start)
        return durations

    async def paced(self, seconds: float, rate: int) -> list[float]:
        """Duration of each message in seconds from its due time, with `rate` messages a second."""
        count, before = int(seconds * rate), self._acked
        start = time.perf_counter()
        begun: list[float] = []
        durations: list[float] = []

        async def settle() -> None:
            while len(durations) < count:
                self._progress.clear()
                await self._progress.wait()
                work(self._work_us)
                now = time.perf_counter()
                for place in range(len(durations), self._acked - before):
                    durations.append(now - begun[place])

        settling = asyncio.create_task(settle())
        for place in range(count):
            due = start + place / rate
            left = due - time.perf_counter()
            if left > 0:
                await asyncio.sleep(left)
            work(self._work_us)
            # uvloop counts in milliseconds, so a message may be sent early: it counts from then.
            begun.append(min(due, time.perf_counter()))
            stamp = round(begun[-1] * 1e9).to_bytes(STAMP_BYTES, "little")
            await self._call.write(stamp + self._data[STAMP_BYTES:])
            self._sent += 1
        await settling
        return durations


async def _append(channel: grpc.aio.Channel, options: argparse.Namespace) -> Mapping[str, float]:
    appender = Appender(channel, options.batch_bytes, options.in_flight, options.work_us)
    receiver = asyncio.create_task(appender.receive())
    await appender.run(WARM_UP_SECONDS)
    count, seconds = await appender.run(options.seconds)
    receiver.cancel()
    return {"mb_s": count * options.batch_bytes / seconds / 1e6, "batches_s": count / seconds}


async def _round_trip(
    channel: grpc.aio.Channel, options: argparse.Namespace
) -> Mapping[str, float]:
    appender = Appender(channel, options.batch_bytes, 1, options.work_us)
    receiver = asyncio.create_task(appender.receive())
    await appender.round_trips(WARM_UP_SECONDS)
    durations = await appender.round_trips(options.seconds)
    receiver.cancel()
    return {
        "p50_ms": percentile(durations, 50) * 1e3,
        "p99_ms": percentile(durations, 99) * 1e3,
        "messages_s": len(durations) / sum(durations),
    }


async def _paced(channel: grpc.aio.Channel, options: argparse.Namespace) -> Mapping[str, float]:
    appender = Appender(channel, options.batch_bytes, 1, options.work_us)
    receiver = asyncio.create_task(appender.receive())
    await appender.round_trips(WARM_UP_SECONDS)
    durations = await appender.paced(options.seconds, options.rate)
    receiver.cancel()
    return {
        "p50_ms": percentile(durations, 50) * 1e3,
        "p99_ms": percentile(durations, 99) * 1e3,
        "messages": len(durations),
    }


async def _tail(channel: grpc.aio.Channel, options: argparse.Namespace) -> Mapping[str, float]:
    """Reads what a `paced` client with the same settings sends; times from the due time."""
    tail: Any = channel.unary_stream(TAIL_METHOD)
    call = tail(b"from now on")
    await call.read()
    print(json.dumps({"ready": True}), flush=True)
    durations: list[float] = []
    while len(durations) < int(options.seconds * options.rate):
        data = await call.read()
        work(options.work_us)
        now = time.perf_counter()
        for place in range(0, len(data), options.batch_bytes):
            stamp = int.from_bytes(data[place : place + STAMP_BYTES], "little")
            if stamp:  # zero while the other client warms up
                durations.append(now - stamp / 1e9)
    return {
        "tail_p50_ms": percentile(durations, 50) * 1e3,
        "tail_p99_ms": percentile(durations, 99) * 1e3,
        "tail_cpu_s": time.process_time(),
    }


async def _read(channel: grpc.aio.Channel, options: argparse.Namespace) -> Mapping[str, float]:
    call: Any = channel.unary_stream(READ_METHOD)
    request = options.batch_bytes.to_bytes(4, "little") + (64).to_bytes(4, "little")
    volume = 0
    start = time.perf_counter()
    while time.perf_counter() - start < options.seconds:
        async for data in call(request):
            volume += len(data)
    return {"mb_s": volume / (time.perf_counter() - start) / 1e6}


_MODES = {
    "append": _append,
    "round-trip": _round_trip,
    "paced": _paced,
    "tail": _tail,
    "read": _read,
}


async def _main(options: argparse.Namespace) -> None:
    async with grpc.aio.insecure_channel(options.address, options=CHANNEL_OPTIONS) as channel:
        print(json.dumps(await _MODES[options.mode](channel, options)), flush=True)


def main() -> None:
    """Command line of the client."""
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=sorted(_MODES))
    parser.add_argument("address")
    parser.add_argument("--batch-bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--rate", type=int, default=0, help="messages a second, of paced and tail")
    parser.add_argument("--work-us", type=int, default=0)
    options = parser.parse_args()
    if options.mode in ("paced", "tail") and options.rate < 1:
        parser.error(f"{options.mode} needs a --rate")
    if options.batch_bytes < STAMP_BYTES:
        parser.error(f"--batch-bytes must be {STAMP_BYTES} or more")
    run_loop(_main(options))


if __name__ == "__main__":
    main()
