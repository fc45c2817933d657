"""The object store of a simulated cluster, with what goes wrong in such stores.

How it works. It takes the place of a file system of `pyarrow.fs`, so that `semel.tier.Store` is the
real one: names, reading back, errors. All nodes and programs share one store, each call takes some
time on the simulated thread that makes it, and may fail before or after its effect.

Faults. A write is refused, is cut short without an error, takes effect though its answer is lost,
takes effect some time after its error, or hangs. An object is missing for a while after it was
written; what is read has a wrong byte or is cut short. A list is as of a while ago. A delete does
nothing, takes effect late, or loses its answer. The store is down, or refuses its credentials, or
is full, for a while. Its clock is far from that of the nodes.

Not here: which of them a run has (`parts/tiers.py`), what must hold (`tier_checks.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from semel.tier import Store, TierDenied, TierFull, TierUnavailable, layout
from tests.world.hosting import EPOCH_S

if TYPE_CHECKING:
    from tests.world.run import Run

T = TypeVar("T")

ROOT: Final = "bucket/tier"
URL: Final = "s3://bucket/tier"
LAG_S: Final = 0.4
"""The longest time by which a list is late, or an object is missing."""
LATE_S: Final = 0.6
"""The longest time after its error at which a call takes effect."""
PUTS: Final = ("refused", "cut short", "reply lost", "late", "hangs")
DELETES: Final = ("lost", "reply lost", "late")
READS: Final = ("refused", "wrong byte", "cut short", "slow")


class Held(NamedTuple):
    """An object from some time on; no object if there are no bytes."""

    since_s: float
    data: bytes | None


class ObjectStore:
    """What all processes share. It knows every version of each object."""

    def __init__(self, run: Run, random: Random, rates: dict[str, float]) -> None:
        """`rates` has how often a "put", "read", "list" and "delete" goes wrong."""
        self._run = run
        self._world = run.world
        self._random = random
        self._rates = rates
        self.versions: dict[str, list[Held]] = {}
        """The versions of each object, oldest first."""
        self.skew_s = random.choice((0.0, -3_600.0, 3_600.0))
        self.down_until = self.denied_until = self.full_until = 0.0
        self.on_delete: Callable[[str], None] = lambda _: None
        """Called before an object is really gone."""
        self.calls: Counter[str] = Counter()

    def open(self, url: str, *_: object) -> Store:
        """Takes the place of `semel.tier.open_store`."""
        assert url == URL
        store = Store(_FileSystem(self), ROOT, URL)
        store._deadlines = _Directly()  # type: ignore[assignment]
        return store

    # --- what is there

    def now_object(self, name: str) -> bytes | None:
        """The object as it is in truth; None if there is none."""
        versions = self.versions.get(f"{ROOT}/{name}")
        return versions[-1].data if versions else None

    def written_s(self, name: str) -> list[float]:
        """When the object was written."""
        versions = self.versions.get(f"{ROOT}/{name}", ())
        return [round(held.since_s, 3) for held in versions if held.data is not None]

    def names(self) -> list[str]:
        """The names of all objects there are."""
        before = len(ROOT) + 1
        found = (path for path, held in self.versions.items() if held[-1].data is not None)
        return sorted(path[before:] for path in found)

    def _seen(self, path: str, at_s: float) -> Held | None:
        """The object as of some time ago."""
        found = [held for held in self.versions.get(path, ()) if held.since_s <= at_s]
        return found[-1] if found and found[-1].data is not None else None

    def _change(self, path: str, data: bytes | None) -> None:
        if data is None:
            if self.now_object(path[len(ROOT) + 1 :]) is None:
                return
            self.on_delete(path[len(ROOT) + 1 :])
        self.versions.setdefault(path, []).append(Held(self._world.now, data))

    # --- calls; each on a simulated thread

    def put(self, path: str, data: bytes) -> None:
        fault = self._begin("put", PUTS)
        if self._world.now < self.full_until:
            raise TierFull(f"{path}: the bucket is full")
        match fault:
            case "refused":
                raise TierUnavailable(f"{path}: slow down")
            case "hangs":
                self._sleep(self._random.uniform(0.1, 1.0))
                raise TierUnavailable(f"{path}: no answer in time")
            case "late":
                self._later(path, data)
                raise TierUnavailable(f"{path}: no answer in time")
            case "cut short" if not path.endswith(layout.IDENTITY):  # a case for the operator
                data = data[: self._random.randrange(len(data))] if data else data
        self._change(path, data)
        self._sleep_a_little()
        if fault == "reply lost":
            raise TierUnavailable(f"{path}: connection reset")

    def delete(self, path: str) -> None:
        fault = self._begin("delete", DELETES)
        if self.now_object(path[len(ROOT) + 1 :]) is None:
            raise FileNotFoundError(path)
        if fault == "late":
            self._later(path, None)
        elif fault != "lost":
            self._change(path, None)
        self._sleep_a_little()
        if fault is not None:
            raise TierUnavailable(f"{path}: connection reset")

    def read(self, path: str) -> bytes:
        fault = self._begin("read", READS)
        if fault == "refused":
            raise TierUnavailable(f"{path}: slow down")
        if fault == "slow":
            self._sleep(self._random.uniform(0.1, 1.0))
        missing_s = self._random.uniform(0, LAG_S) if self._fails("list") else 0.0
        held = self._seen(path, self._world.now - missing_s)
        if held is None or held.data is None:
            raise FileNotFoundError(path)
        data = held.data
        if data and fault == "cut short":
            return data[: self._random.randrange(len(data))]
        if data and fault == "wrong byte":
            at = self._random.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        return data

    def list(self, folder: str, *, deep: bool) -> Iterable[Any]:
        self._begin("list", ("refused",))
        lag_s = self._random.uniform(0, LAG_S) if self._fails("list") else 0.0
        before, folders = f"{folder}/", set()
        for path in sorted(self.versions):
            held = self._seen(path, self._world.now - lag_s) if path.startswith(before) else None
            if held is None or held.data is None:
                continue
            inside, _, below = path[len(before) :].partition("/")
            if below and not deep:
                folders.add(before + inside)
                continue
            mtime_ns = int((EPOCH_S + self.skew_s + held.since_s) * 1e9)
            kind = pafs.FileType.File
            yield pafs.FileInfo(path, type=kind, size=len(held.data), mtime_ns=mtime_ns)
        for path in sorted(folders):
            yield pafs.FileInfo(path, type=pafs.FileType.Directory)

    # --- faults

    def _fails(self, what: str) -> bool:
        return not self._run.healing and self._random.random() < self._rates[what]

    def _begin(self, what: str, faults: tuple[str, ...]) -> str | None:
        """The fault of a call that begins. Raises TierUnavailable, TierDenied."""
        self.calls[what] += 1
        self._sleep_a_little()
        if not self._run.healing:
            if self._world.now < self.down_until:
                self._sleep(self._random.choice((0.0, 0.05, 0.5)))
                raise TierUnavailable("the store is down")
            if self._world.now < self.denied_until:
                raise TierDenied("the credentials have expired")
        if not self._fails(what):
            return None
        fault = self._random.choice(faults)
        self._world.fault(f"object store: {what} {fault}")
        return fault

    def _later(self, path: str, data: bytes | None) -> None:
        delay_s = self._random.uniform(0, LATE_S)
        self._world.later(delay_s, lambda: self._change(path, data))

    def _sleep_a_little(self) -> None:
        self._sleep(self._random.uniform(0.0005, 0.01))

    def _sleep(self, seconds: float) -> None:
        thread = self._world.threads.current
        assert thread is not None, "the event loop waits for the object store"
        thread.sleep(seconds)


class _Directly:
    """`semel.tier.deadlines.Deadlines`: the simulated store itself says when it is too slow."""

    def run(self, what: str, seconds: float, call: Callable[[], T]) -> T:
        return call()


class _FileSystem:
    """A file system of `pyarrow.fs`, as far as it is used."""

    type_name = "s3"

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get_file_info(self, what: Any) -> list[Any]:
        if isinstance(what, pafs.FileSelector):
            return list(self._store.list(what.base_dir, deep=what.recursive))
        return [pafs.FileInfo(path, type=pafs.FileType.Directory) for path in what]

    def open_output_stream(self, path: str) -> _Output:
        return _Output(self._store, path)

    def open_input_file(self, path: str) -> _Input:
        return _Input(self._store.read(path))

    def delete_file(self, path: str) -> None:
        self._store.delete(path)


class _Output:
    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._parts: list[bytes] = []

    def write(self, data: Any) -> None:
        self._parts.append(pa.py_buffer(data).to_pybytes())

    def close(self) -> None:
        self._store.put(self._path, b"".join(self._parts))


class _Input:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __enter__(self) -> _Input:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> bytes:
        return self._data

    def read_at(self, length: int, at: int) -> bytes:
        return self._data[at : at + length]
