"""The client's file: what it may say, and which one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.client.client_file import ClientFile, chosen, read
from semel.protos.errors import InvalidRequest
from tests.kit.certificates import TestCa

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
        ('ca = "ca.pem"', "needs all of ca, certificate, key, or none"),
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
