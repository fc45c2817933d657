"""A directory with a cluster's CA and the certificates that it has issued.

How it works. Each identity has a directory of its own, which is copied to where its program runs:

    DIR/ca.pem, ca-key.pem            the CA; the key leaves this directory never
    DIR/broker-1/  ca.pem cert.pem key.pem      and so on for each node
    DIR/admin/     the same, and client.toml for `--client-config`
    DIR/client-NAME/  the same; and server.pem, server-key.pem where the program serves others
                      than Semel's under the names of its hosts, as a Kafka gateway does
    DIR/clients-ca.pem, clients-ca-key.pem      the clients' CA, for those who log in
    DIR/token-key.pem, token-keys.json          the key that signs tokens, and its public half
    DIR/login/     ca.pem, and client.toml for those who log in: nothing in it is secret

Nodes trust the clients' CA for callers, so clients-ca.pem is in the directory of each node. The
controllers log clients in: clients-ca-key.pem and token-keys.json are in theirs as well.

Files are replaced one by one, each by a rename: whoever reads one has the old or the new, and
running programs use what fits together (`tls_files.py`).

A change of the CA takes three steps, between which the files are copied to all machines: `add_ca`
makes a new CA and lets everybody trust both, `renew` issues all certificates by the new one, and
`forget_old_cas` ends the trust in those before. The clients' CA and the key of tokens change in two
steps: `renew_logins` makes new ones beside those before, `forget_old_logins` ends the trust in
these.

Invariants
1. Private keys have mode 0600 from the moment they exist.
2. The CA that issues is the one in ca.pem to which ca-key.pem belongs.
3. All nodes have the clients' CA before a controller has its key.

Not here: what a certificate states (`certificates.py` of the protos), output (`security.py`).
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from semel.console.cluster_file import CLIENT_FILE, SECURITY
from semel.protos.errors import InvalidRequest
from semel.protos.security import certificates, token_keys
from semel.protos.security.identity import ADMIN, CLIENT, CONTROLLER, Identity, cluster_of_uri
from semel.protos.security.tls_files import (
    CLIENTS_CA,
    TlsFileError,
    check_key_mode,
    identity_of_certificate,
    is_issued,
    read_certificates,
)

CA_DAYS: Final = 3650
DAYS: Final = 365
_CA: Final = "ca.pem"
_CA_KEY: Final = "ca-key.pem"
_CERTIFICATE: Final = "cert.pem"
_KEY: Final = "key.pem"
_SERVER: Final = "server.pem"
_SERVER_KEY: Final = "server-key.pem"
_CLIENTS_CA_KEY: Final = "clients-ca-key.pem"
_TOKEN_KEY: Final = "token-key.pem"  # noqa: S105 (the name of a file)
_TOKEN_KEYS: Final = "token-keys.json"  # noqa: S105 (the name of a file)
LOGIN: Final = "login"
"""The directory of those who log in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """One certificate in the directory."""

    directory: Path
    identity: Identity
    not_after: datetime.datetime

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": self.identity.kind,
            "name": self.identity.name,
            "cluster_id": self.identity.cluster,
            "uri": self.identity.uri,
            "expires": self.not_after.isoformat(),
            "directory": str(self.directory),
        }


class Authority:
    """The CA in a directory. BLOCKING throughout."""

    def __init__(self, directory: Path) -> None:
        """Raises TlsFileError for a directory that holds no CA, or one that is damaged."""
        self.directory = directory
        self.ca_path = directory / _CA
        self._cas = read_certificates(_read(self.ca_path), self.ca_path)
        self._ca, self._key = _load_key(directory / _CA_KEY, self._cas, self.ca_path)
        self.cluster = _cluster_of(self._ca, self.ca_path)

    @classmethod
    def create(cls, directory: Path, cluster: str, days: int = CA_DAYS) -> Authority:
        """Makes a CA. Raises InvalidRequest where there is one."""
        if (directory / _CA_KEY).exists() or (directory / _CA).exists():
            raise InvalidRequest(
                f"{directory} holds a CA already: `semel security issue` makes further "
                "certificates, and `semel security renew` new ones"
            )
        Identity(ADMIN, "admin", cluster)  # raises for an id that no certificate could state
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key = certificates.new_authority(cluster, _now(), days)
        write_file(directory / _CA_KEY, certificates.key_pem(key), secret=True)
        write_file(directory / _CA, certificates.certificate_pem(certificate))
        return cls(directory)

    @property
    def not_after(self) -> datetime.datetime:
        """When the CA that issues expires."""
        return self._ca.not_valid_after_utc

    @property
    def clients_ca_path(self) -> Path:
        """The file of the clients' CA; there is none without logins."""
        return self.directory / CLIENTS_CA

    @property
    def clients_not_after(self) -> datetime.datetime | None:
        """When the clients' CA in use expires; None for none. Raises TlsFileError."""
        path = self.clients_ca_path
        if not path.exists():
            return None
        return read_certificates(_read(path), path)[0].not_valid_after_utc

    def place(self, identity: Identity) -> Path:
        """Returns the directory of an identity."""
        name = identity.name
        if not identity.is_node and not _is_file_name(name):
            raise InvalidRequest(
                f"{name!r} is no name of a directory: use letters, digits, '.', '-', '_' and '@'"
            )
        if identity == Identity(ADMIN, "admin", self.cluster):
            return self.directory / "admin"
        return self.directory / f"{identity.kind}-{name}"

    def issue(self, identity: Identity, days: int = DAYS, bootstrap: str = "") -> Issued:
        """Issues a certificate in the place of whatever was there.

        A client and an administrator get a file for --client-config that names `bootstrap`.
        """
        directory = self.place(identity)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key = certificates.issue(identity, self._ca, self._key, _now(), days)
        write_file(directory / _CA, self._ca_pem())
        write_file(directory / _KEY, certificates.key_pem(key), secret=True)
        write_file(directory / _CERTIFICATE, certificates.certificate_pem(certificate))
        if identity.is_node and self.has_logins:
            self._give_trust(directory)
            if identity.kind == CONTROLLER:
                self._give_keys(directory)
        if identity.kind in (ADMIN, CLIENT) and (
            bootstrap or not (directory / CLIENT_FILE).exists()
        ):
            write_file(directory / CLIENT_FILE, _client_file(bootstrap))
        if (directory / _SERVER).exists():
            before = read_certificates(_read(directory / _SERVER), directory / _SERVER)[0]
            self.issue_server(identity, certificates.hosts_of(before), days)
        return Issued(
            directory=directory, identity=identity, not_after=certificate.not_valid_after_utc
        )

    def issue_server(self, identity: Identity, hosts: Sequence[str], days: int = DAYS) -> Path:
        """Issues a certificate for the port of a program that serves others than Semel's under
        these names or addresses of its hosts; `issue` renews it with the identity's. Returns the
        file of the certificate, with the key beside it. Raises InvalidRequest.
        """
        directory = self.place(identity)
        certificate, key = certificates.issue_server(hosts, self._ca, self._key, _now(), days)
        write_file(directory / _SERVER_KEY, certificates.key_pem(key), secret=True)
        write_file(directory / _SERVER, certificates.certificate_pem(certificate))
        return directory / _SERVER

    def issued(self) -> Iterator[Issued]:
        """All certificates in the directory, by name. Raises TlsFileError for a damaged one."""
        for path in sorted(self.directory.glob(f"*/{_CERTIFICATE}")):
            yield show(path)

    def renew(self, days: int = DAYS, within_days: int | None = None) -> list[Issued]:
        """Issues all certificates anew, or those alone that expire within so many days."""
        limit = _now() + datetime.timedelta(days=within_days or 0)
        return [
            self.issue(one.identity, days)
            for one in list(self.issued())
            if within_days is None or one.not_after <= limit
        ]

    def add_ca(self, days: int = CA_DAYS) -> None:
        """Makes a new CA, which issues from now on; all trust it beside those before."""
        certificate, key = certificates.new_authority(self.cluster, _now(), days)
        self._cas.insert(0, certificate)
        self._distribute()
        # After a crash before this, the CA before goes on issuing.
        write_file(self.directory / _CA_KEY, certificates.key_pem(key), secret=True)
        self._ca, self._key = certificate, key

    def forget_old_cas(self) -> None:
        """Ends the trust in all CAs but the one that issues.

        Raises InvalidRequest while a certificate is of another one.
        """
        for one in self.issued():
            certificate = read_certificates(_read(one.directory / _CERTIFICATE), one.directory)[0]
            if not is_issued(certificate, self._ca):
                raise InvalidRequest(
                    f"{one.directory} has a certificate of an older CA: `semel security renew` "
                    "first, and bring the new files to all machines"
                )
        self._cas = [self._ca]
        self._distribute()

    @property
    def has_logins(self) -> bool:
        """Whether there is a clients' CA and a key of tokens."""
        return (self.directory / _TOKEN_KEYS).exists()

    def renew_logins(self, days: int = CA_DAYS) -> None:
        """Makes a clients' CA and a key of tokens, which are used from now on; those before stay
        good."""
        ca_path, keys_path = self.directory / CLIENTS_CA, self.directory / _TOKEN_KEYS
        certificate, key = certificates.new_clients_authority(self.cluster, _now(), days)
        before = _read(ca_path) if ca_path.exists() else b""
        signing = token_keys.new_key()
        public = [token_keys.public_jwk(signing)]
        if keys_path.exists():
            public += json.loads(_read(keys_path))["keys"]
        write_file(ca_path, certificates.certificate_pem(certificate) + before)
        self._give_to_nodes()  # all trust it before it issues
        write_file(self.directory / _CLIENTS_CA_KEY, certificates.key_pem(key), secret=True)
        write_file(self.directory / _TOKEN_KEY, token_keys.private_pem(signing), secret=True)
        write_file(keys_path, json.dumps({"keys": public}, indent=2).encode())
        self._give_to_nodes()

    def forget_old_logins(self) -> None:
        """Ends the trust in all clients' CAs and keys of tokens but the newest. Raises
        InvalidRequest without one."""
        if not self.has_logins:
            raise InvalidRequest(f"{self.directory} has no clients' CA: make one with --logins")
        path = self.directory / CLIENTS_CA
        newest = read_certificates(_read(path), path)[0]
        public = token_keys.public_keys(self.token_key())
        write_file(self.directory / _TOKEN_KEYS, public.encode())
        write_file(path, certificates.certificate_pem(newest))
        self._give_to_nodes()

    def token_key(self) -> Ed25519PrivateKey:
        """The key that signs tokens. Raises TlsFileError."""
        path = self.directory / _TOKEN_KEY
        check_key_mode(path)
        return token_keys.read_private(_read(path))

    def write_login_file(self, bootstrap: str, login: str) -> Path:
        """Writes the file for --client-config of those who log in at the addresses `login`."""
        directory = self.directory / LOGIN
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        lines = [f"bootstrap = {json.dumps(bootstrap)}"] if bootstrap else []
        lines += [f'ca = "{_CA}"', f"login = {json.dumps(login)}"]
        lines += [f"cluster_id = {json.dumps(self.cluster)}"]
        write_file(directory / _CA, self._ca_pem())
        write_file(directory / CLIENT_FILE, ("\n".join(lines) + "\n").encode())
        return directory / CLIENT_FILE

    def _give_to_nodes(self) -> None:
        nodes = [one for one in self.issued() if one.identity.is_node]
        for one in nodes:
            self._give_trust(one.directory)
        if self.has_logins:
            for one in nodes:
                if one.identity.kind == CONTROLLER:
                    self._give_keys(one.directory)

    def _give_trust(self, directory: Path) -> None:
        write_file(directory / CLIENTS_CA, _read(self.directory / CLIENTS_CA))

    def _give_keys(self, directory: Path) -> None:
        key = _read(self.directory / _CLIENTS_CA_KEY)
        write_file(directory / _CLIENTS_CA_KEY, key, secret=True)
        write_file(directory / _TOKEN_KEYS, _read(self.directory / _TOKEN_KEYS))

    def _distribute(self) -> None:
        write_file(self.ca_path, self._ca_pem())
        for path in self.directory.glob(f"*/{_CA}"):
            write_file(path, self._ca_pem())

    def _ca_pem(self) -> bytes:
        return b"".join(map(certificates.certificate_pem, self._cas))


def ensure(
    directory: Path,
    cluster: str,
    nodes: Iterable[Identity],
    bootstrap: str,
    login: str,
    renew_days: int,
) -> Authority:
    """BLOCKING. Makes what is missing: the CA, the nodes' certificates and an administrator's, and
    what those need who log in at the addresses `login`.

    Those that expire within `renew_days` are renewed.
    """
    if (directory / _CA).exists():
        authority = Authority(directory)
        authority.renew(within_days=renew_days)
    else:
        authority = Authority.create(directory, cluster)
    for identity in nodes:
        if not (authority.place(identity) / _CERTIFICATE).exists():
            authority.issue(identity)
    admin = Identity(ADMIN, "admin", cluster)
    if not (authority.place(admin) / _CERTIFICATE).exists():
        authority.issue(admin, bootstrap=bootstrap)
    if not authority.has_logins:
        authority.renew_logins()
    if login and not (authority.directory / LOGIN / CLIENT_FILE).exists():
        authority.write_login_file(bootstrap, login)
    return authority


def within_up(directory: Path) -> Path:
    """BLOCKING. The directory of the CA, which in that of a `semel up --secure` is below it."""
    below = directory / SECURITY
    return below if (below / _CA).exists() and not (directory / _CA).exists() else directory


def show(certificate: Path) -> Issued:
    """BLOCKING. Returns what a certificate states. Raises TlsFileError."""
    found = read_certificates(_read(certificate), certificate)[0]
    identity = identity_of_certificate(found)
    if identity is None:
        raise TlsFileError(f"{certificate} names no identity of Semel")
    return Issued(
        directory=certificate.parent, identity=identity, not_after=found.not_valid_after_utc
    )


def _client_file(bootstrap: str) -> bytes:
    lines = [f"bootstrap = {json.dumps(bootstrap)}"] if bootstrap else []
    lines += [f'ca = "{_CA}"', f'certificate = "{_CERTIFICATE}"', f'key = "{_KEY}"']
    return ("\n".join(lines) + "\n").encode()


def _cluster_of(ca: x509.Certificate, path: Path) -> str:
    try:
        names = ca.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        return cluster_of_uri(uri)
    except (x509.ExtensionNotFound, ValueError, InvalidRequest):
        raise TlsFileError(f"{path} is no CA that `semel security init` has made") from None


def _load_key(
    path: Path, cas: list[x509.Certificate], ca_path: Path
) -> tuple[x509.Certificate, certificates.PrivateKey]:
    """Returns the CA that issues, with its private key."""
    check_key_mode(path)
    try:
        key = serialization.load_pem_private_key(_read(path), None)
    except (ValueError, TypeError) as error:
        raise TlsFileError(f"{path} holds no private key in PEM: {error}") from None
    found = [ca for ca in cas if ca.public_key() == key.public_key()]
    if not found or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TlsFileError(f"{path} is not the key of a CA in {ca_path}")
    return found[0], key


def _is_file_name(name: str) -> bool:
    return not name.startswith(".") and all(c.isalnum() or c in ".-_@" for c in name)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFileError(f"{path} cannot be read: {error.strerror}") from None


def write_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """BLOCKING. Replaces a file in one step; one that is `secret` is for its owner alone."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
