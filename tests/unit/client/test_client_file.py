"""The client's file: what it may say, and which one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.client.client_file import ClientFile, chosen, read
from semel.protos.errors import InvalidRequest, Unauthenticated
from tests.kit.certificates import TestCa

LOGIN = 'ca = "ca.pem"\nlogin = "h:1"\n'
TLS = 'ca = "ca.pem"\ncertificate = "cert.pem"\nkey = "key.pem"\n'


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    TestCa().files(tmp_path, "client", "a")
    path = tmp_path / "client.toml"
    path.write_text(f'bootstrap = "h:1"\n{TLS}')
    found = read(path)
    assert found.bootstrap == "h:1"
    assert found.security is not None
    assert found.security.identity.name == "a"


def test_the_environment_chooses_a_file_or_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('bootstrap = "h:1"\n')
    (tmp_path / "semel").mkdir()
    (tmp_path / "semel" / "profiles.toml").write_text('[test]\nbootstrap = "h:2"\n')
    profile = {"SEMEL_PROFILE": "test", "XDG_CONFIG_HOME": str(tmp_path)}
    assert chosen({}) == ClientFile()
    assert chosen(profile).bootstrap == "h:2"
    assert chosen({**profile, "SEMEL_CLIENT_CONFIG": str(path)}).bootstrap == "h:1"
    with pytest.raises(InvalidRequest, match="no profile 'prod', its profiles are: test"):
        chosen({**profile, "SEMEL_PROFILE": "prod"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('bootstrp = "h:1"', "'bootstrp' is no setting"),
        ("bootstrap = 7070", "'bootstrap' is no setting"),
        ('ca = "ca.pem"', "needs all of ca, certificate, key, or ca and login"),
        ('ca = "ca.pem"\ntoken_file = "t"', "needs all of ca, certificate, key"),
        (TLS + 'token_file = "t"', "'token_file' is for logging in"),
        (TLS + 'login = "h:1"', "has certificate and login"),
        ('login = "h:1"\ntoken_file = "t"', "needs ca"),
        (LOGIN + 'user = "a"', "user and password_file need each other"),
        (LOGIN + 'token_file = "t"\nuser = "a"\npassword_file = "p"', "has one of token"),
        ("bootstrap = ", "cannot be read"),
        (TLS, "ca.pem cannot be read: No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=reason):
        read(path)
    with pytest.raises(InvalidRequest, match=r"absent\.toml cannot be read: No such file"):
        read(tmp_path / "absent.toml")


def test_a_file_says_where_to_log_in_and_as_whom(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(LOGIN + 'cluster_id = "c"\ntoken_file = "t"\n')
    found = read(path).login
    assert found is not None
    assert (found.addresses, found.cluster_id) == ("h:1", "c")
    assert (found.ca, found.token_file) == (tmp_path / "ca.pem", tmp_path / "t")
    path.write_text(LOGIN + 'user = "alice"\npassword_file = "/p"\n')
    found = read(path).login
    assert found is not None
    assert (found.user, found.password_file) == ("alice", Path("/p"))


def test_a_token_in_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(LOGIN + 'user = "alice"\npassword_file = "p"\n')
    chosen_by = {"SEMEL_CLIENT_CONFIG": str(path)}
    for variables, token, file in (
        ({"SEMEL_TOKEN": "t-1", "SEMEL_TOKEN_FILE": "f"}, "t-1", ""),
        ({"SEMEL_TOKEN_FILE": "f"}, "", Path("f")),
    ):
        found = chosen({**chosen_by, **variables}).login
        assert found is not None
        assert (found.token, found.token_file, found.user) == (token, file, "")


def test_a_token_needs_to_know_where_it_may_be_shown(tmp_path: Path) -> None:
    TestCa().files(tmp_path, "client", "a")
    path = tmp_path / "client.toml"
    path.write_text(TLS)
    for environment in ({}, {"SEMEL_CLIENT_CONFIG": str(path)}):
        with pytest.raises(InvalidRequest, match="SEMEL_TOKEN is set") as refused:
            chosen({**environment, "SEMEL_TOKEN": "secret-part"})
        assert "secret-part" not in str(refused.value)


def test_whoever_does_not_say_who_it_is_is_not_authenticated(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(LOGIN)
    with pytest.raises(Unauthenticated, match="SEMEL_TOKEN"):
        read(path)


def test_a_token_in_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(LOGIN + 'token = "t-1"\n')
    path.chmod(0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        read(path)
    path.chmod(0o600)
    assert read(path).login is not None
