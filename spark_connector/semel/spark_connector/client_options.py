"""Where the cluster is, and as whom it is asked: options that reads and writes have in common.

How it works. A client file (`semel.client.client_file`) says who the program is: by a certificate,
or where it logs in, with a token, or with a user and a password. Options name the file and the
token. What they do not say is taken from the environment of the process at hand, planner or task,
and what that does not say from the driver's, which travels with the plan. A token of an environment
is no matter of a file with a certificate that an option names. Files are read by each process, at
each connection, so a token's file may get a newer one while a query runs.

Invariants
1. No repr has a token. Spark shows options of its plans without those whose names say `token`.

Not here: the connections (`connections.py`), logging in (`semel.client.login`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.client.client_file import (
    CONFIG,
    PROFILE,
    TOKEN,
    TOKEN_FILE,
    ClientFile,
    chosen,
    profiles_path,
    read,
)
from semel.client.config import DEFAULT_BOOTSTRAP, parse_bootstrap
from semel.protos.errors import InvalidRequest

BOOTSTRAP: Final = "SEMEL_BOOTSTRAP"
CLIENT_OPTIONS: Final = ("bootstrap", "clientConfig", "profile", "token", "tokenFile")
_CHOICES: Final = (
    (("clientConfig", CONFIG), ("profile", PROFILE)),
    (("token", TOKEN), ("tokenFile", TOKEN_FILE)),
)
"""Options that exclude each other, with the variables that say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What the options and the driver's environment say; equal for the same client."""

    bootstrap: str = ""
    """The controllers as the option names them; empty if it does not."""
    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables that take the values of options."""
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables of the driver."""

    def client_file(self, environment: Mapping[str, str]) -> ClientFile:
        """BLOCKING. Reads the client file in a process with this environment, and names the
        controllers. Raises InvalidRequest, Unauthenticated."""
        merged = dict(self.environment)
        for source in (environment, dict(self.given)):
            for choice in _CHOICES:
                names = [name for _, name in choice]
                if any(source.get(name) for name in names):
                    for name in names:
                        merged.pop(name, None)
            merged.update((name, value) for name, value in source.items() if value)
        named = dict(self.given)
        if path := named.get(CONFIG):
            found = read(Path(path), environment=merged)
        elif profile := named.get(PROFILE):
            found = read(profiles_path(merged), profile, environment=merged)
        else:
            found = chosen(merged)
        if found.login is None and (TOKEN in named or TOKEN_FILE in named):
            raise InvalidRequest(
                "a token is given, and the client file does not say where to log in"
            )
        return ClientFile(
            bootstrap=self.bootstrap
            or found.bootstrap
            or dict(self.environment).get(BOOTSTRAP)
            or DEFAULT_BOOTSTRAP,
            security=found.security,
            login=found.login,
        )


def parse_client_options(given: Mapping[str, str], environment: Mapping[str, str]) -> ClientOptions:
    """Takes these options from those of a read or a write. Raises InvalidRequest in one line."""
    bootstrap = given.get("bootstrap", "")
    parse_bootstrap(bootstrap or environment.get(BOOTSTRAP) or DEFAULT_BOOTSTRAP)
    variables: list[tuple[str, str]] = []
    for choice in _CHOICES:
        found = [(option, name) for option, name in choice if option in given]
        if len(found) > 1:
            raise InvalidRequest(
                f"options {found[0][0]!r} and {found[1][0]!r} exclude each other; give one"
            )
        for option, name in found:
            if not given[option].strip():
                raise InvalidRequest(f"option {option!r} is empty")
            variables.append((name, given[option].strip()))
    named = {name for name, _ in variables}
    if named & {TOKEN, TOKEN_FILE} and not (
        named & {CONFIG, PROFILE} or environment.get(CONFIG) or environment.get(PROFILE)
    ):
        option = "token" if TOKEN in named else "tokenFile"
        raise InvalidRequest(
            f"option {option!r} needs a client file that says where to log in: name it by option"
            f" 'clientConfig' or {CONFIG}"
        )
    names = [BOOTSTRAP, *(name for choice in _CHOICES for _, name in choice)]
    return ClientOptions(
        bootstrap=bootstrap,
        given=tuple(variables),
        environment=tuple((name, environment[name]) for name in names if environment.get(name)),
    )
