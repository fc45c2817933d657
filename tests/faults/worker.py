"""A process of clients under observation: `python -m tests.faults.worker SPEC`, SPEC being JSON.

How it works. Each named producer, consumer and prober of the spec runs in a thread of its own on
the public SDK (the prober: on bare gRPC, so that it can ask nodes that are not the master). What
they do is written as lines of JSON, one before an operation leaves and one when its answer is here,
each in one `write`, so that a killed process leaves everything up to its last moment behind.

SIGTERM ends it in good order: nothing new is sent, what is in flight is waited for. SIGKILL is as
good an end: the next life of a named producer goes on where this one stopped.

Not here: starting and killing these processes (`load.py`), reading the lines (`recording.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from semel.client import Client, RecordMetadata, SendFuture, connect
from semel.protos.errors import InvalidRequest, MessageTooLarge, SemelError
from tests.checking.history import Commit, Delivered, Note, Outcome, Send, digest_of
from tests.faults.prober import Prober

IN_FLIGHT_MAX: Final = 200
CERTAIN: Final = (MessageTooLarge, InvalidRequest)
"""Errors after which a message is certainly not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one process runs."""

    bootstrap: str
    topic: str
    life: int
    """Rises with each restart."""
    seed: int
    history: str
    """File of its lines."""
    producers: tuple[str, ...] = ()
    """Named producers whose messages are numbered by the SDK."""
    resumers: tuple[str, ...] = ()
    """Named producers with source positions: each life goes on where the one before stopped."""
    webhooks: tuple[str, ...] = ()
    """Clients whose messages have ids, and whose producers have no names."""
    ids_topic: str = ""
    """The topic to which they send; it compares ids."""
    consumers: tuple[tuple[str, str], ...] = ()
    """(group, member)."""
    probers: tuple[str, ...] = ()
    """Members of the group that asks for locks and ends at any node."""
    nodes: tuple[str, ...] = ()
    """Public addresses of all brokers, for the probers."""
    rate: int = 300
    """Messages a second of each producer, about."""
    lock_ms: int = 2_000
    session_ms: int = 2_000
    pauses: bool = True
    """Consumers sometimes keep a delivery for longer than their lock lives."""

    @classmethod
    def of(cls, text: str) -> Spec:
        raw: dict[str, Any] = json.loads(text)
        raw["consumers"] = tuple(tuple(one) for one in raw.get("consumers", ()))
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()
        }
        return cls(**found)


class Recorder:
    """Appends lines to one file, safe from all threads."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, note: Note) -> None:
        self.line({"kind": note.kind, **asdict(note)})

    def line(self, raw: dict[str, Any]) -> None:
        os.write(self._fd, json.dumps(raw).encode() + b"\n")


@dataclass(slots=True)
class Context:
    """What the threads of a process share."""

    spec: Spec
    client: Client
    topic_id: int
    recorder: Recorder
    stop: threading.Event = field(default_factory=threading.Event)

    def name(self, who: str) -> str:
        return f"{who}/{self.spec.life}"


class Sending:
    """One incarnation of one producer: sends until it is stopped or fenced."""

    def __init__(self, context: Context, name: str, positions: bool) -> None:
        self._context = context
        self._name = name
        self._positions = positions
        self._room = threading.BoundedSemaphore(IN_FLIGHT_MAX)
        self._failed = threading.Event()
        self._random = random.Random(f"{context.spec.seed} {name} {context.spec.life}")

    def run(self) -> None:
        context, spec = self._context, self._context.spec
        incarnation = 0
        while not context.stop.is_set():
            incarnation += 1
            self._failed.clear()
            self._room = threading.BoundedSemaphore(IN_FLIGHT_MAX)
            producer = context.client.producer(
                self._name,
                source_positions=self._positions,
                linger_ms=1,
                batch_bytes=2_048,
                delivery_timeout_ms=60_000,
            )
            number = 0
            try:
                if self._positions:
                    number = producer.last_sequence(spec.topic) + 1
                while not context.stop.is_set() and not self._failed.is_set():
                    for _ in range(self._random.randrange(1, 12)):
                        if not self._room.acquire(timeout=0.1):
                            break
                        self._send(producer.send, incarnation, number)
                        number += 1
                    context.stop.wait(6 / spec.rate)
                producer.flush(60)
            except SemelError:
                context.stop.wait(0.2)
            finally:
                with contextlib.suppress(SemelError):
                    producer.close(1)

    def _send(self, send: Callable[..., SendFuture], incarnation: int, number: int) -> None:
        context, room = self._context, self._room
        if self._positions:
            client = self._name
            value = f"{self._name}#{number}".encode()
            arguments: dict[str, Any] = {"position": number}
        else:
            client = f"{context.name(self._name)}.{incarnation}"
            value = f"{client}#{number}".encode()
            arguments = {}
            if number % 3:
                arguments["key"] = b"k%d" % (number % 7)
        value += bytes(number * 37 % 2_000)
        note = Send(
            client=client,
            number=number,
            digest=digest_of(value, arguments.get("key")),
            began_s=time.monotonic(),
            producer=self._name,
        )
        context.recorder.note(note)
        try:
            future = send(context.spec.topic, value, **arguments)
        except SemelError as error:
            self._end(note, Outcome.UNKNOWN, None, error)
            self._failed.set()
            room.release()
            return

        def done(future: SendFuture) -> None:
            error = future.exception()
            if error is None:
                self._end(note, Outcome.OK, future.result(), None)
            else:
                certain = isinstance(error, CERTAIN)
                self._end(note, Outcome.FAIL if certain else Outcome.UNKNOWN, None, error)
                self._failed.set()
            room.release()

        future.add_done_callback(done)

    def _end(
        self,
        note: Send,
        outcome: Outcome,
        metadata: RecordMetadata | None,
        error: Exception | None,
    ) -> None:
        note.ended_s = time.monotonic()
        note.outcome = outcome
        if metadata is not None:
            note.queue = (self._context.topic_id, metadata.queue)
            note.offset, note.sequence = metadata.offset, metadata.sequence
        note.error = type(error).__name__ if error is not None else ""
        self._context.recorder.note(note)


class Repeating:
    """A client without sequences of its own: each message is sent until it is acknowledged, after
    every failure by another producer, and some are sent once more. Only their ids tell the broker
    that they are the same."""

    def __init__(self, context: Context, name: str, topic_id: int) -> None:
        self._context = context
        self._name = name
        self._topic_id = topic_id
        self._random = random.Random(f"{context.spec.seed} {name} {context.spec.life}")

    def run(self) -> None:
        context, number = self._context, 0
        client = context.name(self._name)
        while not context.stop.is_set():
            value = f"{client}#{number}".encode() + bytes(number * 37 % 500)
            note = Send(
                client=client,
                number=number,
                digest=digest_of(value, None),
                began_s=time.monotonic(),
                producer=self._name,
            )
            context.recorder.note(note)
            found = self._store(value, number)
            if found is None:
                return
            note.ended_s, note.outcome = time.monotonic(), Outcome.OK
            note.queue, note.offset = (self._topic_id, found.queue), found.offset
            context.recorder.note(note)
            if self._random.random() < 0.3 and (again := self._store(value, number)) is not None:
                repeat = {"client": client, "number": number, "duplicate": again.duplicate}
                place = {"queue": [self._topic_id, again.queue], "offset": again.offset}
                context.recorder.line({"kind": "repeat", **repeat, **place})
            number += 1
            context.stop.wait(self._random.uniform(0, 4 / context.spec.rate))

    def _store(self, value: bytes, number: int) -> RecordMetadata | None:
        """The acknowledgement; None if the run ends before there is one."""
        context = self._context
        name = f"{context.name(self._name)}#{number}"
        while not context.stop.is_set():
            try:
                with context.client.producer(linger_ms=0, delivery_timeout_ms=4_000) as producer:
                    sent = producer.send(context.spec.ids_topic, value, message_id=name)
                    return sent.result(6)
            except (SemelError, TimeoutError):
                context.stop.wait(0.05)
        return None


class Consuming:
    """One member of a group: takes, sometimes dawdles, commits."""

    def __init__(self, context: Context, group: str, member: str) -> None:
        self._context = context
        self._group = group
        self._client = context.name(member)
        self._random = random.Random(f"{context.spec.seed} {member} {context.spec.life}")

    def run(self) -> None:
        context, spec = self._context, self._context.spec
        while not context.stop.is_set():
            try:
                with context.client.consumer(
                    self._group,
                    [spec.topic],
                    lock_ms=spec.lock_ms,
                    session_ms=spec.session_ms,
                    prefetch_bytes=64 << 10,
                    fetch_bytes=16 << 10,
                ) as consumer:
                    while not context.stop.is_set():
                        self._take(consumer.poll(200, 0.2), consumer.commit)
            except SemelError:
                context.stop.wait(0.2)

    def _take(self, messages: Iterable[Any], commit: Callable[[Any], None]) -> None:
        newest: dict[int, Any] = {}
        for message in messages:
            newest[message.queue] = message
            self._context.recorder.note(
                Delivered(
                    client=self._client,
                    at_s=time.monotonic(),
                    queue=(message.topic_id, message.queue),
                    offset=message.offset,
                    digest=digest_of(message.value, message.key),
                    group=self._group,
                    token=message.rows.token,
                )
            )
        spec = self._context.spec
        if newest and spec.pauses and self._random.random() < 0.01:
            self._context.stop.wait(self._random.uniform(0.5, 1.5) * spec.lock_ms / 1000)
        for message in newest.values():
            note = Commit(
                client=self._client,
                group=self._group,
                queue=(message.topic_id, message.queue),
                token=message.rows.token,
                offset=message.offset + 1,
                began_s=time.monotonic(),
            )
            try:
                commit(message)
            except SemelError:
                # A refusal may be that of a repeated attempt whose first one was stored.
                note.accepted = None
            else:
                note.accepted, note.ended_s = True, time.monotonic()
            self._context.recorder.note(note)


def main(text: str) -> None:
    """Runs until SIGTERM."""
    spec = Spec.of(text)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    recorder = Recorder(spec.history)
    client = None
    while client is None and not stop.is_set():
        try:
            client = connect(spec.bootstrap, connect_timeout_ms=10_000)
        except SemelError:
            continue  # the controller is what is broken just now
    if client is None:
        return
    with contextlib.suppress(SemelError), client:
        topic_id = None
        while topic_id is None and not stop.is_set():
            with contextlib.suppress(SemelError):
                found = {one.name: one.topic_id for one in client.admin.list_topics()}
                topic_id = found[spec.topic]
        if topic_id is None:
            return
        context = Context(spec, client, topic_id, recorder, stop)
        ids_topic = found[spec.ids_topic] if spec.webhooks else 0
        runs = [Repeating(context, name, ids_topic).run for name in spec.webhooks]
        runs += [Sending(context, name, False).run for name in spec.producers]
        runs += [Sending(context, name, True).run for name in spec.resumers]
        runs += [Consuming(context, group, member).run for group, member in spec.consumers]
        runs += [
            Prober(
                nodes=spec.nodes,
                queue=(topic_id, 0),
                member=context.name(name),
                seed=spec.seed + at,
                write=recorder.line,
                stop=stop,
            ).run
            for at, name in enumerate(spec.probers)
        ]
        threads = [threading.Thread(target=run) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # in pieces, so that a signal's handler gets its turn


if __name__ == "__main__":
    main(sys.argv[1])
