"""HOST:PORT is taken apart and written in one place."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.addresses import PORT_MAX, Address
from semel.protos.errors import InvalidRequest

NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)
HOSTS = st.one_of(NAMES, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str))
PORTS = st.integers(0, PORT_MAX)


@given(HOSTS, PORTS)
def test_an_address_is_read_as_it_was_written(host: str, port: int) -> None:
    address = Address(host, port)
    assert Address.parse(str(address)) == address


@given(st.ip_addresses(v=6).map(str), PORTS)
def test_an_ipv6_host_is_written_in_brackets_and_read_with_and_without(
    host: str, port: int
) -> None:
    assert str(Address(host, port)) == f"[{host}]:{port}"
    assert Address.parse(f"[{host}]:{port}") == Address.parse(f"{host}:{port}")


@given(NAMES, PORTS)
def test_other_hosts_are_written_without_brackets_and_read_with_and_without(
    host: str, port: int
) -> None:
    assert str(Address(host, port)) == f"{host}:{port}"
    assert Address.parse(f"[{host}]:{port}") == Address(host, port)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_one_error(text: str) -> None:
    try:
        address = Address.parse(text)
    except InvalidRequest:
        return
    assert address.host
    assert 0 <= address.port <= PORT_MAX
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no port"),
        ("nowhere", "it has no port"),
        ("nowhere:", "it has no port"),
        ("[::1]", "it has no port"),
        (":7070", "it has no host"),
        ("[]:7070", "it has no host"),
        ("[::1:7070", "its brackets do not enclose the host"),
        ("::1]:7070", "its brackets do not enclose the host"),
        ("[[::1]]:7070", "its brackets do not enclose the host"),
        ("a:http", "its port 'http' is not a number"),
        ("a:-1", "its port '-1' is not a number"),
        ("a: 1", "its port ' 1' is not a number"),
        ("a:²", "its port '²' is not a number"),
        ("a:٣", "its port '٣' is not a number"),
        ("a:65536", "its port is not between 0 and 65535"),
        ("a:" + "9" * 10_000, "its port is not between 0 and 65535"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Address.parse(text, what="bootstrap address")
    assert caught.value.message == (
        f"bootstrap address {text!r} is not HOST:PORT: {reason}. Write for example"
        " 127.0.0.1:7070, or [::1]:7070 for IPv6"
    )


def test_who_connects_may_refuse_port_0() -> None:
    assert Address.parse("a:0").port == 0
    assert Address.parse("a:0001", port_min=1).port == 1
    with pytest.raises(InvalidRequest, match="its port is not between 1 and 65535"):
        Address.parse("a:0", port_min=1)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.example.org", False),
    ],
)
def test_loopback_is_what_no_other_machine_reaches(host: str, *, loopback: bool) -> None:
    assert Address(host, 7070).loopback is loopback


def test_an_address_is_a_value() -> None:
    address = Address("::1", 7070)
    assert str(address.with_port(7171)) == "[::1]:7171"
    assert len({address, address.with_port(7070)}) == 1
    assert not hasattr(address, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        address.port = 1  # type: ignore[misc]
