"""TLS files: what is refused, and what happens when they are replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.protos.errors import InvalidRequest
from semel.protos.security.credentials import Security
from semel.protos.security.tls_files import TlsFileError, TlsFiles
from tests.kit.certificates import CLUSTER, TestCa, replace


def test_good_files_are_taken(tmp_path: Path) -> None:
    directory = TestCa().files(tmp_path, "broker", "2")
    files = TlsFiles.in_directory(directory)
    assert files.identity.uri == f"semel://{CLUSTER}/broker/2"
    assert files.current().version == 1
    assert "PRIVATE" not in repr(files.current())
    assert Security.of_node(directory, "broker", 2, "").cluster == CLUSTER


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    directory = TestCa().files(tmp_path, "broker", "2")
    (directory / "key.pem").chmod(mode)
    with pytest.raises(TlsFileError, match=f"mode 0{mode:o}, which others can read: chmod 600"):
        TlsFiles.in_directory(directory)
    (directory / "key.pem").chmod(0o400)
    TlsFiles.in_directory(directory)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    directory = TestCa().files(tmp_path, "broker", "2")
    replace(directory / name, b"no PEM\n", mode=0o600)
    with pytest.raises(TlsFileError, match=name):
        TlsFiles.in_directory(directory)
    (directory / name).unlink()
    with pytest.raises(TlsFileError, match=f"{name} cannot be read: No such file"):
        TlsFiles.in_directory(directory)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    ca = TestCa()
    directory = ca.files(tmp_path, "broker", "2")
    replace(directory / "ca.pem", TestCa().pem)
    with pytest.raises(TlsFileError, match="not signed by the CA"):
        TlsFiles.in_directory(directory)
    replace(directory / "ca.pem", ca.pem)
    replace(directory / "key.pem", ca.issue("broker", "2")[1], mode=0o600)
    with pytest.raises(TlsFileError, match="is not the private key of"):
        TlsFiles.in_directory(directory)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    directory = TestCa().files(tmp_path, "broker", "2", ended=True)
    with pytest.raises(TlsFileError, match="expired on"):
        TlsFiles.in_directory(directory)


def test_the_certificate_of_another_node_is_refused(tmp_path: Path) -> None:
    directory = TestCa().files(tmp_path, "broker", "2")
    for kind, number, cluster in (
        ("broker", 3, CLUSTER),
        ("controller", 2, CLUSTER),
        ("broker", 2, "other"),
    ):
        with pytest.raises(InvalidRequest, match=r"cert.pem is that of broker 2"):
            Security.of_node(directory, kind, number, cluster)


def test_replaced_files_count_when_all_of_them_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = TestCa(), TestCa()
    files = TlsFiles.in_directory(old.files(tmp_path, "broker", "2"))
    before = files.current()
    certificate, key = new.issue("broker", "2")
    for name, content in (("cert.pem", certificate), ("key.pem", key)):
        replace(tmp_path / name, content, mode=0o600)
        assert files.current() is before
        assert files.current() is before
        assert len(caplog.records) == 1, "it is told once for each state of the files"
        caplog.clear()
    replace(tmp_path / "ca.pem", old.pem + new.pem)
    after = files.current()
    assert (after.version, after.key) == (2, key)
    assert files.current() is after


def test_files_of_another_identity_do_not_replace_these(tmp_path: Path) -> None:
    ca = TestCa()
    files = TlsFiles.in_directory(ca.files(tmp_path, "broker", "2"))
    ca.files(tmp_path, "broker", "3")
    assert files.current().identity.name == "2"
    (tmp_path / "cert.pem").unlink()
    assert files.current().version == 1
