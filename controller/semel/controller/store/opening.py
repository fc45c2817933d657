"""Which store a controller's settings ask for.

How it works. The stores are imported when they are asked for: ZooKeeper and the replicated one
bring libraries along that a single controller does not need.
"""

from __future__ import annotations

from pathlib import Path

from semel.controller.config import ControllerConfig, split_zookeeper
from semel.controller.store.base import MetadataStore
from semel.controller.store.sqlite import FILE_NAME as SQLITE_FILE
from semel.controller.store.sqlite import SqliteStore
from semel.protos.errors import DataDirectoryError


async def open_store(config: ControllerConfig) -> MetadataStore:
    """Opens the store of one controller.

    Raises DataDirectoryError (damaged, in use, another cluster's), Unavailable (nobody answers),
    InvalidRequest (a group that cannot be) and PermissionDenied.
    """
    match config.metadata_kind:
        case "sqlite":
            _refuse_other(config.data / "IDENTITY", "of a controller that replicates it")
            return await SqliteStore.open(config.data)
        case "embedded":
            from semel.controller.store.embedded import EmbeddedStore

            _refuse_other(config.data / SQLITE_FILE, "of a controller that is alone")
            return await EmbeddedStore.open(
                config.data, config.controller_id, config.peers, cluster_id=config.cluster_id
            )
        case _:
            from semel.controller.store.zookeeper import ZooKeeperStore

            hosts, chroot = split_zookeeper(config.metadata)
            return await ZooKeeperStore.open(
                hosts, chroot, cluster_id=config.cluster_id, auth=config.metadata_auth
            )


def _refuse_other(mark: Path, whose: str) -> None:
    """An empty store beside the one that has the data would begin the cluster anew."""
    if mark.exists():
        raise DataDirectoryError(
            f"{mark.parent} holds the metadata {whose} ({mark.name}). Start it with the same "
            "--peers and --metadata as before, or move the metadata to another directory first"
        )
