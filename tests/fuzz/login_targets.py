"""What strangers show at a controller's port for logins: tokens, requests for certificates, and
messages of SCRAM.

Not here: the other decoders of what comes over connections (`wire_targets.py`).
"""

from __future__ import annotations

import json
import random
from typing import Final

import jwt

from semel.client.certified import new_request
from semel.controller.login.clients_ca import requested_key
from semel.protos.errors import InvalidRequest
from semel.protos.security.scram import (
    final_answer,
    nobodys_verifier,
    read_final,
    read_first,
)
from semel.protos.security.token_keys import key_id, new_key, public_keys
from semel.protos.security.tokens import TokenVerifier, issuer_of, new_token
from tests.fuzz.targets import Target

_KEY: Final = new_key()
_CLUSTER: Final = "c"
_VERIFIER: Final = TokenVerifier(_CLUSTER, public_keys(_KEY))
_EXPIRES_S: Final = 2_000_000_000
_FIRSTS: Final = (
    b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
    b"y,a=a=2Cb,n=a=2Cb,r=x,tokenauth=true",
)
_FINALS: Final = (
    b"c=biws,r=xserver,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"c=eSws,r=xserver,e=1,p=AAAA",
)


def _claims() -> list[bytes]:
    """What tokens say; beside it, whole tokens."""
    said = {"sub": "alice", "aud": _CLUSTER, "exp": _EXPIRES_S}
    narrowed = {**said, "semel_rights": ["write topic:orders-*", "describe cluster"], "nbf": 5}
    whole = new_token(_KEY, user="bob", cluster=_CLUSTER, expires_s=_EXPIRES_S)
    return [*(json.dumps(each).encode() for each in (said, narrowed)), whole.encode()]


def _sign(data: bytes, _: random.Random) -> bytes:
    """A token that says this, signed with the right key."""
    if not data.startswith(b"{"):
        return data
    headers = {"kid": key_id(_KEY)}
    return jwt.PyJWS().encode(data, _KEY, algorithm="EdDSA", headers=headers).encode()


def _run_token(data: bytes) -> None:
    token = data.decode("utf-8", "replace")
    _VERIFIER.knows_key(token)
    if not token.startswith("{"):
        issuer_of(token)
        _VERIFIER.verify(token, 1_000.0)


def _run_signing_request(data: bytes) -> None:
    try:
        requested_key(data)
    except InvalidRequest as error:
        if "not signed with its key" not in error.message:  # all else about it is right
            raise


def _run_final(data: bytes) -> None:
    """Nobody's proof is right, whatever it says."""
    final = read_final(data)
    nobodys = nobodys_verifier(b"secret", "SCRAM-SHA-256", "alice")
    first = read_first(b"n,,n=alice,r=x")
    assert final_answer("SCRAM-SHA-256", nobodys, first, final) is None


def login_targets() -> list[Target]:
    """All targets of this module."""
    return [
        Target(name="token", corpus=_claims(), run=_run_token, seal=_sign),
        Target(
            name="signing request",
            corpus=[new_request()[1] for _ in range(4)],
            run=_run_signing_request,
        ),
        Target(name="SCRAM: first message", corpus=_FIRSTS, run=read_first),
        Target(name="SCRAM: final message", corpus=_FINALS, run=_run_final),
    ]
