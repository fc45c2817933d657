"""The file that tells a client where its cluster is, and who the client is there.

How it works. `SEMEL_CLIENT_CONFIG` names a TOML file, or `SEMEL_PROFILE` a table of
`profiles.toml` in the user's configuration directory. Both have the same keys, and paths in them
are relative to the file. A client has a certificate, or logs in:

    bootstrap = "10.0.0.1:7070,10.0.0.2:7070"       bootstrap = "10.0.0.1:7070,10.0.0.2:7070"
    ca = "ca.pem"                                   ca = "ca.pem"
    certificate = "cert.pem"                        login = "10.0.0.1:7072,10.0.0.2:7072"
    key = "key.pem"                                 token_file = "token"

In place of `token_file` there may be `token` itself, or `user` and `password_file`. `SEMEL_TOKEN`
(a token) and `SEMEL_TOKEN_FILE` come before what the file says, if it has `login`. A file is chosen
for one cluster, so its `bootstrap` comes before `SEMEL_BOOTSTRAP`.

Not here: making the certificates (`semel security issue`, which writes such a file as well),
logging in (`login.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.client.login import Login, check_secret_mode
from semel.protos.errors import InvalidRequest, Unauthenticated
from semel.protos.security.credentials import Security

CONFIG: Final = "SEMEL_CLIENT_CONFIG"
PROFILE: Final = "SEMEL_PROFILE"
TOKEN: Final = "SEMEL_TOKEN"  # noqa: S105 (the name of a variable)
TOKEN_FILE: Final = "SEMEL_TOKEN_FILE"  # noqa: S105 (the name of a variable)
_CERTIFIED: Final = ("certificate", "key")
_PROOFS: Final = ("token", "token_file", "user", "password_file")
_KEYS: Final = ("bootstrap", "ca", *_CERTIFIED, "login", "cluster_id", *_PROOFS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """What the file says."""

    bootstrap: str = ""
    """The controllers; empty if the file names none."""
    security: Security | None = None
    """The client's certificate."""
    login: Login | None = None
    """How it logs in, if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPlace:
    """Where clients log in, for a program that logs in for others."""

    addresses: str
    ca: Path
    cluster_id: str

    def login(self, **proof: str) -> Login:
        """Returns a login there. Raises InvalidRequest for a proof that is none."""
        return Login(addresses=self.addresses, ca=self.ca, cluster_id=self.cluster_id, **proof)


def login_place(path: Path) -> LoginPlace:
    """BLOCKING. Reads from a file where clients log in. Raises InvalidRequest."""
    table = _table(path)
    if not all(isinstance(table.get(key), str) for key in ("login", "ca")):
        raise InvalidRequest(f"{path} does not say where to log in: it needs login and ca")
    return LoginPlace(
        addresses=table["login"],
        ca=_path(path.parent, table["ca"]),
        cluster_id=str(table.get("cluster_id", "")),
    )


def chosen(environment: Mapping[str, str]) -> ClientFile:
    """BLOCKING. Reads the file that the environment names. Raises InvalidRequest, and
    Unauthenticated for one that says where to log in, and neither says as whom."""
    found = ClientFile()
    if path := environment.get(CONFIG):
        found = read(Path(path), environment=environment)
    elif name := environment.get(PROFILE):
        found = read(profiles_path(environment), name, environment=environment)
    if found.login is None:
        for name in (TOKEN, TOKEN_FILE):
            if environment.get(name):
                raise InvalidRequest(
                    f"{name} is set, and no client file says where to log in: name one with `login`"
                    " and `ca`, as `semel security init` writes it"
                )
    return found


def profiles_path(environment: Mapping[str, str]) -> Path:
    """Returns the path of the user's profiles."""
    configured = environment.get("XDG_CONFIG_HOME")
    directory = Path(configured) if configured else Path(environment.get("HOME", "/")) / ".config"
    return directory / "semel" / "profiles.toml"


def read(
    path: Path, profile: str = "", *, environment: Mapping[str, str] | None = None
) -> ClientFile:
    """BLOCKING. Reads a file, or one profile of it. Raises as `chosen`."""
    table = _table(path)
    where = str(path)
    if profile:
        where = f"profile {profile!r} of {path}"
        found = table.get(profile)
        if not isinstance(found, dict):
            known = ", ".join(sorted(table)) or "none"
            raise InvalidRequest(f"{path} has no profile {profile!r}, its profiles are: {known}")
        table = found
    for key, value in table.items():
        if key not in _KEYS or not isinstance(value, str):
            raise InvalidRequest(f"{where}: {key!r} is no setting: it has {', '.join(_KEYS)}")
    if "token" in table:
        check_secret_mode(path)
    security = login = None
    if "login" in table:
        login = _login(path.parent, where, table, environment or {})
    elif any(key in table for key in ("ca", *_CERTIFIED, *_PROOFS, "cluster_id")):
        security = _certified(path.parent, where, table)
    return ClientFile(bootstrap=table.get("bootstrap", ""), security=security, login=login)


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{path} cannot be read: {reason}") from None


def _certified(directory: Path, where: str, table: Mapping[str, str]) -> Security:
    # It brings cryptography, which clients without TLS need not load.
    from semel.protos.security.tls_files import TlsFiles

    given = ("ca", *_CERTIFIED)
    if not all(key in table for key in given):
        raise InvalidRequest(
            f"{where} needs all of {', '.join(given)}, or ca and login, or nothing of that"
        )
    if wrong := [key for key in (*_PROOFS, "cluster_id") if key in table]:
        raise InvalidRequest(f"{where}: {wrong[0]!r} is for logging in, and it has no `login`")
    return Security(TlsFiles(*(_path(directory, table[key]) for key in given)))


def _login(
    directory: Path, where: str, table: Mapping[str, str], environment: Mapping[str, str]
) -> Login:
    if "ca" not in table:
        raise InvalidRequest(f"{where} needs ca: it says to whom a token may be shown")
    if wrong := [key for key in _CERTIFIED if key in table]:
        raise InvalidRequest(f"{where} has {wrong[0]} and login: one of them is enough")
    proof: dict[str, Any] = {key: table[key] for key in _PROOFS if key in table}
    for key in ("token_file", "password_file"):
        if key in proof:
            proof[key] = _path(directory, proof[key])
    if token := environment.get(TOKEN):
        proof = {"token": token}
    elif file := environment.get(TOKEN_FILE):
        proof = {"token_file": Path(file)}
    if not proof:
        raise Unauthenticated(
            f"{where} says where to log in and not as whom: set {TOKEN} or {TOKEN_FILE}, or write"
            " token_file, or user and password_file"
        )
    return Login(
        addresses=table["login"],
        ca=_path(directory, table["ca"]),
        cluster_id=table.get("cluster_id", ""),
        **proof,
    )


def _path(directory: Path, name: str) -> Path:
    return directory / Path(name).expanduser()
