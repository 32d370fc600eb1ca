"""Generated protobuf code: proto/*.proto -> extproc/pb/*_pb2.py and *_pb2.pyi.

    python proto/generate.py            write it (make proto)
    python proto/generate.py --check    exit 1, naming the files, if what is checked in differs

The output is checked in, so that neither a user nor the wheel's build needs a protobuf compiler.
Invariant: the same sources and the same grpcio-tools (pinned in pyproject.toml) give the same bytes; a
test compares them. The compiler's version is also the oldest protobuf runtime the output accepts, see
docs/decisions/0001-own-protobuf-schema.md. Called by: `make proto`, tests/test_proto.py.
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no stubs

__all__ = ["PACKAGE_DIRECTORY", "PROTO_DIRECTORY", "generate", "main", "stale"]

PROTO_DIRECTORY = Path(__file__).resolve().parent
PACKAGE_DIRECTORY = PROTO_DIRECTORY.parent / "extproc" / "pb"

# The sources' name for protoc, and so the place of the generated modules in the package: with it their
# classes carry their true `__module__`, and the descriptor pool's file name is one nobody else uses.
_VIRTUAL_DIRECTORY = "extproc/pb"


def generate() -> dict[str, bytes]:
    """File name -> content of everything that belongs into extproc/pb.

    Raises: RuntimeError if the compiler refuses a source; it has told why on stderr.
    """
    sources = sorted(path.name for path in PROTO_DIRECTORY.glob("*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        code = protoc.main(
            [
                "protoc",
                f"--proto_path={_VIRTUAL_DIRECTORY}={PROTO_DIRECTORY}",
                f"--proto_path={well_known}",
                f"--python_out={scratch}",
                f"--pyi_out={scratch}",
                *(f"{_VIRTUAL_DIRECTORY}/{name}" for name in sources),
            ]
        )
        if code != 0:
            raise RuntimeError(f"protoc ended with {code} on {', '.join(sources)}")
        written = sorted((Path(scratch) / _VIRTUAL_DIRECTORY).iterdir())
        return {path.name: path.read_bytes() for path in written}


def stale(directory: Path = PACKAGE_DIRECTORY) -> list[str]:
    """Names of generated files in `directory` that differ, are missing, or have lost their source."""
    wanted = generate()
    found = {path.name: path.read_bytes() for path in directory.glob("*_pb2*.py*") if path.is_file()}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main() -> int:
    """The exit code: 0, or 1 if `--check` found stale files."""
    parser = argparse.ArgumentParser(description="Regenerate extproc/pb from proto/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if files are stale")
    args = parser.parse_args()
    names = stale()
    if args.check:
        for name in names:
            sys.stderr.write(f"stale: {PACKAGE_DIRECTORY / name}; run `make proto`\n")
        return 1 if names else 0
    fresh = generate()
    for name in names:
        path = PACKAGE_DIRECTORY / name
        if name in fresh:
            path.write_bytes(fresh[name])
        else:
            path.unlink()
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
