"""SCRAM's messages and verifiers: the RFC's own exchange, and everything that is none."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from semel.protos.security.scram import (
    HASHES,
    ITERATIONS,
    MESSAGE_BYTES_MAX,
    Verifier,
    final_answer,
    first_answer,
    new_verifier,
    nobodys_verifier,
    read_final,
    read_first,
    server_nonce_of,
    takes,
)
from tests.kit.scram_client import ScramClient

NONCE = "rOprNGfwEbeRWgbNEkqO"
RFC_7677 = (
    "SCRAM-SHA-256",
    base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="),
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
SCRAMP = (
    "SCRAM-SHA-512",
    base64.b64decode("Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88="),
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "s=Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "p=/3obeUE1tHCJjbQttd+ChF5ox2IU1rNjj2wVDnbQ5LdNT126oy4QgLz2tHw/"
    "Uj7Gwb6PRuHOS3HC+45exxT58A==",
    "v=5AwW78p+EVPirB3A5lrHcvrN8pVKRlR3opLuRoxXrN9ubKokkPzVPzWNNNuBbrtZrv5mpfKZ7+QCDSZWeZQEqw==",
)
"""Between server and client of the package scramp 1.5.0: RFC 7677 has no exchange of SHA-512."""
FIRST = f"n,,n=user,r={NONCE}"


@pytest.mark.parametrize("vector", [RFC_7677, SCRAMP], ids=["RFC 7677", "scramp"])
def test_known_exchanges_are_answered_as_they_were(
    vector: tuple[str, bytes, str, str, str, str],
) -> None:
    mechanism, salt, nonce, answer, final_text, last = vector
    verifier = new_verifier(mechanism, "pencil", salt, 4_096)
    first, final = read_first(FIRST.encode()), read_final(final_text.encode())
    assert (first.user, first.nonce) == ("user", NONCE)
    assert first_answer(first, nonce, verifier) == answer
    assert server_nonce_of(first, final) == nonce
    assert final_answer(mechanism, verifier, first, final) == last


def exchange(client: ScramClient, verifier: Verifier, binding: str | None = None) -> str | None:
    first = read_first(client.first)
    answer = first_answer(first, "server", verifier)
    final = read_final(client.final(answer.encode(), binding=binding))
    return final_answer(client.mechanism, verifier, first, final)


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=a=2Cb=3D,"])
def test_both_sides_prove_that_they_know_the_password(mechanism: str, header: str) -> None:
    verifier = new_verifier(mechanism, "correct horse", b"s" * 16, 4_096)
    client = ScramClient("a,b=", "correct horse", mechanism, header=header)
    assert read_first(client.first).user == "a,b="
    answer = exchange(client, verifier)
    assert answer is not None
    assert client.believes(answer.encode())
    wrong = ScramClient("a,b=", "correct hors", mechanism, header=header)
    assert exchange(wrong, verifier) is None


def test_a_header_that_was_changed_on_its_way_is_noticed() -> None:
    """A man in the middle who makes `y` of `p=…` or `n` of `y` changes what is bound."""
    verifier = new_verifier("SCRAM-SHA-256", "correct horse", b"s" * 16, 4_096)
    for said, bound in (("n,,", "y,,"), ("y,,", "n,,"), ("y,,", "p=tls-unique,,"), ("n,,", "")):
        client = ScramClient("u", "correct horse", header=said)
        if bound:
            assert exchange(client, verifier, binding=bound) is None
        assert exchange(client, verifier) is not None


def test_a_proof_is_of_one_mechanism() -> None:
    """The verifier of one does not take the proof of another, whatever is claimed."""
    weak, strong = (new_verifier(m, "correct horse", b"s" * 16, 4_096) for m in HASHES)
    client = ScramClient("u", "correct horse", "SCRAM-SHA-256")
    first = read_first(client.first)
    final = read_final(client.final(first_answer(first, "server", weak).encode()))
    assert final_answer("SCRAM-SHA-256", weak, first, final) is not None
    assert final_answer("SCRAM-SHA-512", strong, first, final) is None
    assert final_answer("SCRAM-SHA-512", weak, first, final) is None


def test_fewer_rounds_or_another_salt_make_no_right_proof() -> None:
    """A man in the middle who changes the answer gets a hash that is good for nothing here."""
    verifier = new_verifier("SCRAM-SHA-256", "correct horse", b"s" * 16, 4_096)
    for changed in (replace(verifier, iterations=1), replace(verifier, salt=b"t" * 16)):
        client = ScramClient("u", "correct horse")
        first = read_first(client.first)
        final = read_final(client.final(first_answer(first, "server", changed).encode()))
        assert final_answer("SCRAM-SHA-256", verifier, first, final) is None


@pytest.mark.parametrize(
    "message",
    [
        "",
        ",,",
        "n,,",
        "n,,n=u",
        "n,n=u,r=x",
        "n,,r=x,n=u",
        "n,,n=,r=x",
        "n,,n=u,r=",
        "n,,n=u,r=a b",
        "n,,n=u,r=\x7f",
        "n,,n=u,r=ä",
        "n,,n=u=,r=x",
        "n,,n=u=2c,r=x",
        "n,,m=ext,n=u,r=x",
        "n,a=,n=u,r=x",
        "n,a=other,n=u,r=x",
        "p=tls-unique,,n=u,r=x",
        "x,,n=u,r=x",
        "n,,n=u,r=x\n",
        "n,,n=u\0,r=x",
        "n,,n=u,r=x,",
        "n,,n=u,r=" + "x" * MESSAGE_BYTES_MAX,
    ],
)
def test_what_is_no_first_message_is_refused_without_showing_it(message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_first(message.encode())
    assert not message or message not in str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "c=biws,r=x",
        "c=biws,p=AAAA",
        "r=x,c=biws,p=AAAA",
        "c=biw,r=x,p=AAAA",
        "c=biws,r=x,p=AAA",
        "c=biws,r=x,p=",
        "c=biws,r=x,p=AAAA,x=y",
        "c=biws,r=x,p=A-_A",
        "c=biws,r=x,p=AAAA\n",
        "c=biws,r=a b,p=AAAA",
    ],
)
def test_what_is_no_final_message_is_refused(message: str) -> None:
    with pytest.raises(InvalidRequest):
        read_final(message.encode())


def test_extensions_are_skipped_and_bound() -> None:
    first = read_first(FIRST.encode() + b",tokenauth=true")
    assert first.nonce == NONCE
    assert first.bare.endswith(",tokenauth=true")
    final = read_final(b"c=biws,r=x,e=1,p=AAAA")
    assert (final.nonce, final.unproved, final.proof) == ("x", "c=biws,r=x,e=1", bytes(3))


def test_a_proof_of_another_length_is_wrong() -> None:
    verifier = new_verifier("SCRAM-SHA-256", "correct horse", b"s" * 16, 4_096)
    first = read_first(FIRST.encode())
    final = read_final(f"c=biws,r={NONCE}server,p=AAAA".encode())
    assert final_answer("SCRAM-SHA-256", verifier, first, final) is None


def test_a_nonce_that_is_not_the_clients_has_nothing_of_the_server() -> None:
    first = read_first(FIRST.encode())
    assert server_nonce_of(first, read_final(b"c=biws,r=other,p=AAAA")) == ""


WORDS = st.sampled_from(
    ["n", "y", "p=", ",", "a=", "n=", "r=", "c=", "p=", "biws", "=2C", "=", "user", "x", "\0", "ä"]
)
MESSAGES = st.one_of(st.binary(max_size=200), st.lists(WORDS).map(lambda w: "".join(w).encode()))


@given(MESSAGES, MESSAGES)
def test_any_bytes_are_read_or_refused_and_never_right(one: bytes, two: bytes) -> None:
    verifier = nobodys_verifier(b"secret", "SCRAM-SHA-256", "user")
    try:
        first, final = read_first(one), read_final(two)
    except InvalidRequest:
        return
    assert final_answer("SCRAM-SHA-256", verifier, first, final) is None


@given(st.text(max_size=20))
def test_any_name_gets_through(name: str) -> None:
    client = ScramClient(name, "x")
    if name and "\0" not in name and name.isprintable():
        assert read_first(client.first).user == name


def test_nobody_has_the_same_salt_each_time_and_the_form_of_everybodys() -> None:
    for mechanism in HASHES:
        real = new_verifier(mechanism, "correct horse", b"s" * 16)
        fake = nobodys_verifier(b"secret", mechanism, "nobody")
        assert fake == nobodys_verifier(b"secret", mechanism, "nobody")
        assert (len(fake.salt), fake.iterations) == (len(real.salt), real.iterations)
        assert len(fake.stored_key) == len(real.stored_key)
        others = [
            nobodys_verifier(b"other", mechanism, "nobody"),
            nobodys_verifier(b"secret", mechanism, "nobody2"),
            *(
                nobodys_verifier(b"secret", other, "nobody")
                for other in HASHES
                if other != mechanism
            ),
        ]
        assert all(each.salt != fake.salt for each in others)
    assert ITERATIONS >= 4_096


def test_what_clients_send_in_different_ways_is_not_taken() -> None:
    assert takes("correct horse, battery=staple~")
    for text in ("", "pässword", "a\u00a0b", "a\nb", "a\x7f"):
        assert not takes(text)
    with pytest.raises(InvalidRequest, match="ASCII"):
        new_verifier("SCRAM-SHA-256", "pässword", b"s" * 16)


def test_nothing_secret_is_shown() -> None:
    verifier = new_verifier("SCRAM-SHA-256", "correct horse", b"salty-salty-salt", 4_096)
    first = read_first(FIRST.encode())
    final = read_final(RFC_7677[4].encode())
    shown = repr((verifier, first, final))
    for secret in ("salty", "user", NONCE, repr(verifier.stored_key)[2:10], "dHzb", "biws"):
        assert secret not in shown
