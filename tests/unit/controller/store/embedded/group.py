"""Three embedded stores in this process, over real gRPC and real disks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc.aio

from semel.controller.store import ControllerAddress, Mastership
from semel.controller.store.embedded import EmbeddedStore
from semel.protos import compat
from semel.protos.rpc import SERVER_OPTIONS, ServerInterceptor

CLUSTER = "c" * 32


class StoreGroup:
    """Controllers 1 to `size`; each can be stopped, lose its disk and come back."""

    def __init__(self, directory: Path, size: int = 3, *, timeout_s: float = 20.0) -> None:
        self.directory = directory
        self.ids = range(1, size + 1)
        self.timeout_s = timeout_s
        self.stores: dict[int, EmbeddedStore] = {}
        self.addresses: dict[int, str] = {}
        self._servers: dict[int, grpc.aio.Server] = {}

    async def __aenter__(self) -> StoreGroup:
        await self.start(self.ids)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.stop(number) for number in list(self.stores)))

    async def start(self, ids: Iterable[int], *, cluster_id: str = CLUSTER) -> None:
        """Starts or restarts controllers; the port of one stays."""
        for number in ids:
            server = grpc.aio.server(interceptors=[ServerInterceptor()], options=SERVER_OPTIONS)
            address = self.addresses.get(number, "127.0.0.1:0")
            port = server.add_insecure_port(address)
            self.addresses[number] = f"127.0.0.1:{port}"
            self._servers[number] = server
        for number in ids:
            store = await EmbeddedStore.open(
                self.directory / str(number),
                number,
                self.addresses,
                cluster_id=cluster_id,
                timeout_s=self.timeout_s,
            )
            self.stores[number] = store
            store.attach(self._servers[number])
            await self._servers[number].start()
            address = self.addresses[number]
            await store.start(ControllerAddress(controller_id=number, address=address))

    async def stop(self, number: int) -> None:
        """Closes a store and its port."""
        await self._servers.pop(number).stop(0)
        await self.stores.pop(number).close()

    async def master(self, *, but: int = 0) -> int:
        """The controller that its own store calls master, other than `but`."""
        async with compat.timeout(30):
            looking = [
                asyncio.ensure_future(_mine(number, store))
                for number, store in self.stores.items()
                if number != but
            ]
            done, rest = await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
            for one in rest:
                one.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            return done.pop().result()


async def _mine(number: int, store: EmbeddedStore) -> int:
    async for mastership in store.mastership():
        if mastership.mine:
            return number
    raise AssertionError(f"store {number} was closed")


def held_by(mastership: Mastership) -> int:
    """Number of the master; 0 for none."""
    return mastership.master.controller_id if mastership.master is not None else 0
