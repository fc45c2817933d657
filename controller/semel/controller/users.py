"""Users that have a password, in the metadata store: one record for each, with the hash, and with
what SCRAM checks the same password by for users who are to have that.

How it works. Nothing is held in memory: logins and changes are rare. A change checks the version of
the record that it was decided by. A cancelled one may have been stored, and its repetition finds
the user as it then is.

Invariants
1. Whoever reads the metadata finds hashes and verifiers of SCRAM, and no passwords.
2. A user's verifiers are of the same password as its hash.
3. While a user has verifiers, there is the secret that all exchanges of SCRAM share.

Not here: hashes and checks (`passwords.py` and `scram.py` in `protos/security/`), logging in
(`login/`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from semel.controller import records
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.store import VersionConflict, Versioned
from semel.protos.errors import InvalidRequest
from semel.protos.levels import SCRAM_LEVEL, USERS_LEVEL, lacking
from semel.protos.security.rules import check_principal
from semel.protos.security.scram import HASHES, SALT_BYTES, Verifier, new_verifier, takes, untaken
from semel.protos.v1.controller_pb2 import UserChange, UserInfo
from semel.protos.v1.metadata_pb2 import ScramSecretRecord, ScramVerifier, UserRecord

USERS_MAX: Final = 100_000
SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A password as it is stored."""

    password_hash: str = field(default="", repr=False)
    scram: Mapping[str, Verifier] | None = field(default=None, repr=False)
    """A verifier for each mechanism; None for a password that SCRAM cannot take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A change of a user that was made."""

    changed: bool
    """False for one to remove that does not exist."""
    scram: bool = False
    """It may log in by SCRAM."""


_NOTHING: Final = Stored()


def new_stored(password: str, *, scram: bool) -> Stored:
    """BLOCKING, some 100 ms. What to store of a password, with `scram` for SCRAM as well if that
    can take it. Raises InvalidRequest as `passwords.check_new`, and ImportError without argon2."""
    from semel.protos.security.passwords import new_hash

    hashed = new_hash(password)
    if not (scram and takes(password)):
        return Stored(password_hash=hashed)
    verifiers = {name: new_verifier(name, password, os.urandom(SALT_BYTES)) for name in HASHES}
    return Stored(password_hash=hashed, scram=verifiers)


class UserService:
    """The users of one controller epoch. `clock_us` is the wall clock."""

    def __init__(
        self, epoch: ControllerEpoch, clock_us: Callable[[], int], users_max: int = USERS_MAX
    ) -> None:
        self._epoch = epoch
        self._clock_us = clock_us
        self._users_max = users_max

    async def hash_of(self, user: str) -> str | None:
        """The hash of a user's password; None for a user that has none."""
        key = records.user_key(user)
        entry = await self._epoch.store.get(key)
        if entry is None:
            return None
        return records.load(UserRecord, key, entry).password_hash

    async def scram_of(self, user: str, mechanism: str) -> tuple[bytes, Verifier | None]:
        """The secret of all exchanges of SCRAM, empty while nobody has a verifier, and a user's
        verifier; None for a user who has none."""
        secret = await self._epoch.store.get(records.SCRAM)
        key = records.user_key(user)
        entry = await self._epoch.store.get(key)
        stored = None if entry is None else records.load(UserRecord, key, entry)
        return (
            _secret(secret),
            None if stored is None else _verifier(stored, mechanism),
        )

    async def change(
        self,
        user: str,
        change: UserChange,
        stored: Stored = _NOTHING,
        *,
        scram: bool | None = None,
    ) -> Changed:
        """Adds, changes or removes a user. `scram` says whether it may log in by SCRAM; None: as it
        was. Raises InvalidRequest, and UnsupportedVersion while the metadata may not hold that."""
        level = self._epoch.level
        needed = SCRAM_LEVEL if scram else USERS_LEVEL
        if level < needed:
            raise lacking(needed, level, "the controllers' metadata")
        check_principal(f"user:{user}")
        key = records.user_key(user)
        while True:
            entry = await self._epoch.store.get(key)
            checks = {key: None if entry is None else entry.version}
            puts, with_scram = dict[str, bytes](), False
            deletes = frozenset[str]()
            if change == UserChange.USER_CHANGE_REMOVE:
                if entry is None:
                    return Changed(changed=False)
                deletes = frozenset({key})
            else:
                await self._check(user, change, exists=entry is not None)
                with_scram = scram if scram is not None else _has_scram(key, entry)
                verifiers = _verifiers(user, stored) if with_scram else []
                record = UserRecord(
                    password_hash=stored.password_hash,
                    changed_us=self._clock_us(),
                    scram=verifiers,
                )
                puts = {key: records.dump(record)}
                if with_scram and await self._epoch.store.get(records.SCRAM) is None:
                    checks[records.SCRAM] = None
                    secret = ScramSecretRecord(secret=os.urandom(SECRET_BYTES))
                    puts[records.SCRAM] = records.dump(secret)
            try:
                await unbroken(self._epoch.transact(checks=checks, puts=puts, deletes=deletes))
            except VersionConflict:
                continue  # somebody else has changed the user: decide again
            return Changed(changed=True, scram=with_scram)

    async def list(self) -> list[UserInfo]:
        """All users, by name."""
        found = await self._epoch.store.scan(records.USERS)
        users = {
            records.user_of(key): records.load(UserRecord, key, entry)
            for key, entry in found.items()
        }
        return [
            UserInfo(user=name, changed_us=user.changed_us, scram=bool(user.scram))
            for name, user in sorted(users.items())
        ]

    async def _check(self, user: str, change: UserChange, *, exists: bool) -> None:
        match change:
            case UserChange.USER_CHANGE_ADD if exists:
                raise InvalidRequest(
                    f"user {user!r} exists already: give it a new password, or remove it"
                )
            case UserChange.USER_CHANGE_ADD:
                count = len(await self._epoch.store.scan(records.USERS))
                if count >= self._users_max:
                    raise InvalidRequest(
                        f"there are {count} users with passwords, the most allowed"
                    )
            case UserChange.USER_CHANGE_PASSWORD if exists:
                pass
            case UserChange.USER_CHANGE_PASSWORD:
                raise InvalidRequest(f"there is no user {user!r} with a password")
            case _:
                raise InvalidRequest("the request does not say what becomes of the user")


def _has_scram(key: str, entry: Versioned | None) -> bool:
    return entry is not None and bool(records.load(UserRecord, key, entry).scram)


def _secret(entry: Versioned | None) -> bytes:
    if entry is None:
        return b""
    return records.load(ScramSecretRecord, records.SCRAM, entry).secret


def _verifier(user: UserRecord, mechanism: str) -> Verifier | None:
    for one in user.scram:
        if one.mechanism == mechanism:
            return Verifier(
                salt=one.salt,
                iterations=one.iterations,
                stored_key=one.stored_key,
                server_key=one.server_key,
            )
    return None


def _verifiers(user: str, stored: Stored) -> list[ScramVerifier]:
    """Raises InvalidRequest for a name or a password that SCRAM cannot take."""
    if not takes(user):
        raise untaken("a name")
    if stored.scram is None:
        raise untaken("a password")
    return [
        ScramVerifier(
            mechanism=name,
            salt=one.salt,
            iterations=one.iterations,
            stored_key=one.stored_key,
            server_key=one.server_key,
        )
        for name, one in stored.scram.items()
    ]
