"""A file system of Arrow's that fails as object stores do, for tests of the tier.

How it works. It stands in front of a folder, and looks to the store like S3 (no renames, objects
appear whole) or like HDFS (no renames over a file). A *fault* is planted for the next calls of one
operation. Lists may lag.

Not here: a real S3 server (`s3_server.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow.fs as pafs

Fault = Callable[[Callable[[], Any]], Any]
"""Gets the operation and does with it what the fault is."""


def fails(text: str) -> Fault:
    """The call does nothing and fails with Arrow's text for it."""

    def fault(_: Callable[[], Any]) -> Any:
        raise OSError(text)

    return fault


def loses_the_reply(work: Callable[[], Any]) -> Any:
    """The call takes effect, and fails."""
    work()
    raise OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 56")


class FaultySystem:
    """The file system; `plant` a fault, or set `hidden` for names that lists leave out."""

    def __init__(self, *, type_name: str = "s3") -> None:
        self.type_name = type_name
        self.hidden: set[str] = set()
        self.writes_cut_to: int | None = None
        """The number of bytes of each object that are stored, without an error."""
        self.flips: int | None = None
        """The place of a byte that is read wrong."""
        self.hangs: threading.Event | None = None
        """Every call waits for it."""
        self.calls: list[tuple[str, str]] = []
        self._inner = pafs.LocalFileSystem()
        self._faults: dict[str, list[Fault]] = {}

    def plant(self, operation: str, *faults: Fault) -> None:
        """The next calls of `open_output_stream`, `write`, `close`, `open_input_file`,
        `get_file_info` or `delete_file` get these faults, one each."""
        self._faults.setdefault(operation, []).extend(faults)

    def _run(self, operation: str, path: str, work: Callable[[], Any]) -> Any:
        self.calls.append((operation, path))
        if self.hangs is not None:
            self.hangs.wait()
        waiting = self._faults.get(operation)
        return waiting.pop(0)(work) if waiting else work()

    def get_file_info(self, what: Any) -> Any:
        def work() -> Any:
            found = self._inner.get_file_info(what)
            return [info for info in found if info.path not in self.hidden]

        return self._run("get_file_info", str(what), work)

    def open_output_stream(self, path: str) -> Any:
        self._inner.create_dir(path.rpartition("/")[0], recursive=True)
        return self._run("open_output_stream", path, lambda: _Writing(self, path))

    def open_input_file(self, path: str) -> Any:
        def work() -> Any:
            file = self._inner.open_input_file(path)
            return file if self.flips is None else _Flipped(file, self.flips)

        return self._run("open_input_file", path, work)

    def delete_file(self, path: str) -> None:
        self._run("delete_file", path, lambda: self._inner.delete_file(path))

    def create_dir(self, path: str, *, recursive: bool) -> None:
        self._inner.create_dir(path, recursive=recursive)

    def move(self, source: str, destination: str) -> None:
        def work() -> None:
            if self._inner.get_file_info(destination).type is not pafs.FileType.NotFound:
                raise OSError(f"HDFS renames nothing over a file: {destination}")
            self._inner.move(source, destination)

        self._run("move", destination, work)


class _Writing:
    """An upload: it is published when it is closed."""

    def __init__(self, system: FaultySystem, path: str) -> None:
        self._system = system
        self._path = path
        self._sent = b""

    def write(self, data: Any) -> None:
        def work() -> None:
            self._sent += memoryview(data).tobytes()

        self._system._run("write", self._path, work)

    def close(self) -> None:
        def work() -> None:
            with self._system._inner.open_output_stream(self._path) as stream:
                stream.write(self._sent[: self._system.writes_cut_to])

        self._system._run("close", self._path, work)


class _Flipped:
    """An open file, one byte of which is read wrong."""

    def __init__(self, file: Any, at: int) -> None:
        self._file = file
        self._at = at

    def __enter__(self) -> _Flipped:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> bytes:
        return self._wrong(self._file.read(), 0)

    def read_at(self, length: int, start: int) -> bytes:
        return self._wrong(self._file.read_at(length, start), start)

    def _wrong(self, data: bytes, start: int) -> bytes:
        changed = bytearray(data)
        if start <= self._at < start + len(data):
            changed[self._at - start] ^= 1
        return bytes(changed)
