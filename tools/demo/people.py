"""The demo's cast: who takes part, and what each may do.

How it works. All connections use TLS, and every program has a certificate: it is the loader, the
readers, or Spark, and has the rights that it needs. The *stranger* has a certificate of the same
cluster and no right. It tries what it may not.

Not here: certificates (`semel security`), what rules mean (`docs/rights.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.client import Security, connect
from semel.client.client_file import CONFIG
from semel.console.authority import Authority
from semel.protos.errors import PermissionDenied, UnknownTopic
from semel.protos.security.identity import ADMIN, CLIENT, Identity

if TYPE_CHECKING:
    from semel.client import Client

TOPIC: Final = "demo"
COPY: Final = "demo-copy"
PRODUCER: Final = "demo-loader"
GROUP: Final = "demo-readers"
LOADER: Final = "loader"
READERS: Final = "readers"
SPARK: Final = "spark"
STRANGER: Final = "stranger"
RULES: Final = (
    f"allow user:{LOADER} write topic:{TOPIC}",
    f"allow user:{LOADER} own-name producer:{PRODUCER}",
    f"allow user:{READERS} read topic:{TOPIC}*",
    f"allow user:{READERS} commit consumer-group:{GROUP}",
    f"allow user:{SPARK} read topic:{TOPIC}",
    f"allow user:{SPARK} write topic:{COPY}",
    f"allow user:{SPARK} transact transaction:*",
)


class People:
    """The certificates of one cluster. BLOCKING."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        """`directory` is that of `semel up --secure`, with the CA."""
        self._authority = Authority(directory)
        self._bootstrap = bootstrap
        for name in (LOADER, READERS, SPARK, STRANGER):
            self._authority.issue(self._client(name), bootstrap=bootstrap)

    def security(self, name: str) -> Security:
        """The certificate of `name`."""
        return Security.read(self._authority.place(self._client(name)))

    def connect(self, name: str) -> Client:
        """A client with the certificate of `name`."""
        return connect(self._bootstrap, security=self.security(name), keep_routes=False)

    def environment(self, name: str) -> dict[str, str]:
        """What makes a program `name`."""
        return {CONFIG: str(self._authority.place(self._client(name)) / "client.toml")}

    def _client(self, name: str) -> Identity:
        return Identity(ADMIN if name == ADMIN else CLIENT, name, self._authority.cluster)


def refusals(client: Client) -> tuple[int, int]:
    """What a client without rights tries: how much of it is refused, and how much it was."""
    tries: tuple[Callable[[], Any], ...] = (
        lambda: list(client.reader(TOPIC, end="latest")),
        lambda: client.producer().send(TOPIC, b"of a stranger").result(timeout=20),
        lambda: client.producer(PRODUCER).send(TOPIC, b"as the loader").result(timeout=20),
        lambda: client.consumer(GROUP, [TOPIC]).poll(),
        lambda: client.admin.delete_topic(TOPIC),
    )
    return sum(_refused(one) for one in tries), len(tries)


def _refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (PermissionDenied, UnknownTopic):
        return True
    return False
