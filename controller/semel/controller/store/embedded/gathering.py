"""Opens the directories of a whole group of controllers in one process, to move their metadata.

How it works. The members run as always, with their consensus and their checks, but they connect to
each other on loopback ports of this process. So a majority has agreed on everything that is read or
written. A majority of the directories is enough for reading.

Not here: what is moved (`semel.controller.archive.transfer`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import grpc.aio

from semel.controller.store.base import ControllerAddress, MetadataStore
from semel.controller.store.embedded.embedded_store import EmbeddedStore
from semel.controller.store.embedded.identity import read
from semel.protos.errors import DataDirectoryError
from semel.protos.rpc import SERVER_OPTIONS

STOP_S: Final = 1.0
NOWHERE: Final = "127.0.0.1:1"
"""Address of members whose directories were not given."""


@asynccontextmanager
async def gathered(directories: list[Path]) -> AsyncIterator[MetadataStore]:
    """Opens the group to which these directories belong.

    Raises DataDirectoryError when they are too few or of different groups, and whatever opening
    raises.
    """
    found = {directory: read(directory) for directory in directories}
    first = next(iter(found.values()))
    members: dict[int, Path] = {}
    for directory, identity in found.items():
        if first is None or identity is None:
            raise DataDirectoryError(
                f"{directory} is no directory of a controller that replicates its metadata"
            )
        if (identity.cluster_id, identity.members) != (first.cluster_id, first.members):
            raise DataDirectoryError(f"{directory} and {directories[0]} are not of one group")
        if identity.controller_id in members:
            raise DataDirectoryError(f"two directories are of controller {identity.controller_id}")
        members[identity.controller_id] = directory
    assert first is not None
    if 2 * len(members) <= len(first.members):
        raise DataDirectoryError(
            f"{len(members)} of the {len(first.members)} controllers' directories may lack the "
            "newest changes: name --data for each of a majority"
        )
    async with opened(members, first.members, first.cluster_id) as store:
        yield store


@asynccontextmanager
async def opened(
    directories: Mapping[int, Path], members: tuple[int, ...], cluster_id: str
) -> AsyncIterator[MetadataStore]:
    """Opens a group with these directories, by controller id; missing ones are made."""
    async with AsyncExitStack() as exits:
        servers, addresses = {}, dict.fromkeys(members, NOWHERE)
        for controller_id in directories:
            server = servers[controller_id] = grpc.aio.server(options=SERVER_OPTIONS)
            addresses[controller_id] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            exits.push_async_callback(server.stop, STOP_S)  # runs after all stores are closed
        stores = []
        for controller_id, directory in directories.items():
            store = await EmbeddedStore.open(
                directory, controller_id, addresses, cluster_id=cluster_id
            )
            exits.push_async_callback(store.close)
            store.attach(servers[controller_id])
            await servers[controller_id].start()
            stores.append(store)
        for controller_id, store in zip(directories, stores, strict=True):
            await store.start(
                ControllerAddress(controller_id=controller_id, address=addresses[controller_id])
            )
        yield stores[0]
