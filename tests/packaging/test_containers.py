"""Containerfile and chart pass what the programs know, and install what is pinned.

Not here: a build and a run of the image (`./run soak container`), rendering the chart and running
what it says (`./run soak helm`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kit.deployed_flags import unknown, used
from tests.kit.needed_packages import needed
from tools.source_tree import ROOT

CONTAINERFILE: Final = ROOT / "deploy" / "container" / "Containerfile"
CHART: Final = ROOT / "deploy" / "helm" / "semel"
HELPERS: Final = CHART / "templates" / "_helpers.tpl"
TEMPLATES: Final = sorted((CHART / "templates").glob("*.yaml"))
PINS: Final = ROOT / "requirements" / "image.txt"
CLIENTS: Final = (("node", "drain"), ("cluster", "grow"))
"""Commands that get the flags of `_helpers.tpl`."""


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_the_chart_passes_flags_that_exist(template: Path) -> None:
    assert unknown(template.read_text()) == []


def test_the_chart_s_flags_of_clients_exist() -> None:
    flags = " ".join(re.findall(r"--[a-z][a-z-]*", HELPERS.read_text()))
    assert flags.split() == ["--bootstrap", "--client-config"]
    for words in CLIENTS:
        assert unknown(f"semel {' '.join(words)} {flags}") == []


def test_the_chart_runs_every_program_with_its_data_and_identity() -> None:
    found = [each for path in TEMPLATES for each in used(path.read_text())]
    programs = {program for program, _ in found}
    assert programs == {("broker",), ("controller",), ("web",), *CLIENTS}
    for program in (("broker",), ("controller",)):
        flags = {flag for other, flag in found if other == program}
        assert {"--data", "--cluster-id", "--listen", "--advertise", "--tls-dir"} <= flags
        assert {"--insecure", "--metrics-port"} <= flags


def test_a_flag_or_a_variable_that_does_not_exist_is_noticed() -> None:
    text = 'set -- --member=1\nexec semel broker "$@" --grup=1\n semel node drain 1 --for=1s'
    assert unknown(text) == ["semel broker --grup"]
    assert unknown("  # semel broker --nothing\nsemel node drain --in=1") == [
        "semel node drain --in"
    ]
    assert unknown("ENV SEMEL_BROKER_METRIC_PORT=1") == ["SEMEL_BROKER_METRIC_PORT"]
    with pytest.raises(KeyError, match="node drian"):
        unknown("semel node drian 1")


def test_the_image_sets_variables_that_exist_and_has_no_rights() -> None:
    text = CONTAINERFILE.read_text()
    assert unknown(text.replace("--", "")) == []
    lines = text.splitlines()
    assert "USER 10001:10001" in lines
    assert "STOPSIGNAL SIGINT" in lines
    assert 'ENTRYPOINT ["semel"]' in lines
    assert "HEALTHCHECK" in text
    assert "--require-hashes -r image.txt" in text
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        for name in copied.split():
            assert name.startswith("dist/") or (ROOT / name).is_file(), name


def pins(path: Path) -> dict[str, str]:
    """Name -> version, marker and hashes, as a file pins them."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", path.read_text(), flags=re.M)[1:]
    return {block.partition("==")[0].partition("[")[0]: block for block in blocks}


def test_the_image_installs_what_is_pinned_for_development_and_no_more() -> None:
    image, development = pins(PINS), pins(ROOT / "requirements" / "dev.txt")
    wanted = needed({"broker", "hdfs", "kafka", "security", "web"})
    assert wanted <= image.keys()
    for name in image.keys() - wanted:
        assert " ; " in image[name].partition("\\")[0], f"{name} is for nobody"
    for name, pinned in image.items():
        assert sorted(re.findall(r"--hash=\S+", pinned)) == sorted(
            re.findall(r"--hash=\S+", development[name])
        ), name


def schema_of(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """What a schema says of the value at `path`. Raises KeyError."""
    for name in path:
        schema = schema["properties"][name]
        if "$ref" in schema:
            return {"properties": {"size": {}, "className": {}, "requests": {}, "limits": {}}}
    return schema


def test_templates_use_values_that_the_schema_has() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = (CHART / "values.yaml").read_text()
    for path in (HELPERS, *TEMPLATES, CHART / "templates" / "NOTES.txt"):
        for name in re.findall(r"\.Values\.([A-Za-z.]+)", path.read_text()):
            words = name.split(".")
            schema_of(schema, words)
            for word in words:
                assert re.search(rf"^ *{word}:", values, re.M), f"{path.name}: {name}"
    tops = set(re.findall(r"^([A-Za-z]+):", values, re.M))
    assert tops == schema["properties"].keys() - {"global"}


def test_the_chart_is_of_this_version() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {version[1]}\n" in chart
    assert f'\nappVersion: "{version[1]}"\n' in chart


@pytest.mark.parametrize(
    ("url", "status"),
    [("ftp://127.0.0.1/", 1), ("http://127.0.0.1:1/livez", 1), ("https://127.0.0.1:1/", 1)],
)
def test_the_health_check_fails_where_nobody_answers(url: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "deploy" / "container" / "healthcheck.py")],
        env={"SEMEL_HEALTH_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert url.partition(":")[0] in done.stdout
