"""Which names can be those of users. Pure.

Not here: who exists (`users.py`).
"""

from __future__ import annotations

from semel.protos.errors import InvalidRequest
from semel.protos.security.identity import NAME_CHARS_MAX
from semel.protos.security.rules import check_principal


def known_name(user: str) -> str:
    """`user`, if rules can be about it; else nothing, because it may be anything."""
    try:
        check_principal(f"user:{user}")
    except InvalidRequest:
        return ""
    return user


def can_log_in(user: str) -> bool:
    """Whether a user of this name may exist, and a certificate can state it."""
    return bool(known_name(user)) and len(user) <= NAME_CHARS_MAX
