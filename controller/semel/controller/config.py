"""Settings of one controller, validated at construction.

The documentation below a field is also the help of its flag and its entry in docs/reference.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest
from semel.protos.levels import LEVEL_MAX
from semel.protos.live_settings import Allowed
from semel.protos.security.credentials import Security
from semel.protos.security.identity import CONTROLLER

GROUP_SIZES: Final = (1, 3, 5)
SQLITE: Final = "sqlite"
EMBEDDED: Final = "embedded"
ZOOKEEPER: Final = "zookeeper://"
CHANGEABLE: Final = {
    "topics_max": Allowed(),
    "groups_max": Allowed(),
    "group_members_max": Allowed(),
    "producers_max": Allowed(),
    "watches_max": Allowed(),
}
"""Settings that can be changed while a controller runs, with what they may be. Every use of them
reads the controller's config."""
LOGIN_MS_MIN: Final = 1_000
LOGIN_MS_MAX: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """All settings of one controller. Raises InvalidRequest for values that make no sense."""

    data: Path
    """Data directory of this controller alone; created when missing."""

    listen: str = "127.0.0.1:7070"
    """HOST:PORT of the gRPC server; port 0 takes a free one. Any other address than loopback needs
    --tls-dir. Default 127.0.0.1:7070: loopback, which needs none."""

    advertise: str = ""
    """HOST:PORT under which others reach this controller. Default: as it listens."""

    controller_id: int = 1
    """Number of this controller among the controllers, 1 and up. Default 1."""

    cluster_id: str = ""
    """Id of the cluster; a data directory of another cluster is refused. Default: what the data
    directory says. A new directory gets a random one."""

    peers: Mapping[int, str] = field(default_factory=dict)
    """Number and address of every controller of the group, this one among them:
    1=HOST:PORT,2=HOST:PORT,… Default: it is alone."""

    metadata: str = ""
    """Where the metadata is stored: `sqlite` (a file of this controller alone), `embedded` (the
    controllers replicate it) or `zookeeper://HOST:PORT[,HOST:PORT…]/CHROOT`. Default: sqlite for a
    controller that is alone, else embedded."""

    metadata_auth: Path | None = None
    """File with USER:PASSWORD for ZooKeeper's digest scheme: what is stored is for this user alone.
    It is a file because others see the flags of a process. Default: none. Everybody may read and
    write the metadata then."""

    tls_dir: Path | None = None
    """Directory with `ca.pem`, `cert.pem` and `key.pem` of this controller, as `semel security
    issue` makes it: all connections use TLS, and both ends prove who they are. The certificate
    names the cluster, so --cluster-id need not. Replaced files count from the next connection on.
    Default: none, connections are plain."""

    authorization: bool = False
    """Checks each call against the rules of `semel acl`: what no rule allows is denied. Callers are
    known by their certificates, so it needs --tls-dir; an administrator's may do everything. All
    brokers and controllers of a cluster need it. Default: off, whoever has a certificate of the
    cluster may do everything."""

    audit_log: Path | None = None
    """File of the audit log, which gets a line of JSON for each refusal, each login, each change by
    an operator, and each change of rules and users. It rotates at 64 MiB, and 8 older files are
    kept; needs --authorization or --login-listen. Default: none."""

    login_listen: str = ""
    """HOST:PORT of the port on which clients without a certificate log in, with a token or a user
    and a password, and get a certificate for a short time; port 0 takes a free one. Needs
    --tls-dir with `clients-ca.pem`, `clients-ca-key.pem` and `token-keys.json`, as `semel security
    init` makes them. Default: none, nobody logs in here."""

    login_ms_max: int = 3_600_000
    """How long a certificate is valid that a client gets for a login; with a token it ends with the
    token if that is earlier. Default 1 h: so long goes on what was taken away from a user."""

    oidc_issuer: str = ""
    """Issuer of an OpenID provider whose tokens are good for logging in. Default: none, only
    Semel's own are."""

    oidc_keys: str = ""
    """The provider's keys, a JWK set: a file, or an HTTPS address, which is asked now and then.
    Default: none; --oidc-issuer needs it."""

    oidc_audience: str = ""
    """The audience that the provider's tokens must be for. Default: the id of the cluster."""

    oidc_user_claim: str = "sub"
    """The claim of the provider's tokens that is the user. Default `sub`."""

    security: Security | None = field(init=False, default=None)
    """What `tls_dir` holds."""

    metadata_tls: Path | None = None
    """Directory with the TLS files for ZooKeeper, in PEM: `ca.pem`, the CA of its servers'
    certificates, and where they want one of their clients, `cert.pem` and `key.pem`. The servers'
    certificates name the hosts of --metadata, whose port is then ZooKeeper's secure one. Replaced
    files count from the next connection on. Default: none, connections to ZooKeeper are plain."""

    metrics_port: int | None = None
    """Port of `GET /metrics` (Prometheus text), on the host of --listen; 0 takes a free one.
    Default: off."""

    node_timeout_ms: int = 3_000
    """A broker node that was silent for longer is shown as not alive. Default 3 s: three
    reports."""

    preferred_rack: str = ""
    """Rack or site (a broker's `--rack`) in which groups are to have their masters. Default:
    none."""

    preferred_after_ms: int = 60_000
    """How long a slave in the preferred rack must have been fit before it is made master. Default 1
    min: as long as `semel node drain` keeps mastership away by default. A node that is drained for
    longer refuses, and is asked again after this time."""

    broker_call_timeout_ms: int = 5_000
    """Limit of one call to one broker node. Default 5 s: longer than an election, so that a call
    during one succeeds, and shorter than a client's patience."""

    request_timeout_ms: int = 30_000
    """How long a request without a deadline of its own waits for broker groups. Default 30 s."""

    level_max: int = LEVEL_MAX
    """Highest feature level that this controller speaks. With a lower one it behaves as an older
    program would, for rehearsing an upgrade. Default: the newest that this program knows."""

    topics_max: int = 100_000
    """Topics of the cluster, those being created or deleted included. Default 100,000: all routes
    are held in memory, and clients that watch them, too."""

    groups_max: int = 100_000
    """Consumer groups that have members. Default 100,000."""

    group_members_max: int = 10_000
    """Members of one consumer group. Default 10,000: an assignment names each of them."""

    producers_max: int = 1_000_000
    """Producers with a name, which are remembered for ever. Default 1,000,000."""

    watches_max: int = 1_000
    """How many clients may watch the routes here. Those beyond it watch brokers' copies. Default
    1,000."""

    calls_waiting_max: int = 4_096
    """Calls of one class that wait while as many as may go on do: those beyond it are refused.
    Default 4,096."""

    connections_max: int = 32_768
    """Connections at the port; 0 is no limit but that of open files. Default 32,768."""

    connections_per_address_max: int = 8_192
    """Connections at the port from one IP address, behind which many programs may stand; 0 is no
    limit. Default 8,192."""

    stop_ms: int = 500
    """How long running calls may go on when the controller stops; watches are cut after that.
    Default 0.5 s."""

    def __post_init__(self) -> None:
        Address.parse(self.listen)
        if self.advertise:
            Address.parse(self.advertise)
        if self.controller_id < 1:
            raise InvalidRequest(f"controller_id is {self.controller_id}; it begins at 1")
        if self.authorization and self.tls_dir is None:
            raise InvalidRequest("authorization needs tls_dir: callers are known by certificates")
        if self.audit_log is not None and not (self.authorization or self.login_listen):
            raise InvalidRequest(
                "audit_log needs authorization or login_listen: without them nothing is refused"
            )
        self._check_login()
        if self.tls_dir is not None:
            security = Security.of_node(
                self.tls_dir, CONTROLLER, self.controller_id, self.cluster_id
            )
            object.__setattr__(self, "security", security)
            object.__setattr__(self, "cluster_id", security.cluster)
        if self.peers and (len(self.peers) not in GROUP_SIZES or min(self.peers) < 1):
            raise InvalidRequest(
                f"peers names the controllers {sorted(self.peers)}: a group has 1, 3 or 5"
            )
        if self.peers and self.controller_id not in self.peers:
            raise InvalidRequest(
                f"controller_id is {self.controller_id}, but peers names {sorted(self.peers)} only"
            )
        for number, address in self.peers.items():
            Address.parse(address, what=f"address of controller {number}")
        if self.metadata not in ("", SQLITE, EMBEDDED):
            split_zookeeper(self.metadata)
        else:
            for name in ("metadata_auth", "metadata_tls"):
                if getattr(self, name) is not None:
                    raise InvalidRequest(f"{name} is for ZooKeeper, not for {self.metadata_kind}")
        if self.metadata == SQLITE and len(self.peers) > 1:
            raise InvalidRequest("sqlite holds the metadata of one controller, not of several")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65_535:
            raise InvalidRequest(f"metrics_port is {self.metrics_port}; ports end at 65535")
        if not 0 <= self.level_max <= LEVEL_MAX:
            raise InvalidRequest(
                f"level_max is {self.level_max}, this program knows feature levels 0 to {LEVEL_MAX}"
            )
        for name in (
            "node_timeout_ms",
            "preferred_after_ms",
            "broker_call_timeout_ms",
            "request_timeout_ms",
            "topics_max",
            "groups_max",
            "group_members_max",
            "producers_max",
            "watches_max",
            "calls_waiting_max",
            "stop_ms",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be positive")
        for name in ("connections_max", "connections_per_address_max"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; 0 is no limit")

    def _check_login(self) -> None:
        if self.login_listen:
            Address.parse(self.login_listen, what="address for logins")
            if self.tls_dir is None:
                raise InvalidRequest("login_listen needs tls_dir: what clients show is secret")
        if not LOGIN_MS_MIN <= self.login_ms_max <= LOGIN_MS_MAX:
            raise InvalidRequest(
                f"login_ms_max is {self.login_ms_max}; from {LOGIN_MS_MIN} to {LOGIN_MS_MAX} (a"
                " day) make sense, because a certificate cannot be taken back"
            )
        if bool(self.oidc_issuer) is not bool(self.oidc_keys):
            raise InvalidRequest("oidc_issuer and oidc_keys need each other")
        if self.oidc_issuer and not self.login_listen:
            raise InvalidRequest("oidc_issuer needs login_listen: tokens are shown there")

    @property
    def metadata_kind(self) -> str:
        """`sqlite`, `embedded` or `zookeeper`."""
        if self.metadata.startswith(ZOOKEEPER):
            return "zookeeper"
        return self.metadata or (EMBEDDED if len(self.peers) > 1 else SQLITE)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return Address.parse(self.listen).loopback


def split_zookeeper(url: str) -> tuple[tuple[str, ...], str]:
    """Servers and chroot of zookeeper://HOST:PORT[,HOST:PORT…]/CHROOT; raises InvalidRequest."""
    servers, slash, path = url.removeprefix(ZOOKEEPER).partition("/")
    if "@" in servers:
        raise InvalidRequest("user and password do not belong into the address: use metadata_auth")
    parts = path.rstrip("/").split("/")
    named = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    if not url.startswith(ZOOKEEPER) or not slash or not named:
        raise InvalidRequest(
            f"{url!r} is no place for metadata: write sqlite, embedded or "
            "zookeeper://HOST:PORT[,HOST:PORT…]/CHROOT"
        )
    hosts = tuple(servers.split(","))
    for host in hosts:
        Address.parse(host, what="ZooKeeper server")
    return hosts, f"/{'/'.join(parts)}"
