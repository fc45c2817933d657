"""Measures when there was a new master, and when it first acknowledged a message.

How it works. From the kill on, every surviving node is asked again and again whether it is master
in a newer term; acknowledgements are counted until one comes after that answer. The outage is the
longest silence up to then. The time of the answer itself proves nothing: slaves notice a broken
connection and elect a master within some 50 ms, and on a busy machine the answer arrives long after
the new master has acknowledged a message.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from semel.protos.security.credentials import Security, channel_credentials
from semel.protos.v1.broker_pb2 import NodeStatusReply, NodeStatusRequest

ASK_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """A newly elected master."""

    time: float
    """Monotonic seconds at which it reported that it is master."""
    node: int
    term: int


def await_master(
    addresses: Iterable[str], *, newer_than: int, timeout: float, security: Security | None = None
) -> Elected | None:
    """The first node that is master in a term above `newer_than`; None after `timeout` seconds.
    `security` is for a cluster with TLS."""
    channels = [_channel(address, security) for address in addresses]
    try:
        asks = [
            channel.unary_unary(
                "/semel.protos.v1.Broker/GetNodeStatus",
                request_serializer=NodeStatusRequest.SerializeToString,
                response_deserializer=NodeStatusReply.FromString,
            )
            for channel in channels
        ]
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for ask in asks:
                try:
                    reply = ask(NodeStatusRequest(), timeout=0.2)
                except grpc.RpcError:
                    continue
                if reply.role == "master" and reply.term > newer_than:
                    return Elected(time=time.monotonic(), node=reply.node_id, term=reply.term)
            time.sleep(ASK_S)
        return None
    finally:
        for channel in channels:
            channel.close()


def _channel(address: str, security: Security | None) -> grpc.Channel:
    options: tuple[tuple[str, Any], ...] = (
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_reconnect_backoff_ms", 100),
    )
    if security is None:
        return grpc.insecure_channel(address, options)
    name = ("grpc.ssl_target_name_override", security.tls_name())
    return grpc.secure_channel(address, channel_credentials(security.files), (*options, name))


class AckWatch:
    """Takes (time, messages known to be stored) from the kill on, and finds the outage."""

    def __init__(self, *, killed: float, elected: float, done: int) -> None:
        self._killed = killed
        self._elected = elected
        self._done = done
        self._news = killed
        self._silence = 0.0
        self._resumed = killed

    def on_progress(self, time: float, done: int) -> bool:
        """Handles one line of the loader; True once it counts messages of the new master."""
        if done == self._done:
            return False
        self._done = done
        if time - self._news > self._silence:
            self._silence = time - self._news
            self._resumed = time
        self._news = time
        return time >= self._elected

    @property
    def outage(self) -> float:
        """Seconds from the kill to the first acknowledgement after the longest silence."""
        return self._resumed - self._killed
