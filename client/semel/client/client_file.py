"""The file that tells a client where its cluster is, and who the client is there.

How it works. `SEMEL_CLIENT_CONFIG` names a TOML file, or `SEMEL_PROFILE` a table of
`profiles.toml` in the user's configuration directory. Both have the same keys, and paths in them
are relative to the file:

    bootstrap = "10.0.0.1:7070,10.0.0.2:7070"
    ca = "ca.pem"
    certificate = "cert.pem"
    key = "key.pem"

A file is chosen for one cluster, so its `bootstrap` comes before `SEMEL_BOOTSTRAP`.

Not here: making the certificates (`semel security issue`, which writes such a file as well).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.protos.errors import InvalidRequest
from semel.protos.security.credentials import Security

CONFIG: Final = "SEMEL_CLIENT_CONFIG"
PROFILE: Final = "SEMEL_PROFILE"
_TLS: Final = ("ca", "certificate", "key")
_KEYS: Final = ("bootstrap", *_TLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """What the file says."""

    bootstrap: str = ""
    """The controllers; empty if the file names none."""
    security: Security | None = None


def chosen(environment: Mapping[str, str]) -> ClientFile:
    """BLOCKING. Reads the file that the environment names. Raises InvalidRequest."""
    if path := environment.get(CONFIG):
        return read(Path(path))
    if name := environment.get(PROFILE):
        return read(profiles_path(environment), name)
    return ClientFile()


def profiles_path(environment: Mapping[str, str]) -> Path:
    """Returns the path of the user's profiles."""
    configured = environment.get("XDG_CONFIG_HOME")
    directory = Path(configured) if configured else Path(environment.get("HOME", "/")) / ".config"
    return directory / "semel" / "profiles.toml"


def read(path: Path, profile: str = "") -> ClientFile:
    """BLOCKING. Reads a file, or one profile of it. Raises InvalidRequest."""
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{path} cannot be read: {reason}") from None
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
    given = [key for key in _TLS if key in table]
    security = None
    if given:
        # It brings cryptography, which clients without TLS need not load.
        from semel.protos.security.tls_files import TlsFiles

        if len(given) < len(_TLS):
            raise InvalidRequest(f"{where} needs all of {', '.join(_TLS)}, or none")
        paths = [path.parent / Path(table[name]).expanduser() for name in _TLS]
        security = Security(TlsFiles(*paths))
    return ClientFile(bootstrap=table.get("bootstrap", ""), security=security)
