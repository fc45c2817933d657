"""Quotas: what `client.admin` asks the controllers about them.

Not here: what quotas mean (`semel.protos.security.quotas`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest
from semel.protos.security.quotas import LIMIT_MAX, QuotaKind
from semel.protos.v1 import controller_pb2
from semel.protos.v1.metadata_pb2 import Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaInfo:
    """One quota."""

    subject: str
    """What it is set for: `user:NAME`, `group:NAME`, `*` or `topic:NAME`."""
    kind: str
    """What it limits, such as `write-bytes`."""
    limit: int
    """To how much; for bytes, messages and requests a second."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


async def set_quotas(cluster: Cluster, subject: str, limits: Mapping[str, int]) -> bool:
    """Sets limits by kind; False if they were so already. Raises SemelError."""
    if not limits:
        raise InvalidRequest("no limit is given")
    for limit in limits.values():
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= LIMIT_MAX:
            raise InvalidRequest(f"a limit is a whole number from 0 to {LIMIT_MAX}, not {limit!r}")
    request = controller_pb2.ChangeQuotasRequest(
        set=[_quota(subject, kind, limit) for kind, limit in limits.items()]
    )
    return bool((await cluster.controller("ChangeQuotas", request)).changed)


async def remove_quotas(cluster: Cluster, subject: str, kinds: Sequence[str]) -> bool:
    """Removes quotas, all of the subject without kinds; False if there were none. Raises
    SemelError."""
    removed = [_quota(subject, kind) for kind in kinds] or [Quota(subject=subject)]
    request = controller_pb2.ChangeQuotasRequest(remove=removed)
    return bool((await cluster.controller("ChangeQuotas", request)).changed)


async def list_quotas(cluster: Cluster, of: str) -> list[QuotaInfo]:
    """All quotas, or those that apply to `of`. Raises SemelError."""
    reply = await cluster.controller("ListQuotas", controller_pb2.ListQuotasRequest(of=of))
    return [
        QuotaInfo(subject=each.subject, kind=QuotaKind.of(each.kind).value, limit=each.limit)
        for each in reply.quotas
    ]


def _quota(subject: str, kind: str, limit: int = 0) -> Quota:
    return Quota(
        subject=subject,
        kind=QuotaKind.parse(kind).number,  # type: ignore[arg-type]
        limit=limit,
    )
