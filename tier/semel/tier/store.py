"""Objects in any store that `pyarrow.fs` reaches: S3, Google's, HDFS, and a mounted folder.

How it works. `open_store` makes a file system from the URL, and looks whether its bucket or folder
is there. A whole object is in memory before its first byte is sent, because an upload to S3 that is
broken off by an exception may still publish what was sent so far. Where the store renames
atomically (a folder, HDFS), an object is written under a temporary name and renamed. Elsewhere it
appears whole or not at all. Then it is read back and compared: what counts on it later is the only
copy of somebody's messages.

Every call has a time limit, and every exception of Arrow becomes one of the tier's.

Invariants
1. `put` returns only when the object was read back whole. After an error the object may be there,
   whole or cut short, under its name.
2. No secret is taken from a URL or appears in an error: credentials come from where the store's own
   tools have them (environment, profile, role of the machine).

Not here: names (`layout.py`), contents (`files.py`, `manifest.py`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from semel.tier.deadlines import Deadlines
from semel.tier.errors import CorruptTier, ObjectMissing, TierMisconfigured
from semel.tier.hdfs import hdfs_file_system
from semel.tier.layout import temporary_name
from semel.tier.planning import StoredObject
from semel.tier.store_errors import translate

T = TypeVar("T")

SCHEMES: Final = ("s3", "gs", "hdfs", "file")
GAP_BYTES_MAX: Final = 1 << 20
"""Two ranges of an object that are no farther apart are fetched as one."""
PIECE_BYTES: Final = 1 << 20
"""A file of a folder is compared so much at a time."""
_S3_OPTIONS: Final = ("region", "endpoint_override", "scheme")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How long the store is waited for."""

    connect_s: float = 5.0
    """Default 5 s. For a connection to S3."""
    request_s: float = 20.0
    """Default 20 s. For one request to S3."""
    attempts: int = 4
    """Default 4. How often a request to S3 is made, with growing pauses, before it fails."""
    call_s: float = 120.0
    """Default 120 s. For one whole call of this module, to any store."""


DEFAULT_LIMITS: Final = StoreLimits()


class Store:
    """The objects below one URL."""

    def __init__(
        self, filesystem: Any, root: str, url: str, limits: StoreLimits = DEFAULT_LIMITS
    ) -> None:
        """Use `open_store`. `root` is the path of the URL in `filesystem`, without a slash at its
        end."""
        self.url = url
        self._filesystem = filesystem
        self._root = root
        self._limits = limits
        self._deadlines = Deadlines()
        self._is_local = filesystem.type_name == "local"
        self._renames = self._is_local or filesystem.type_name.endswith("hdfs")

    def check(self) -> None:
        """Raises TierMisconfigured unless the bucket or folder exists; it is never created, for
        the folder of a mount that is missing would take the machine's own disk instead."""
        bucket = self._root if self._renames else self._root.split("/", 1)[0]
        (found,) = self._call(f"looking for {self.url}", lambda: self._info([bucket]))
        if found.type is not pafs.FileType.Directory:
            kind = "folder" if self._renames else "bucket"
            raise TierMisconfigured(f"{self.url}: there is no {kind} {bucket!r}; create it first")

    # --- writing

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """Stores an object, over an old one of this name.

        Raises TierUnavailable, TierDenied, TierFull, TierMisconfigured, and CorruptTier when
        another content comes back.
        """
        what = f"writing {self._shown(name)}"
        self._call(what, lambda: self._put(name, data))
        whole = pa.py_buffer(data)
        if not self._call(f"reading {self._shown(name)}", lambda: self._has(name, whole)):
            raise CorruptTier(f"{what}: other bytes came back than the {len(whole)} written")

    def _has(self, name: str, whole: pa.Buffer) -> bool:
        """Whether the object has these bytes and no others."""
        path = self._path(name)
        if not self._is_local:
            return bool(pa.py_buffer(self._read(path)) == whole)
        piece, at = bytearray(min(len(whole) + 1, PIECE_BYTES)), 0  # memory is used again
        with Path(path).open("rb", buffering=0) as file:
            while count := file.readinto(piece):
                if pa.py_buffer(piece).slice(0, count) != whole.slice(at, count):
                    return False
                at += count
        return at == len(whole)

    def _put(self, name: str, data: bytes | pa.Buffer) -> None:
        path = self._path(name)
        if not self._renames:
            self._write(path, data)
            return
        if self._is_local and not Path(self._root).is_dir():  # a mount is gone: not its folder here
            raise TierMisconfigured(f"{self.url}: there is no folder {self._root!r} any more")
        temporary = self._path(temporary_name(name, secrets.token_hex(8)))
        self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        self._write(temporary, data)
        if self._is_local:
            _sync(Path(temporary))
            Path(temporary).replace(path)
            _sync_folders(Path(path).parent, Path(self._root))
            return
        # HDFS renames nothing over a file. An object that is right already stays, so that nobody
        # who reads it finds it missing; what a crash left is deleted first.
        (old,) = self._info([path])
        if old.type is not pafs.FileType.NotFound:
            if self._read(path) == pa.py_buffer(data).to_pybytes():
                self._filesystem.delete_file(temporary)
                return
            self._filesystem.delete_file(path)
        self._filesystem.move(temporary, path)

    def _write(self, path: str, data: bytes | pa.Buffer) -> None:
        stream = self._filesystem.open_output_stream(path)
        stream.write(data)
        stream.close()  # not after an exception: closing would publish what was sent so far

    def delete(self, names: Iterable[str]) -> int:
        """Deletes objects, and returns how many were there."""
        deleted = 0
        for name in names:
            path = self._path(name)
            try:
                self._call(
                    f"deleting {self._shown(name)}",
                    lambda path=path: self._filesystem.delete_file(path),  # type: ignore[misc]
                )
                deleted += 1
            except ObjectMissing:
                continue
        return deleted

    # --- reading

    def read(self, name: str) -> bytes:
        """Returns a whole object. Raises ObjectMissing, TierUnavailable, TierDenied."""

        return self._call(f"reading {self._shown(name)}", lambda: self._read(self._path(name)))

    def _read(self, path: str) -> bytes:
        with self._filesystem.open_input_file(path) as file:
            return bytes(file.read())

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Returns the bytes of each (start, length), in few requests; those of one request are over
        the same memory. What lies beyond the end of the object is missing from its piece.

        Raises ObjectMissing, TierUnavailable, TierDenied.
        """

        def work() -> list[memoryview]:
            found: dict[tuple[int, int], memoryview] = {}
            with self._filesystem.open_input_file(self._path(name)) as file:
                for start, end, inside in _joined(ranges):
                    piece = memoryview(file.read_at(end - start, start))
                    for at, length in inside:
                        found[at, length] = piece[at - start : at - start + length]
            return [found[place] for place in ranges]

        return self._call(f"reading {self._shown(name)}", work) if ranges else []

    def objects(self, folder: str, *, deep: bool = True) -> list[StoredObject]:
        """Returns the objects below a folder, at any depth or (not `deep`) directly; none if there
        is no such folder. The list of a store may lag behind what was written and deleted."""
        selector = pafs.FileSelector(self._path(folder), recursive=deep, allow_not_found=True)
        infos = self._call(f"listing {self._shown(folder)}", lambda: self._info(selector))
        before = len(self._root) + 1
        return sorted(
            (
                StoredObject(
                    name=info.path[before:],
                    length=info.size or 0,
                    modified_us=(info.mtime_ns or 0) // 1_000,
                )
                for info in infos
                if info.type is pafs.FileType.File
            ),
            key=lambda each: each.name,
        )

    def folders(self, folder: str) -> list[str]:
        """Returns the names of the folders directly in a folder, in order."""
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True)
        infos = self._call(f"listing {self._shown(folder)}", lambda: self._info(selector))
        before = len(self._root) + 1
        found = [info.path for info in infos if info.type is pafs.FileType.Directory]
        return sorted(path.rstrip("/")[before:] for path in found)

    # --- inside

    def _call(self, what: str, work: Callable[[], T]) -> T:
        try:
            return self._deadlines.run(what, self._limits.call_s, work)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise translate(error, what) from error

    def _info(self, what: Any) -> Any:
        return self._filesystem.get_file_info(what)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _shown(self, name: str) -> str:
        return f"{self.url}/{name}"


def _joined(
    ranges: Iterable[tuple[int, int]],
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Start and end of each piece to fetch, and the ranges inside."""
    pieces: list[tuple[int, int, list[tuple[int, int]]]] = []
    for start, length in sorted(set(ranges)):
        if pieces and start <= pieces[-1][1] + GAP_BYTES_MAX:
            first, end, inside = pieces[-1]
            pieces[-1] = (first, max(end, start + length), [*inside, (start, length)])
        else:
            pieces.append((start, start + length, [(start, length)]))
    return pieces


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folders(folder: Path, root: Path) -> None:
    """Makes the name in `folder` durable, and the names of new folders up to the root."""
    while True:
        _sync(folder)
        if folder == root or folder == folder.parent:
            return
        folder = folder.parent


# --- opening ------------------------------------------------------------------------------------


def open_store(url: str, limits: StoreLimits = DEFAULT_LIMITS) -> Store:
    """Returns the store at a URL whose bucket or folder exists.

    `s3://BUCKET/PREFIX`, with `?region=…`, `endpoint_override=…` and `scheme=http` where needed,
    `gs://BUCKET/PREFIX`, `hdfs://HOST:PORT/PATH`, or `file:///PATH`. Raises TierMisconfigured,
    TierDenied, TierUnavailable.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    if parts.scheme not in SCHEMES:
        raise TierMisconfigured(
            f"{shown}: the scheme of a tier is one of {', '.join(SCHEMES)}, as in s3://bucket/prefix"
        )
    if "@" in parts.netloc:
        raise TierMisconfigured(
            f"{shown}: leave credentials out of the URL; the store's own environment, profile or"
            " role is used"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = _S3_OPTIONS if parts.scheme == "s3" else ()
    strange = [option for option in options if option not in known]
    if strange or parts.fragment:
        raise TierMisconfigured(
            f"{shown}: unknown option {(strange or [parts.fragment])[0]!r} of the URL;"
            f" known for {parts.scheme} are: {', '.join(known) or 'none'}"
        )
    path = unquote(parts.path).strip("/")
    if any(piece in (".", "..", "") for piece in path.split("/")) and path:
        raise TierMisconfigured(f"{shown}: the path has an empty or relative part")
    try:
        filesystem, root = _file_system(parts.scheme, parts.netloc, path, options, limits, shown)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise translate(error, f"opening {shown}") from error
    store = Store(filesystem, root, shown, limits)
    store.check()
    return store


def _file_system(
    scheme: str, netloc: str, path: str, options: dict[str, str], limits: StoreLimits, shown: str
) -> tuple[Any, str]:
    """The file system of a URL, and the path of its root in it."""
    if scheme == "file":
        if netloc not in ("", "localhost") or not path:
            raise TierMisconfigured(f"{shown}: give an absolute path, as in file:///mnt/tier")
        return pafs.LocalFileSystem(), f"/{path}"
    if not netloc:
        what = "a host" if scheme == "hdfs" else "a bucket"
        raise TierMisconfigured(f"{shown}: the URL names no {what.split()[1]}")
    if scheme == "hdfs":
        host, _, port = netloc.partition(":")
        if not path or (port and not port.isdigit()):
            raise TierMisconfigured(f"{shown}: give host, port and a folder")
        return hdfs_file_system(host, int(port) if port else None, shown), f"/{path}"
    root = f"{netloc}/{path}".rstrip("/")
    if scheme == "gs":
        from datetime import timedelta

        return pafs.GcsFileSystem(retry_time_limit=timedelta(seconds=limits.call_s)), root
    if options.get("scheme", "https") not in ("http", "https"):
        raise TierMisconfigured(f"{shown}: option 'scheme' is http or https")
    return (
        pafs.S3FileSystem(
            region=options.get("region"),
            endpoint_override=options.get("endpoint_override"),
            scheme=options.get("scheme"),
            connect_timeout=limits.connect_s,
            request_timeout=limits.request_s,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=limits.attempts),
        ),
        root,
    )
