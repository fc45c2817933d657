"""Byte streams between simulated processes: what `create_connection` and `create_server` give.

How it works. A connection is two pipes with a transport at each end, as asyncio has it: bytes stay
in order, arrive in pieces of any size, and wait while a link is cut. A process that dies resets its
connections, and the far end hears so as soon as the link lets it. What is on its way counts as the
sender's buffer, so a slow link makes the sender pause.

Not here: order, delay and cuts (`network.py`). Not simulated: the time after which a kernel gives
up a link that is cut without a word (cuts here are shorter).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.world.loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.world.network import Network

BUFFER_BYTES = 16 << 10
"""Bytes that wait in a transport before its owner is told to pause."""
_SPLIT = 0.2


class SimTransport:
    """One end of a connection: `asyncio.Transport` as far as it is used."""

    is_connection = True

    def __init__(self, network: Network, protocol: Any, source: str, target: str) -> None:
        self.process: Process = PROCESS.get()
        self.other: SimTransport | None = None
        self._context = copy_context()
        self._network = network
        self._protocol = protocol
        self._out = network.pipe(source, target)
        self._high = BUFFER_BYTES
        self._on_its_way = 0
        self._paused = False
        self._unread: list[bytes] | None = None
        """Pieces that came while the owner does not read; None while it reads."""
        self._closed = False
        self._lost = False

    # --- what protocols use

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _Socket() if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high = min(high, BUFFER_BYTES)

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        if self._unread is None:
            self._unread = []

    def resume_reading(self) -> None:
        self._on_owner(self._read_on)

    def _read_on(self) -> None:
        unread, self._unread = self._unread, None
        for piece in unread or ():
            self._receive(piece)  # which may pause again

    def write(self, data: bytes) -> None:
        if self._closed or not data:
            return
        random = self._network.random
        cut = random.randrange(len(data)) if random.random() < _SPLIT else 0
        for piece in (data[:cut], data[cut:]):
            if piece:
                self._on_its_way += len(piece)
                self._out.send(partial(self._arrives, bytes(piece)))
        if self._on_its_way > self._high and not self._paused:
            self._paused = True
            self._network.writers_paused += 1
            self._protocol.pause_writing()

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        """Closes the connection; what was written before still arrives."""
        self._end(None)

    abort = close

    # --- what happens to it

    def _on_owner(self, action: Callable[..., None], *arguments: Any) -> None:
        self._network.loop.call_soon(action, *arguments, context=self._context)

    def _arrives(self, piece: bytes) -> None:
        """Called outside of any process."""
        self._on_owner(self._sent, len(piece))
        if self.other is not None:
            self.other._on_owner(self.other._receive, piece)

    def _sent(self, length: int) -> None:
        self._on_its_way -= length
        if self._paused and self._on_its_way <= self._high // 4 and not self._lost:
            self._paused = False
            self._protocol.resume_writing()

    def _receive(self, piece: bytes) -> None:
        if self._closed:
            return
        if self._unread is not None:
            self._unread.append(piece)
            return
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(piece)
            return
        at = 0
        while at < len(piece) and not self._closed:
            buffer = memoryview(protocol.get_buffer(-1))
            length = min(len(buffer), len(piece) - at)
            buffer[:length] = piece[at : at + length]
            at += length
            protocol.buffer_updated(length)

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.transports.pop(self, None)
        self._on_owner(self._tell_lost, error)
        self.tell_other()

    def tell_other(self) -> None:
        """Tells the far end, behind all that is on its way, that nothing comes any more."""
        other = self.other
        if other is not None:
            reset = ConnectionResetError("connection reset by peer")
            self._out.send(lambda: other._on_owner(other._end, reset))

    def _tell_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(error)

    def connect(self) -> None:
        """Gives the protocol its transport; called in the owner's process."""
        self._network.transports[self] = None
        self._protocol.connection_made(self)


class SimListener:
    """`asyncio.Server`."""

    def __init__(self, network: Network, factory: Callable[[], Any], host: str, port: int) -> None:
        self.process: Process = PROCESS.get()
        self.sockets = [_Socket(host, port)]
        self._context = copy_context()
        self._network = network
        self._factory = factory
        self._place = host, port
        if self._place in network.listeners:
            raise OSError(98, "Address already in use")
        network.listeners[self._place] = self

    def close(self) -> None:
        self._network.listeners.pop(self._place, None)

    async def wait_closed(self) -> None:
        pass

    def accept(self, caller: SimTransport, answer: Callable[[], None]) -> None:
        """Takes a connection; `answer` is called once this end of it is there."""

        def enter() -> None:
            network = self._network
            own = SimTransport(network, self._factory(), self.process.host, caller.process.host)
            caller.other, own.other = own, caller
            own.connect()
            own._out.send(answer)

        self._network.loop.call_soon(enter, context=self._context)


async def connect(
    network: Network, factory: Callable[[], Any], host: str, port: int
) -> tuple[SimTransport, Any]:
    """A connection to a listener. Raises ConnectionRefusedError."""
    protocol = factory()
    transport = SimTransport(network, protocol, PROCESS.get().host, host)
    done: asyncio.Future[None] = network.loop.create_future()
    context = copy_context()
    back = network.pipe(host, transport.process.host)

    def settle(error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(None)

    def answer(error: Exception | None) -> None:
        network.loop.call_soon(settle, error, context=context)

    def arrive() -> None:
        listener = network.listeners.get((host, port))
        if listener is None or not listener.process.alive:
            back.send(lambda: answer(ConnectionRefusedError(111, "Connection refused")))
        else:
            listener.accept(transport, lambda: answer(None))

    transport._out.send(arrive)
    try:
        await done
    except asyncio.CancelledError:
        transport._closed = True
        transport.tell_other()
        raise
    transport.connect()
    return transport, protocol


class _Socket:
    def __init__(self, host: str = "", port: int = 0) -> None:
        self._name = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def setsockopt(self, *_: object) -> None:
        """A simulated link has no options."""
