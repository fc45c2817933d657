"""Those who reach the ports of a cluster with TLS and have no certificate of it.

How it works. On every port of every node a stranger speaks plainly, speaks TLS without a
certificate, or shows one that another CA has made for the cluster's administrator; then it sends
requests that would do harm, many on one connection, as well as the bytes of framed streams and of
HTTP. At the port for logins, which serves strangers, it calls every method, and proves nothing.

What it must not get: any byte of an answer but TLS's own, and any login. What must not have changed
is in `facts.py`.

Not here: callers with certificates (`assault.py`).
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from typing import Any, Final

import grpc
import grpc.aio

from semel.client.certified import new_request
from semel.protos.framed import encode_head, encode_hello
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.security.credentials import login_channel
from semel.protos.security.identity import ADMIN
from semel.protos.security.token_keys import new_key
from semel.protos.security.tokens import new_token
from semel.protos.streams import encode_produce
from tests.fuzz.callers import forbidden_values
from tests.fuzz.connecting import Ports, say
from tests.fuzz.facts import GUARDED_USER
from tests.fuzz.http2 import requests
from tests.fuzz.liar import Tally
from tests.fuzz.messages import FILES, Call, Hints, calls_of, request_bytes
from tests.fuzz.mutation import mutated
from tests.fuzz.sending import Kind, send_kinds
from tests.fuzz.wire_targets import BATCHES, seal_batch
from tests.kit.certificates import TestCa
from tests.kit.cluster import CLUSTER_ID
from tests.kit.ruled_cluster import RuledCluster

WORKERS: Final = 24
REQUESTS_PER_CONNECTION: Final = 20
_CALL_S: Final = 2.0
_ANSWER_S: Final = 0.3
NAME: Final = "stranger"


class Strangers:
    """Everything that one seed sends to one cluster without a certificate of it."""

    def __init__(self, cluster: RuledCluster, seed: int, ids: dict[str, int], tally: Tally) -> None:
        """BLOCKING. `ids` are those of the topics."""
        self.tally = tally
        self._seed = seed
        self._ca = cluster.authority.ca_path.read_bytes()
        self._name = cluster.security.tls_name()
        self._ports = Ports(cluster)
        self._calls = [call for node in cluster.nodes for call in calls_of(FILES[node.kind])]
        self._login_calls = calls_of(FILES["login"])
        self._hints = _with_proofs(forbidden_values(cluster, ids))
        self._logins = [cluster.login_address(node) for node in cluster.controllers]
        self._channels: list[grpc.aio.Channel] = []
        self._ends_s = float("inf")
        foreign = _without_certificate(self._ca)
        files = TestCa(CLUSTER_ID).files(cluster.data / "foreign", ADMIN, "admin")
        foreign.load_cert_chain(files / "cert.pem", files / "key.pem")
        self._tls = (_without_certificate(self._ca), foreign)

    async def run(
        self, inputs: int, *, ends_s: float = float("inf"), workers: int = WORKERS
    ) -> None:
        """Sends about so many inputs, until a monotonic time at most."""
        self._ends_s = ends_s
        self._channels = [
            login_channel(address, self._ca, CLUSTER_ID, CHANNEL_OPTIONS)
            for address in self._logins
        ]
        try:
            shares = [inputs // workers + (number < inputs % workers) for number in range(workers)]
            await asyncio.gather(
                *(self._work(number, share) for number, share in enumerate(shares))
            )
        finally:
            for each in self._channels:
                await each.close(grace=0)

    async def _work(self, number: int, inputs: int) -> None:
        rng = random.Random(f"{self._seed} {NAME} {number}")
        kinds: list[Kind] = [
            (0.30, "tls", self._with_tls),
            (0.40, "plain", self._plain),
            (1.00, "login", self._log_in),
        ]
        await send_kinds(rng, kinds, inputs, ends_s=self._ends_s, tally=self.tally, name=NAME)

    async def _with_tls(self, rng: random.Random) -> int:
        """TLS without a certificate, or with a foreign one, and requests behind it."""
        count, data = self._data(rng)
        port = rng.choice(self._ports.all)
        tls = rng.choice(self._tls)
        try:
            answer = await say(rng, port, data, tls=tls, tls_name=self._name, patience_s=_ANSWER_S)
        except ssl.SSLError:  # the port of logins takes no requests of other services, and so on
            return count
        if answer and port not in self._login_ports():
            self.tally.bugs.append(f"port {port} answers a stranger: {answer[:200].hex()}")
        return count

    async def _plain(self, rng: random.Random) -> int:
        count, data = self._data(rng)
        answer = await say(rng, rng.choice(self._ports.all), data, patience_s=_ANSWER_S)
        if is_plain_answer(answer):
            self.tally.bugs.append(f"a port speaks without TLS: {answer[:200].hex()}")
        return count

    def _login_ports(self) -> list[int]:
        return [int(address.rpartition(":")[2]) for address in self._logins]

    def _data(self, rng: random.Random) -> tuple[int, bytes]:
        """The number of requests, and their bytes."""
        chance = rng.random()
        if chance < 0.7:
            count = rng.randint(1, REQUESTS_PER_CONNECTION)
            data = requests(self._request(rng, rng.choice(self._calls)) for _ in range(count))
        elif chance < 0.9:
            count = rng.randint(1, 4)
            data = encode_hello(rng.randbytes(16))
            for _ in range(count):
                message = encode_produce([seal_batch(rng.choice(BATCHES), rng)])
                data += encode_head(len(message)) + message
        else:
            count, data = 1, b"GET /metrics HTTP/1.1\r\n\r\n"
        return count, mutated(rng, data, [data]) if rng.random() < 0.2 else data

    def _request(self, rng: random.Random, call: Call) -> tuple[str, bytes]:
        return call.path, request_bytes(rng, call, self._hints)

    async def _log_in(self, rng: random.Random) -> int:
        """A call at the port for logins; one of another service now and then."""
        call = rng.choice(self._login_calls if rng.random() < 0.8 else self._calls)
        data = request_bytes(rng, call, self._hints)
        opened: Any = rng.choice(self._channels)
        compression = grpc.Compression.Gzip if rng.random() < 0.02 else None
        try:
            if call.streams_in:
                stream = opened.stream_stream(call.path)(timeout=_CALL_S)
                await stream.write(data)
                await stream.read()
                stream.cancel()
            elif call.streams_out:
                stream = opened.unary_stream(call.path)(data, timeout=_CALL_S)
                await stream.read()
                stream.cancel()
            else:
                await opened.unary_unary(call.path)(data, timeout=_CALL_S, compression=compression)
            self.tally.bugs.append(f"{call.path} lets a stranger in: {data[:2000].hex()}")
        except grpc.aio.AioRpcError as error:
            self.tally.answered(call.path, data, error)
        except asyncio.InvalidStateError:
            pass
        return 1


def is_plain_answer(answer: bytes) -> bool:
    """Whether a port begins to serve without TLS: with HTTP/2's settings, or with a page."""
    return answer[3:4] == b"\4" or answer.startswith(b"HTTP/1.0 200")


def _without_certificate(ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    return context


def _with_proofs(hints: Hints) -> Hints:
    """The same, and what looks like a proof to who does not look closely."""
    forged = new_token(
        new_key(), user="admin", cluster=CLUSTER_ID, expires_s=int(time.time()) + 86_400
    )
    values = {
        **hints.values,
        "token": (forged, forged[:-1], "a.b.c", "x" * 7_000),
        "user": (GUARDED_USER, "admin", "nobody"),
        "password": ("wrong horse battery", "x" * 2_000),
        "signing_request": (new_request()[1],),
    }
    return Hints(values=values)
