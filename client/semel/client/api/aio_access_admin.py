"""The part of `AsyncAdmin` about who may do what, how much of it, and who logs in.

The synchronous half, `api/sync_access_admin.py`, is generated from this module by
`tools/unasync.py`, which explains the marks in the comments.

Not here: what the calls do (`admin/rights.py`, `admin/quotas.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.client.admin import quotas, rights
from semel.client.admin.quotas import QuotaInfo
from semel.client.admin.rights import AccessDecision, AccessRules, PasswordUser, WhoAmI
from semel.client.session import Session


class AsyncAccessAdmin:
    """Administrative calls about rights, quotas and users."""

    _session: Session

    async def change_access_rules(
        self,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        add_members: Mapping[str, Sequence[str]] | None = None,
        remove_members: Mapping[str, Sequence[str]] | None = None,
    ) -> bool:
        """Changes rules, `allow|deny PRINCIPAL ACTION RESOURCE`, and members (`user:NAME`) of
        groups; False if all is so already. Raises InvalidRequest, PermissionDenied."""
        return await self._session.await_run(
            rights.change_rules(
                self._session.cluster, add, remove, add_members or {}, remove_members or {}
            )
        )

    async def access_rules(self) -> AccessRules:
        """Returns all rules and groups of principals. Raises PermissionDenied."""
        return await self._session.await_run(rights.list_rules(self._session.cluster))

    async def check_access(self, principal: str, action: str, resource: str) -> AccessDecision:
        """Returns whether a principal may do something, and the rule that decides."""
        return await self._session.await_run(
            rights.check_right(self._session.cluster, principal, action, resource)
        )

    async def set_quotas(self, subject: str, limits: Mapping[str, int]) -> bool:
        """Sets limits by kind, such as `{"write-bytes": 10 << 20}`, for `user:NAME`, `group:NAME`,
        `*` (every other user) or `topic:NAME`; False if they are so already. See docs/quotas.md.
        Raises InvalidRequest, PermissionDenied."""
        return await self._session.await_run(
            quotas.set_quotas(self._session.cluster, subject, limits)
        )

    async def remove_quotas(self, subject: str, kinds: Sequence[str] = ()) -> bool:
        """Removes quotas of a subject, by default all of them; False if there were none. Raises
        InvalidRequest, PermissionDenied."""
        return await self._session.await_run(
            quotas.remove_quotas(self._session.cluster, subject, kinds)
        )

    async def quotas(self, of: str = "") -> list[QuotaInfo]:
        """Returns all quotas, or those that apply to `user:NAME` or `topic:NAME`. Raises
        InvalidRequest, PermissionDenied."""
        return await self._session.await_run(quotas.list_quotas(self._session.cluster, of))

    async def who_am_i(self) -> WhoAmI:
        """Returns the caller as the cluster knows it."""
        return await self._session.await_run(rights.who_am_i(self._session.cluster))

    async def add_user(self, user: str, password: str, *, scram: bool = False) -> None:
        """Adds a user who logs in with a password; with `scram` by SCRAM as well, at a Kafka
        gateway. Raises InvalidRequest for one that exists, for a password of less than 8
        characters, and with `scram` for what is not printable ASCII; UnsupportedVersion below
        feature level 10."""
        await self._session.await_run(rights.add_user(self._session.cluster, user, password, scram))

    async def change_password(self, user: str, password: str, *, scram: bool | None = None) -> None:
        """Gives a user a new password, for SCRAM as well or not; None: as before. Raises as
        `add_user`, and InvalidRequest for one that does not exist."""
        await self._session.await_run(
            rights.change_password(self._session.cluster, user, password, scram)
        )

    async def remove_user(self, user: str) -> bool:
        """Ends the logins of a user; False if there is none. Certificates that it has got go on
        until they expire."""
        return await self._session.await_run(rights.remove_user(self._session.cluster, user))

    async def list_users(self) -> list[PasswordUser]:
        """Returns the users that have a password, by name."""
        return await self._session.await_run(rights.list_users(self._session.cluster))
