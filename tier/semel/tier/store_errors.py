"""What the exceptions of `pyarrow.fs` mean: one of the tier's errors for each.

How it works. Arrow raises OSError with the store's own code in its text, as "AWS Error
ACCESS_DENIED". The table lists the codes by whom they ask to act. An error that is in none of them
counts as the store being unavailable: the same call may succeed, and nobody is accused.

Not here: the calls (`store.py`).
"""

from __future__ import annotations

import errno
import re
from typing import Final

from semel.protos.errors import SemelError
from semel.tier.errors import (
    ObjectMissing,
    TierDenied,
    TierFull,
    TierMisconfigured,
    TierUnavailable,
)

_EXPIRED: Final = (
    "EXPIREDTOKEN",
    "EXPIRED_TOKEN",
    "TOKENREFRESHREQUIRED",
    "REQUEST_EXPIRED",
    "TOKEN HAS EXPIRED",
    "CREDENTIALS HAVE EXPIRED",
)
_DENIED: Final = (
    "ACCESS_DENIED",
    "ACCESSDENIED",
    "INVALID_ACCESS_KEY_ID",
    "INVALIDACCESSKEYID",
    "SIGNATURE_DOES_NOT_MATCH",
    "SIGNATUREDOESNOTMATCH",
    "INVALID_CLIENT_TOKEN_ID",
    "INVALID_SIGNATURE",
    "MISSING_AUTHENTICATION_TOKEN",
    "UNRECOGNIZED_CLIENT",
    "INVALIDTOKEN",
    "REQUEST_TIME_TOO_SKEWED",
    "REQUESTTIMETOOSKEWED",
    "ACCOUNTPROBLEM",
    "HTTP STATUS 401",
    "HTTP STATUS 403",
    "PERMISSION DENIED",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "ACCESSCONTROLEXCEPTION",
)
_NO_BUCKET: Final = ("NO_SUCH_BUCKET", "NOSUCHBUCKET", "INVALID_BUCKET_NAME")
_FULL: Final = ("NSQUOTAEXCEEDED", "DSQUOTAEXCEEDED", "QUOTAEXCEEDED", "ENTITYTOOLARGE")
_NO_RIGHT: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def translate(error: Exception, what: str) -> SemelError:
    """Returns the tier's error for one of Arrow's; `what` says which call to which object failed.

    An error of the tier is returned as it is.
    """
    if isinstance(error, SemelError):
        return error
    text = " ".join(str(error).split())
    upper = text.upper()
    number = getattr(error, "errno", None) or _errno(text)

    def says(codes: tuple[str, ...]) -> bool:
        return any(code in upper for code in codes)

    if says(_EXPIRED):
        return TierDenied(f"{what}: the credentials have expired; renew them. {text}")
    if says(_NO_BUCKET):
        return TierMisconfigured(f"{what}: there is no such bucket. {text}")
    if says(_DENIED) or number in _NO_RIGHT:
        return TierDenied(
            f"{what}: refused; check the credentials, their rights and this machine's clock. {text}"
        )
    if says(_FULL) or number in _NO_ROOM:
        return TierFull(f"{what}: no room. {text}")
    if isinstance(error, FileNotFoundError) or number == errno.ENOENT:
        return ObjectMissing(f"{what}: it does not exist. {text}")
    return TierUnavailable(f"{what}: {text or type(error).__name__}")


def _errno(text: str) -> int | None:
    found = re.search(r"\[errno (\d+)\]", text)
    return int(found[1]) if found else None
