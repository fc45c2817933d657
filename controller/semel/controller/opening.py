"""Opens the store that a controller's settings ask for.

How it works. A store's module is imported only when the settings ask for it: the ZooKeeper and the
replicated store need libraries that a single controller does not. A directory that already holds
metadata is refused to an empty store of another kind, so that nobody starts a new cluster beside
the metadata of the existing one.

Not here: the stores themselves (`store/sqlite.py`, `embedded/`, `zookeeper/`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from semel.controller import records
from semel.controller.config import ControllerConfig, split_zookeeper
from semel.controller.store.base import MetadataStore
from semel.controller.store.sqlite import FILE_NAME as SQLITE_FILE
from semel.controller.store.sqlite import SqliteStore
from semel.protos.errors import DataDirectoryError, InvalidRequest

EMBEDDED_FILE: Final = "IDENTITY"


async def open_store(config: ControllerConfig) -> MetadataStore:
    """Opens the store of one controller.

    Raises DataDirectoryError (damaged, in use, another cluster's), Unavailable (no server answers),
    InvalidRequest (an impossible group) and PermissionDenied.
    """
    match config.metadata_kind:
        case "sqlite":
            _refuse_other(config.data / EMBEDDED_FILE, "of a controller that replicates it")
            return await SqliteStore.open(config.data)
        case "embedded":
            from semel.controller.store.embedded import EmbeddedStore

            _refuse_other(config.data / SQLITE_FILE, "of a controller that is alone")
            return await EmbeddedStore.open(
                config.data,
                config.controller_id,
                config.peers,
                cluster_id=config.cluster_id,
                security=config.security,
            )
        case _:
            return await _open_beside(config)


async def open_existing(config: ControllerConfig) -> MetadataStore:
    """Opens an existing store to read it.

    Raises DataDirectoryError where there is none, and otherwise the same errors as `open_store`.
    """
    if config.metadata_kind == "zookeeper":
        return await _open_zookeeper(config, make=False)
    if not (config.data / SQLITE_FILE).exists():
        raise DataDirectoryError(
            f"{config.data} holds no metadata of a controller that is alone: there is no "
            f"{SQLITE_FILE}"
        )
    return await SqliteStore.open(config.data)


async def open_new(config: ControllerConfig) -> MetadataStore:
    """Opens a store to fill it.

    For ZooKeeper, metadata in the directory of `config` does not matter.
    """
    if config.metadata_kind == "zookeeper":
        return await _open_zookeeper(config, make=True)
    return await open_store(config)


async def _open_beside(config: ControllerConfig) -> MetadataStore:
    """Opens ZooKeeper, but refuses an empty one if the controller's directory holds metadata."""
    own = [config.data / name for name in (SQLITE_FILE, EMBEDDED_FILE)]
    held = next((path for path in own if path.exists()), None)
    if held is None:
        return await _open_zookeeper(config, make=True)
    try:
        store = await _open_zookeeper(config, make=False)
    except DataDirectoryError as error:
        raise DataDirectoryError(f"{error.message}. {_moved(held)}") from error
    try:
        if await store.get(records.CLUSTER) is None:
            raise DataDirectoryError(f"{config.metadata} is empty. {_moved(held)}")
    except BaseException:
        await store.close()
        raise
    return store


async def _open_zookeeper(config: ControllerConfig, *, make: bool) -> MetadataStore:
    try:
        from semel.controller.store.zookeeper import ZooKeeperStore, ZooKeeperTls
    except ImportError as error:
        raise InvalidRequest(
            "metadata in ZooKeeper needs kazoo: `pip install 'semel[broker]'`"
        ) from error
    hosts, chroot = split_zookeeper(config.metadata)
    auth = "" if config.metadata_auth is None else _read_auth(config.metadata_auth)
    tls = None if config.metadata_tls is None else ZooKeeperTls(config.metadata_tls)
    return await ZooKeeperStore.open(
        hosts, chroot, cluster_id=config.cluster_id, auth=auth, tls=tls, make=make
    )


def _moved(held: Path) -> str:
    return (
        f"{held} holds a cluster's metadata: move it with `semel controller export` and `import`, "
        "or choose another --data"
    )


def _read_auth(path: Path) -> str:
    """USER:PASSWORD from a file."""
    try:
        auth = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read metadata_auth {path}: {error}") from error
    user, _, password = auth.partition(":")
    if not user or not password or "\n" in auth:
        raise InvalidRequest(f"metadata_auth {path} must hold one line, USER:PASSWORD")
    return auth


def _refuse_other(mark: Path, whose: str) -> None:
    """Raises if `mark` exists: an empty store beside the existing one would start a new cluster."""
    if mark.exists():
        raise DataDirectoryError(
            f"{mark.parent} holds the metadata {whose} ({mark.name}). Start it with the same "
            "--peers and --metadata as before, or move the metadata to another directory first"
        )
