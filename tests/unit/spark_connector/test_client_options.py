"""As whom Spark asks a cluster: options, the environment of each process, the driver's."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from semel.protos.errors import InvalidRequest
from semel.spark_connector.client_options import ClientOptions, parse_client_options

CONFIG, PROFILE = "SEMEL_CLIENT_CONFIG", "SEMEL_PROFILE"
TOKEN, TOKEN_FILE = "SEMEL_TOKEN", "SEMEL_TOKEN_FILE"
SECRET = "eyJ.secret.signature"


def config(directory: Path, name: str, *, bootstrap: str = "", proof: str = "") -> str:
    """The path of a client file that says where to log in."""
    path = directory / name
    lines = [f'ca = "{directory}/ca.pem"', f'login = "{name}:9070"', proof]
    if bootstrap:
        lines.append(f'bootstrap = "{bootstrap}"')
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


def test_nothing_that_is_said_is_a_cluster_without_tls_on_this_machine() -> None:
    found = parse_client_options({}, {}).client_file({})
    assert (found.bootstrap, found.security, found.login) == ("127.0.0.1:7070", None, None)


def test_the_option_names_the_cluster_before_the_file_and_that_before_the_driver(
    tmp_path: Path,
) -> None:
    path = config(tmp_path, "a", bootstrap="file:1", proof='token_file = "t"')
    driver = {"SEMEL_BOOTSTRAP": "driver:1"}
    plain = {"SEMEL_BOOTSTRAP": "task:1"}
    for given, environment, wanted in (
        ({"bootstrap": "option:1", "clientConfig": path}, driver, "option:1"),
        ({"clientConfig": path}, driver, "file:1"),
        ({}, driver, "driver:1"),
        ({}, {}, "127.0.0.1:7070"),
    ):
        options = parse_client_options(given, environment)
        assert options.client_file(plain).bootstrap == wanted


def test_options_come_before_the_tasks_environment_and_that_before_the_drivers(
    tmp_path: Path,
) -> None:
    paths = {name: config(tmp_path, name) for name in ("option", "task", "driver")}
    driver = {CONFIG: paths["driver"], TOKEN: "of the driver"}
    options = parse_client_options({}, driver)
    found = options.client_file({}).login
    assert found is not None
    assert (found.addresses, found.token) == ("driver:9070", "of the driver")
    found = options.client_file({CONFIG: paths["task"], TOKEN_FILE: "/own"}).login
    assert found is not None
    assert (found.addresses, found.token, str(found.token_file)) == ("task:9070", "", "/own")
    options = parse_client_options({"clientConfig": paths["option"], "token": SECRET}, driver)
    found = options.client_file({CONFIG: paths["task"], TOKEN_FILE: "/own"}).login
    assert found is not None
    assert (found.addresses, found.token, found.token_file) == ("option:9070", SECRET, "")


def test_a_profile_of_the_task_takes_the_place_of_the_drivers_file(tmp_path: Path) -> None:
    profiles = tmp_path / "semel" / "profiles.toml"
    profiles.parent.mkdir()
    profiles.write_text('[p]\nbootstrap = "profile:1"\n')
    options = parse_client_options({}, {CONFIG: config(tmp_path, "driver")})
    found = options.client_file({PROFILE: "p", "XDG_CONFIG_HOME": str(tmp_path)})
    assert found.bootstrap == "profile:1"


def test_a_user_with_a_password_is_said_by_the_file(tmp_path: Path) -> None:
    proof = 'user = "alice"\npassword_file = "password"'
    path = config(tmp_path, "a", proof=proof)
    found = parse_client_options({"clientConfig": path}, {}).client_file({}).login
    assert found is not None
    assert (found.user, found.password_file) == ("alice", tmp_path / "password")


def test_no_repr_has_a_token_and_equal_options_share_a_client() -> None:
    environment = {CONFIG: "/c", TOKEN: SECRET}
    for given in ({}, {"token": SECRET}, {"clientConfig": "/d", "token": SECRET}):
        options = parse_client_options(given, environment)
        assert SECRET not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options
        assert hash(options) == hash(parse_client_options(given, environment))
    assert parse_client_options({}, environment) != ClientOptions()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"clientConfig": "/c", "profile": "p"}, "'clientConfig' and 'profile' exclude each other"),
        (
            {"clientConfig": "/c", "token": SECRET, "tokenFile": "/t"},
            "'token' and 'tokenFile' exclude each other",
        ),
        ({"clientConfig": " "}, "option 'clientConfig' is empty"),
        ({"token": SECRET}, "option 'token' needs a client file that says where to log in"),
        ({"tokenFile": "/t"}, "option 'tokenFile' needs a client file"),
        ({"bootstrap": "nowhere"}, "not HOST:PORT"),
    ],
)
def test_refusals_are_one_line_and_have_no_token(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_client_options(given, {})
    assert told in refused.value.message
    assert SECRET not in refused.value.message


def test_a_token_of_the_environment_is_no_matter_of_a_file_that_needs_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "client.toml"
    path.write_text('bootstrap = "h:1"\n')
    environment = {TOKEN: SECRET, CONFIG: config(tmp_path, "a")}
    options = parse_client_options({"clientConfig": str(path)}, environment)
    found = options.client_file(environment)
    assert (found.bootstrap, found.login) == ("h:1", None)
    options = parse_client_options({"clientConfig": str(path), "token": SECRET}, {})
    with pytest.raises(InvalidRequest, match="does not say where to log in") as refused:
        options.client_file({})
    assert SECRET not in refused.value.message


def test_a_token_that_no_file_can_use_is_one_clear_error() -> None:
    """The environment of a task has a token, and nothing says where to log in."""
    options = parse_client_options({}, {})
    with pytest.raises(InvalidRequest, match="no client file says where to log in") as refused:
        options.client_file({TOKEN: SECRET})
    assert SECRET not in refused.value.message
