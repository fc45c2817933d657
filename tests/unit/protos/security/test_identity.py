"""Identities: their URIs, their names in TLS, and who is taken for whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest, Unauthenticated
from semel.protos.security.identity import (
    BROKER,
    CLIENT,
    Identity,
    any_node,
    check_peer,
    cluster_of_uri,
    cluster_uri,
    identity_of_auth_context,
    identity_of_ssl,
    parse_uri,
)

printable = st.text(min_size=1, max_size=30).filter(str.isprintable)
identities = st.one_of(
    st.builds(Identity, st.sampled_from(["client", "admin"]), printable, printable),
    st.builds(
        Identity,
        st.sampled_from(["broker", "controller"]),
        st.integers(1, 10**18).map(str),
        printable,
    ),
)
TWO = Identity(BROKER, "2", "orders")


@given(identities)
def test_a_uri_says_what_the_identity_is(identity: Identity) -> None:
    assert parse_uri(identity.uri) == identity
    assert identity.uri.isascii()


@given(identities, identities)
def test_different_identities_have_different_names(one: Identity, other: Identity) -> None:
    assert (one == other) == (one.uri == other.uri)
    if one.is_node and other.is_node:
        assert (one == other) == (one.tls_name == other.tls_name)
        assert any_node(one.cluster) not in (one.tls_name, other.tls_name)


@given(printable)
def test_names_in_tls_are_names_of_dns(cluster: str) -> None:
    for label in any_node(cluster).split("."):
        assert 1 <= len(label) <= 63
        assert label.isascii()
        assert label.replace("-", "a").isalnum()
        assert label == label.lower()


@given(printable)
def test_a_cluster_has_a_uri(cluster: str) -> None:
    assert cluster_of_uri(cluster_uri(cluster)) == cluster


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "http://orders/broker/2",
        "semel://orders/broker",
        "semel://orders/broker/2/3",
        "semel://orders/broker/02",
        "semel://orders/broker/0",
        "semel://orders/broker/two",
        "semel://orders/king/2",
        "semel:///broker/2",
        "semel://orders/client/%ff",
        "semel://orders/client/%41",
    ],
)
def test_what_is_no_identity_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_uri(uri)
    assert identity_of_auth_context({"x509_subject_alternative_name": [uri.encode()]}) is None


def test_grpc_and_ssl_tell_the_identity() -> None:
    names = [TWO.tls_name.encode(), TWO.uri.encode(), b"\xff"]
    assert identity_of_auth_context({"x509_subject_alternative_name": names}) == TWO
    assert identity_of_auth_context({}) is None
    shown = {"subjectAltName": (("DNS", TWO.tls_name), ("URI", TWO.uri))}
    assert identity_of_ssl(SimpleNamespace(getpeercert=lambda: shown)) == TWO
    assert identity_of_ssl(SimpleNamespace(getpeercert=lambda: None)) is None
    assert identity_of_ssl(None) is None


def test_a_name_of_dns_is_no_identity() -> None:
    shown = {"subjectAltName": (("DNS", TWO.uri),)}
    assert identity_of_ssl(SimpleNamespace(getpeercert=lambda: shown)) is None


def test_two_identities_in_one_certificate_are_none() -> None:
    names = [TWO.uri.encode(), Identity(CLIENT, "eve", "orders").uri.encode()]
    assert identity_of_auth_context({"x509_subject_alternative_name": names}) is None
    again = [TWO.uri.encode(), TWO.uri.encode()]
    assert identity_of_auth_context({"x509_subject_alternative_name": again}) == TWO


def test_peers_are_checked_by_cluster_kind_and_name() -> None:
    assert check_peer(TWO, "orders") == TWO
    assert check_peer(TWO, "orders", (BROKER,), "2") == TWO
    wrongs: tuple[dict[str, Any], ...] = (
        {"cluster": "other"},
        {"cluster": "orders", "kinds": (CLIENT,)},
        {"cluster": "orders", "kinds": (BROKER,), "name": "3"},
    )
    for wrong in wrongs:
        with pytest.raises(Unauthenticated, match="broker 2 of cluster orders"):
            check_peer(TWO, **wrong)
    with pytest.raises(Unauthenticated, match="names no one"):
        check_peer(None, "orders")
