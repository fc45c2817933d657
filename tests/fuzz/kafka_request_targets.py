"""What strangers send to the Kafka gateway as requests: all APIs and versions, made from kio's
schemas.

What is read must be what kio would write again, so that nothing is made up.

Not here: records inside of requests (`kafka_record_targets.py`).
"""

from __future__ import annotations

import io
import random
import struct
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_writer

from semel.gateway.versions import TABLE, is_served
from semel.gateway.wire import read_head, read_request
from tests.fuzz.targets import Target
from tests.kit.kafka_entities import random_entity

_EACH = 4
"""Good requests of each version."""


def kafka_requests() -> list[bytes]:
    """Returns good requests of all APIs and versions, without their lengths."""
    rng = random.Random(27)
    found = []
    for key, served in TABLE.items():
        for version in range(served.lowest, served.highest + 1):
            kind: Any = load_request_schema(key, version)
            head = struct.pack(">hhih", key, version, 7, 2) + b"me"
            tags = b"\0" if kind.__flexible__ else b""
            found += [head + tags + _written(random_entity(kind, rng)) for _ in range(_EACH)]
    return found


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _read(data: bytes) -> None:
    frame = memoryview(data)
    head = read_head(frame)
    if is_served(head.api_key, head.version):
        name, request = read_request(frame, head)
        body = _written(request)
        assert len(body) <= len(data), "more was read than there is"
        assert isinstance(name, str)


def kafka_request_targets() -> list[Target]:
    """Requests to the gateway's port."""
    return [Target(name="Kafka requests", corpus=kafka_requests(), run=_read)]
