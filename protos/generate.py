"""Generates the Python stubs from the .proto files: `python protos/generate.py [--check]`.

Generated files are committed, so that an installed wheel and a reader need no compiler. With
`--check` nothing is written and the exit status is 1 when a committed stub is not what the .proto
files and the pinned compiler give.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
WELL_KNOWN = Path(grpc_tools.__file__).resolve().parent / "_proto"
"""Google's own .proto files, as the compiler brings them."""
PACKAGE = Path("semel/protos/v1")


def generate(target: Path) -> None:
    """Compiles every .proto file of the package into `target`."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).glob("*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{WELL_KNOWN}", *outputs, *sources]) != 0:
        raise SystemExit("protoc failed; its messages stand above")
    for stub in (target / PACKAGE).glob("*_pb2_grpc.py"):
        if "def add_" not in stub.read_text():  # no service in this file
            stub.unlink()


def main() -> int:
    """Runs the generator; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        fresh = {path.name: path.read_bytes() for path in (Path(directory) / PACKAGE).iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / PACKAGE).glob("*_pb2*.py*")}
    stale = sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    for name in stale:
        print(f"{PACKAGE / name} is stale: run `python protos/generate.py`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
