"""Messages of SASL: what is read, and what anybody may have sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.gateway.principals.proofs import (
    PROOF_BYTES_MAX,
    BadProof,
    Mechanism,
    Proof,
    read_proof,
)

PLAIN, BEARER = Mechanism.PLAIN, Mechanism.OAUTHBEARER
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
PIECES = st.sampled_from(
    [b"\0", b"\x01", b"n,", b"a=alice", b",", b"auth=", b"Bearer ", b"tok.en", b"\xff", b"="]
)


@given(TEXT, TEXT)
def test_a_user_and_a_password_come_back(user: str, password: str) -> None:
    for acts_as in ("", user):
        message = "\0".join((acts_as, user, password)).encode()
        found = read_proof(PLAIN, memoryview(message))
        assert found == Proof(PLAIN, user=user, password=password)
        assert password not in repr(found) or password in repr(Proof(PLAIN, user=user))


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"n,,\x01auth=Bearer a.b-c\x01\x01", ""),
        (b"n,a=al=2Cice=3D,\x01auth=Bearer a.b-c\x01\x01", "al,ice="),
        (b"n,,\x01host=x\x01auth=bearer a.b-c\x01port=1\x01\x01", ""),
        (b"n,,\x01auth=Bearer  a.b-c\x01\x01", ""),
    ],
)
def test_a_token_comes_back(message: bytes, user: str) -> None:
    assert read_proof(BEARER, message) == Proof(BEARER, user=user, token="a.b-c")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0\0secret",
        b"\0alice\0",
        b"\0alice\0secret\0",
        b"bob\0alice\0secret",
        b"\0alice\0\xff",
        b"\0" + b"a" * 2_000 + b"\0secret",
        b"\0alice\0" + b"s" * 5_000,
        b"\0alice\0" + b"s" * PROOF_BYTES_MAX,
    ],
)
def test_what_is_no_plain_message_is_refused(message: bytes) -> None:
    with pytest.raises(BadProof) as refused:
        read_proof(PLAIN, message)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer secret",
        b"p=x,,\x01auth=Bearer secret\x01\x01",
        b"n,b=alice,\x01auth=Bearer secret\x01\x01",
        b"n,a=alice\x01auth=Bearer secret\x01\x01",
        b"n,,\x01auth=Basic secret\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer secret secret\x01\x01",
        b"n,,\x01auth=Bearer secret\x01auth=Bearer secret\x01\x01",
        b"n,,\x01auth=Bearer \xc3\xa4secret\x01\x01",
        b"n,a=" + b"a" * 2_000 + b",\x01auth=Bearer secret\x01\x01",
    ],
)
def test_what_is_no_bearer_message_is_refused(message: bytes) -> None:
    with pytest.raises(BadProof) as refused:
        read_proof(BEARER, message)
    assert "secret" not in str(refused.value)


@given(st.sampled_from([PLAIN, BEARER]), st.binary() | st.lists(PIECES, max_size=12).map(b"".join))
def test_any_bytes_are_a_proof_or_refused(mechanism: Mechanism, message: bytes) -> None:
    try:
        proof = read_proof(mechanism, message)
    except BadProof:
        return
    assert bool(proof.token) is (mechanism is BEARER)
    assert bool(proof.user and proof.password) is (mechanism is PLAIN)
