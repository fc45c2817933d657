"""The directory of a CA: what it issues, how it renews, and a change of the CA in three steps."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from semel.client.client_file import read
from semel.console.authority import Authority, ensure, within_up
from semel.controller.login.clients_ca import ClientsCa
from semel.protos.errors import InvalidRequest
from semel.protos.security.certificates import hosts_of
from semel.protos.security.identity import ADMIN, BROKER, CLIENT, Identity
from semel.protos.security.tls_files import TlsFileError, TlsFiles, identity_of_certificate
from semel.protos.security.token_keys import key_id

ONE = Identity(BROKER, "1", "orders")
ADMINISTRATOR = Identity(ADMIN, "admin", "orders")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_issued_can_be_used(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "orders")
    for identity in (ONE, ADMINISTRATOR, Identity(CLIENT, "loader", "orders")):
        issued = authority.issue(identity, days=10)
        assert TlsFiles.in_directory(issued.directory).identity == identity
        assert mode(issued.directory / "key.pem") == 0o600
        left = issued.not_after - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=9) < left <= datetime.timedelta(days=10)
    assert mode(tmp_path / "ca" / "ca-key.pem") == 0o600
    assert [one.identity.name for one in authority.issued()] == ["admin", "1", "loader"]
    assert Authority(tmp_path / "ca").cluster == "orders"


def test_a_program_that_serves_others_has_names_of_hosts(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders")
    gateway = Identity(CLIENT, "kafka-gateway", "orders")
    authority.issue(gateway)
    path = authority.issue_server(gateway, ["10.0.0.7", "kafka1.example"])
    assert mode(path.with_name("server-key.pem")) == 0o600
    before = path.read_bytes()
    authority.renew(days=20)
    found = x509.load_pem_x509_certificate(path.read_bytes())
    assert path.read_bytes() != before, "it is renewed with the identity"
    assert hosts_of(found) == ["kafka1.example", "10.0.0.7"]
    assert identity_of_certificate(found) is None, "it is nobody in the cluster"
    [uses] = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert uses == ExtendedKeyUsageOID.SERVER_AUTH
    assert [one.identity for one in authority.issued()] == [gateway]
    with pytest.raises(InvalidRequest, match="no name of a host"):
        authority.issue_server(gateway, ["größe.example"])


def test_a_ca_is_never_made_over_another(tmp_path: Path) -> None:
    Authority.create(tmp_path, "orders")
    with pytest.raises(InvalidRequest, match="holds a CA already"):
        Authority.create(tmp_path, "orders")


def test_no_certificate_outlives_its_ca(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders", days=5)
    assert authority.issue(ONE, days=365).not_after == authority.not_after


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "a b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    authority = Authority.create(tmp_path, "orders")
    with pytest.raises(InvalidRequest, match="no name of a directory"):
        authority.issue(Identity(CLIENT, name, "orders"))


def test_a_key_that_others_can_read_issues_nothing(tmp_path: Path) -> None:
    Authority.create(tmp_path, "orders")
    (tmp_path / "ca-key.pem").chmod(0o644)
    with pytest.raises(TlsFileError, match="chmod 600"):
        Authority(tmp_path)
    with pytest.raises(TlsFileError, match="cannot be read"):
        Authority(tmp_path / "nothing")


def test_only_what_expires_soon_is_renewed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders")
    authority.issue(ONE, days=10)
    later = authority.issue(Identity(BROKER, "2", "orders"), days=100)
    assert [one.identity for one in authority.renew(within_days=30)] == [ONE]
    assert later in list(authority.issued())
    assert len(authority.renew()) == 2


def test_a_ca_changes_in_three_steps_and_trust_never_breaks(tmp_path: Path) -> None:
    Authority.create(tmp_path, "orders").issue(ONE)
    files = TlsFiles.in_directory(tmp_path / "broker-1")
    old = files.current()
    Authority(tmp_path).add_ca()
    both = files.current()
    assert (both.certificate, len(both.ca) > len(old.ca)) == (old.certificate, True)
    with pytest.raises(InvalidRequest, match=r"broker-1 has a certificate of an older CA"):
        Authority(tmp_path).forget_old_cas()
    Authority(tmp_path).renew()
    assert files.current().certificate != old.certificate
    Authority(tmp_path).forget_old_cas()
    new = files.current()
    assert new.certificate == TlsFiles.in_directory(tmp_path / "broker-1").current().certificate
    assert old.ca not in new.ca


def test_a_change_that_was_cut_short_leaves_a_ca_that_issues(tmp_path: Path) -> None:
    """The new CA is in ca.pem, and its key is lost: the CA before goes on."""
    Authority.create(tmp_path, "orders")
    key = (tmp_path / "ca-key.pem").read_bytes()
    Authority(tmp_path).add_ca()
    (tmp_path / "ca-key.pem").write_bytes(key)
    directory = Authority(tmp_path).issue(ONE).directory
    assert TlsFiles.in_directory(directory).identity == ONE


def test_up_makes_what_is_missing_and_renews_what_expires(tmp_path: Path) -> None:
    ensure(tmp_path, "orders", [ONE], "127.0.0.1:7070", "127.0.0.1:9070", 30)
    assert 'bootstrap = "127.0.0.1:7070"' in (tmp_path / "admin" / "client.toml").read_text()
    key = (tmp_path / "broker-1" / "key.pem").read_bytes()
    two = Identity(BROKER, "2", "orders")
    ensure(tmp_path, "orders", [ONE, two], "127.0.0.1:7070", "127.0.0.1:9070", 30)
    assert (tmp_path / "broker-1" / "key.pem").read_bytes() == key
    Authority(tmp_path).issue(two, days=10)
    key = (tmp_path / "broker-2" / "key.pem").read_bytes()
    ensure(tmp_path, "orders", [ONE, two], "127.0.0.1:7070", "127.0.0.1:9070", 30)
    assert (tmp_path / "broker-2" / "key.pem").read_bytes() != key


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_nodes_trust_the_clients_ca_and_controllers_have_its_key(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders")
    authority.renew_logins()
    broker = authority.issue(Identity(BROKER, "1", "orders")).directory
    controller = authority.issue(Identity("controller", "1", "orders")).directory
    client = authority.issue(Identity(CLIENT, "a", "orders")).directory
    assert "clients-ca.pem" in files(broker)
    assert not files(broker) & {"clients-ca-key.pem", "token-keys.json", "token-key.pem"}
    assert files(controller) >= {"clients-ca.pem", "clients-ca-key.pem", "token-keys.json"}
    assert "token-key.pem" not in files(controller)
    assert not files(client) & {"clients-ca.pem", "clients-ca-key.pem", "token-keys.json"}
    for key in (*tmp_path.rglob("*-key.pem"), *tmp_path.rglob("key.pem")):
        assert key.stat().st_mode & 0o777 == 0o600, key
    assert TlsFiles.in_directory(broker).current().clients_ca
    ClientsCa(controller, "orders")


def test_new_logins_stand_beside_the_old_until_these_are_forgotten(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders")
    authority.renew_logins()
    node = authority.issue(Identity("controller", "1", "orders")).directory
    first_ca, first_key = (node / "clients-ca.pem").read_bytes(), authority.token_key()
    authority.renew_logins()
    second_key = authority.token_key()
    assert (node / "clients-ca.pem").read_bytes().endswith(first_ca)

    def known() -> list[str]:
        return [key["kid"] for key in json.loads((node / "token-keys.json").read_text())["keys"]]

    assert known() == [key_id(second_key), key_id(first_key)]
    authority.forget_old_logins()
    assert first_ca not in (node / "clients-ca.pem").read_bytes()
    assert known() == [key_id(second_key)]
    ClientsCa(node, "orders")


def test_logins_that_are_not_there_cannot_be_forgotten(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--logins"):
        Authority.create(tmp_path, "orders").forget_old_logins()


def test_the_file_of_those_who_log_in_has_nothing_secret(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders")
    path = authority.write_login_file("h:7070", "h:9070")
    assert files(path.parent) == {"ca.pem", "client.toml"}
    login = read(path, environment={"SEMEL_TOKEN": "t"}).login
    assert login is not None
    assert (login.addresses, login.cluster_id) == ("h:9070", "orders")
    assert within_up(tmp_path) == tmp_path


def test_the_clients_ca_that_issues_is_the_one_whose_end_is_told(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "orders")
    authority.issue(ONE)
    assert authority.clients_not_after is None
    assert TlsFiles.in_directory(tmp_path / "broker-1").current().clients_ca_expires_at == 0
    for days in (30, 10):
        authority.renew_logins(days)
        until = authority.clients_not_after
        assert until is not None
        left = until - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=days - 1) < left <= datetime.timedelta(days=days)
        node = TlsFiles.in_directory(tmp_path / "broker-1").current()
        assert node.clients_ca_expires_at == until.timestamp()
