"""The routes on this machine's disk, for clients that start while no controller answers.

How it works. There is one file per cluster. A client that learned routes writes them there, merged
with those that other clients on this machine had learned. A client that finds no controller takes
the newest file that names one of the addresses it was given. Routes are hints: brokers correct what
has changed since.

Format. `CLUSTER_ID.routes` in `$SEMEL_ROUTES_DIRECTORY`, by default `$XDG_CACHE_HOME/semel` or
`~/.cache/semel`: 8 bytes "SEMELRT1", CRC32C of the rest (4 bytes, little-endian), a `Routes`
message. A rename replaces the whole file. It is not synced: a torn or damaged file counts as
missing. Only their owner can read file and directory.

Invariants
1. A file that cannot be written or read does no other harm.
2. A file's version never falls, and it keeps the topics of all clients, until one of them reports
   that a topic is gone.

Not here: when it is read (`transport/cluster.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from semel.protos.crc import crc32c
from semel.protos.v1.controller_pb2 import Routes, TopicRoute

logger = logging.getLogger(__name__)

MAGIC: Final = b"SEMELRT1"
PAUSE_S: Final = 1.0
SUFFIX: Final = ".routes"
VARIABLE: Final = "SEMEL_ROUTES_DIRECTORY"
_HEADER_BYTES: Final = len(MAGIC) + 4


def routes_directory(environment: Mapping[str, str]) -> Path | None:
    """Returns the directory of the files; None when they are off, or there is no home directory."""
    if VARIABLE in environment:
        return Path(environment[VARIABLE]) if environment[VARIABLE] else None
    if cache := environment.get("XDG_CACHE_HOME"):
        return Path(cache) / "semel"
    home = environment.get("HOME")
    return Path(home) / ".cache" / "semel" if home else None


def find(directory: Path, addresses: Collection[str]) -> Routes | None:
    """BLOCKING. Reads the newest routes that name one of `addresses`, controllers' or brokers'."""
    wanted = set(addresses)
    best: tuple[float, Routes] | None = None
    with contextlib.suppress(OSError):
        for path in directory.glob(f"*{SUFFIX}"):
            routes = _read(path)
            if routes is not None and wanted & _addresses(routes):
                found = (path.stat().st_mtime, routes)
                best = found if best is None or found[0] > best[0] else best
    return None if best is None else best[1]


def save(directory: Path, routes: Routes, gone: Collection[str] = ()) -> None:
    """BLOCKING. Merges routes into their cluster's file, and drops the topics `gone` from it."""
    if not re.fullmatch(r"[\w.-]{1,128}", routes.cluster_id) or routes.cluster_id.startswith("."):
        return  # the name must not lead outside the directory
    path = directory / f"{routes.cluster_id}{SUFFIX}"
    try:
        before = _read(path)
        merged = _merge(before, routes, gone) if before is not None else routes
        if merged == before:
            os.utime(path)
            return
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, merged.SerializeToString(deterministic=True))
    except OSError as error:
        logger.debug("routes not kept path=%s error=%s", path, error)


class RoutesKeeper:
    """Writes the routes that one client learns. Lives on the I/O thread, writes on another one."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._newest = Routes()
        self._topics: dict[str, TopicRoute] = {}
        self._gone: set[str] = set()
        """Topics to drop from the file, which another client may have written there."""
        self._learned = asyncio.Event()

    def on_routes(self, routes: Routes) -> None:
        """Takes routes from a controller, or a copy of them: all groups, and some topics."""
        if routes.cluster_id != self._newest.cluster_id:
            self._newest, self._topics, self._gone = Routes(), {}, set()
        if routes.version >= self._newest.version:
            self._newest = routes
        self._topics.update((topic.name, topic) for topic in routes.topics)
        self._gone.difference_update(topic.name for topic in routes.topics)
        self._learned.set()

    def on_topic_gone(self, name: str) -> None:
        """The topic does not exist, as a broker or a controller reported."""
        self._topics.pop(name, None)
        self._gone.add(name)
        self._learned.set()

    async def run(self) -> None:
        """Writes at most once per `PAUSE_S`, until it is cancelled."""
        while self._directory is not None:
            await self._learned.wait()
            await self.flush()
            await asyncio.sleep(PAUSE_S)

    async def flush(self) -> None:
        """Writes the routes that are not written yet."""
        if self._directory is not None and self._learned.is_set():
            self._learned.clear()
            routes = Routes()
            routes.CopyFrom(self._newest)
            del routes.topics[:]
            routes.topics.extend(self._topics.values())
            gone, self._gone = self._gone, set()
            await asyncio.to_thread(save, self._directory, routes, gone)


def _merge(old: Routes, new: Routes, gone: Collection[str]) -> Routes:
    """Returns the topics of both but those `gone`, and everything else from the newer version."""
    first, second = (old, new) if new.version >= old.version else (new, old)
    merged = Routes()
    merged.CopyFrom(second)
    topics = {topic.name: topic for topic in (*first.topics, *second.topics)}
    del merged.topics[:]
    merged.topics.extend(topics[name] for name in sorted(topics.keys() - gone))
    return merged


def _addresses(routes: Routes) -> set[str]:
    brokers = {node.address for group in routes.groups for node in group.nodes}
    return brokers | set(routes.controllers)


def _read(path: Path) -> Routes | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    payload = raw[_HEADER_BYTES:]
    crc = int.from_bytes(raw[len(MAGIC) : _HEADER_BYTES], "little")
    if not raw.startswith(MAGIC) or crc32c(payload) != crc:
        return None
    try:
        return Routes.FromString(payload)
    except DecodeError:
        return None


def _write(path: Path, payload: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{id(payload):x}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(MAGIC + crc32c(payload).to_bytes(4, "little") + payload)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
