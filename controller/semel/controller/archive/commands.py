"""`semel controller export` and `import`: they move metadata from one store to another.

How it works. Both run in a process of their own while no controller runs: a process locks the
directory that it uses, and ZooKeeper knows which controllers are there. The exit status is 0; 1 for
an error, which is one line on stderr; 2 for wrong usage. With `--json` the outcome is the only line
on stdout.

Not here: the file (`archive.py`), reading and filling stores (`transfer.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from semel.controller.archive import archive as archives
from semel.controller.archive.archive import Archive
from semel.controller.archive.transfer import fill, take_out
from semel.controller.config import SQLITE, ZOOKEEPER, ControllerConfig
from semel.controller.opening import EMBEDDED_FILE, open_existing, open_new
from semel.controller.store import MetadataStore
from semel.controller.store.embedded.gathering import gathered, opened
from semel.protos.errors import SemelError

EXPORT_EPILOG = """\b
Examples, with all controllers stopped:
  semel controller export orders.metadata --data semel-data/controller-1
  semel controller export orders.metadata --metadata zookeeper://zk1:2181/semel
  semel controller export orders.metadata --data c1 --data c2 --data c3

Of controllers that replicate the metadata among themselves, the directories of a majority have to
be on this machine.
"""
IMPORT_EPILOG = """\b
Examples; then start the controllers on the new store and never again on the old one:
  semel controller import orders.metadata --metadata zookeeper://zk1:2181/semel
  semel controller import orders.metadata --data c1
  semel controller import orders.metadata --data c1 --data c2 --data c3

Three or five directories become those of controllers 1, 2, 3, … of a group; take each to its
machine and start it with --controller-id and --peers.
"""
_data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A controller's directory; once for each of several that replicate the metadata.",
)
_metadata = click.option(
    "--metadata", metavar="WHERE", help="zookeeper://HOST:PORT[,…]/CHROOT, in place of --data."
)
_metadata_auth = click.option(
    "--metadata-auth",
    type=click.Path(path_type=Path),
    help="File with USER:PASSWORD, for ZooKeeper's digest scheme.",
)
_metadata_tls = click.option(
    "--metadata-tls",
    type=click.Path(path_type=Path),
    help="Directory with the TLS files for ZooKeeper.",
)
_json = click.option("--json", "as_json", is_flag=True, help="The outcome as one line of JSON.")


@click.group()
def controller() -> None:
    """Moves a cluster's metadata from one store to another."""


@controller.command("export", epilog=EXPORT_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@_data
@_metadata
@_metadata_auth
@_metadata_tls
@_json
def export_(
    file: Path,
    data: tuple[Path, ...],
    metadata: str | None,
    metadata_auth: Path | None,
    metadata_tls: Path | None,
    as_json: bool,
) -> None:
    """Writes all metadata of a cluster to FILE, which must be new.

    What a controller changes afterwards is not in it: to move to another store, stop all
    controllers first. Brokers and clients go on without them.
    """
    config = _config(data, metadata, metadata_auth, metadata_tls)

    async def run() -> tuple[Archive, int]:
        async with _source(config, data) as store:
            taken = await take_out(store)
        return taken, archives.write(taken, file)

    taken, size = _run(run())
    outcome = {**_outcome(file, taken), "revision": taken.revision, "bytes": size}
    _say(outcome, as_json, f"{len(taken.entries)} entries of cluster {taken.cluster_id} in {file}")


@controller.command("import", epilog=IMPORT_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@_data
@_metadata
@_metadata_auth
@_metadata_tls
@_json
def import_(
    file: Path,
    data: tuple[Path, ...],
    metadata: str | None,
    metadata_auth: Path | None,
    metadata_tls: Path | None,
    as_json: bool,
) -> None:
    """Fills an empty store with what `export` has written to FILE.

    It is refused while a controller uses the store. The same command finishes an import that was
    interrupted; no controller becomes active before that.
    """
    config = _config(data, metadata, metadata_auth, metadata_tls)

    async def run() -> tuple[Archive, int]:
        found = archives.read(file)
        async with _target(config, data, found.cluster_id) as store:
            with _progress(len(found.entries), as_json) as progress:
                locked = metadata is None
                return found, await fill(store, found, locked=locked, progress=progress)

    found, revision = _run(run())
    outcome = {**_outcome(file, found), "revision": revision}
    _say(outcome, as_json, f"{len(found.entries)} entries of cluster {found.cluster_id} imported")


def _config(
    data: tuple[Path, ...],
    metadata: str | None,
    metadata_auth: Path | None,
    metadata_tls: Path | None,
) -> ControllerConfig:
    if bool(data) == (metadata is not None):
        raise click.UsageError("name one store: --data DIR or --metadata zookeeper://…")
    if metadata is not None and not metadata.startswith(ZOOKEEPER):
        raise click.UsageError(f"--metadata {metadata}: write zookeeper://HOST:PORT[,…]/CHROOT")
    try:
        return ControllerConfig(
            data=data[0] if data else Path(),
            metadata=metadata or SQLITE,
            metadata_auth=metadata_auth,
            metadata_tls=metadata_tls,
        )
    except SemelError as error:
        raise click.UsageError(str(error)) from error


@asynccontextmanager
async def _source(
    config: ControllerConfig, directories: tuple[Path, ...]
) -> AsyncIterator[MetadataStore]:
    """The store to read."""
    if len(directories) > 1 or any((path / EMBEDDED_FILE).exists() for path in directories):
        async with gathered(list(directories)) as store:
            yield store
        return
    store = await open_existing(config)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _target(
    config: ControllerConfig, directories: tuple[Path, ...], cluster_id: str
) -> AsyncIterator[MetadataStore]:
    """The store to fill; several directories belong to controllers 1, 2, …"""
    if len(directories) > 1:
        members = dict(enumerate(directories, start=1))
        async with opened(members, tuple(members), cluster_id) as store:
            yield store
        return
    store = await open_new(dataclasses.replace(config, cluster_id=cluster_id))
    try:
        yield store
    finally:
        await store.close()


class _progress:  # noqa: N801 - used as a function
    """A progress bar on a terminal, else nothing; entering gives the function that advances it."""

    def __init__(self, length: int, as_json: bool) -> None:
        self._bar = None
        if sys.stderr.isatty() and not as_json:
            self._bar = click.progressbar(length=length, label="entries", file=sys.stderr)

    def __enter__(self) -> Callable[[int], None]:
        return (lambda _: None) if self._bar is None else self._bar.__enter__().update

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)


def _run(work: Coroutine[Any, Any, tuple[Archive, int]]) -> tuple[Archive, int]:
    try:
        return asyncio.run(work)
    except SemelError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
    sys.exit(1)


def _outcome(file: Path, archive: Archive) -> dict[str, object]:
    return {
        "file": str(file),
        "cluster_id": archive.cluster_id,
        "entries": len(archive.entries),
    }


def _say(outcome: dict[str, object], as_json: bool, text: str) -> None:
    print(json.dumps(outcome) if as_json else text)


if __name__ == "__main__":
    controller(prog_name="semel controller")
