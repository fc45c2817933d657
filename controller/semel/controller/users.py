"""Users that have a password, in the metadata store: one record for each, with the hash.

How it works. Nothing is held in memory: logins and changes are rare. A change checks the version of
the record that it was decided by. A cancelled one may have been stored, and its repetition finds
the user as it then is.

Invariants
1. Whoever reads the metadata finds hashes and no passwords.

Not here: hashes and checks (`protos/security/passwords.py`), logging in (`login/`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from semel.controller import records
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.controller.store import VersionConflict
from semel.protos.errors import InvalidRequest
from semel.protos.levels import USERS_LEVEL, lacking
from semel.protos.security.rules import check_principal
from semel.protos.v1.controller_pb2 import UserChange, UserInfo
from semel.protos.v1.metadata_pb2 import UserRecord

USERS_MAX: Final = 100_000


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

    async def change(self, user: str, change: UserChange, password_hash: str = "") -> bool:
        """Adds, changes or removes a user; False for one to remove that does not exist. Raises
        InvalidRequest, and UnsupportedVersion while the metadata may not hold users."""
        if self._epoch.level < USERS_LEVEL:
            raise lacking(USERS_LEVEL, self._epoch.level, "the controllers' metadata")
        check_principal(f"user:{user}")
        key = records.user_key(user)
        while True:
            entry = await self._epoch.store.get(key)
            if change == UserChange.USER_CHANGE_REMOVE:
                if entry is None:
                    return False
                puts, deletes = dict[str, bytes](), frozenset({key})
            else:
                await self._check(user, change, exists=entry is not None)
                record = UserRecord(password_hash=password_hash, changed_us=self._clock_us())
                puts, deletes = {key: records.dump(record)}, frozenset[str]()
            try:
                await unbroken(
                    self._epoch.transact(
                        checks={key: None if entry is None else entry.version},
                        puts=puts,
                        deletes=deletes,
                    )
                )
            except VersionConflict:
                continue  # somebody else has changed the user: decide again
            return True

    async def list(self) -> list[UserInfo]:
        """All users, by name."""
        found = await self._epoch.store.scan(records.USERS)
        return sorted(
            (
                UserInfo(
                    user=records.user_of(key),
                    changed_us=records.load(UserRecord, key, entry).changed_us,
                )
                for key, entry in found.items()
            ),
            key=lambda info: info.user,
        )

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
