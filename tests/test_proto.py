"""The schema in proto/: part of Envoy's, field by field, and the generated code is its newest output."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import betterproto2
import pytest
from google.protobuf import descriptor as descriptors
from google.protobuf import runtime_version

from extproc.pb import kvring_ext_proc_pb2 as pb
from tests.full_schema import core, ext_proc

ROOT = Path(__file__).resolve().parent.parent
FieldDescriptor = descriptors.FieldDescriptor

# descriptor type -> the full schema's word for it, for every type the schema in proto/ uses
TYPES = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "string",
}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvring_proto_generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the generated code ----


def test_the_generated_code_is_what_the_schema_generates_today() -> None:
    command = [sys.executable, str(ROOT / "proto" / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_edited_missing_and_orphaned_files_are_noticed(generate: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "pb"
    shutil.copytree(ROOT / "extproc" / "pb", target, ignore=shutil.ignore_patterns("__pycache__"))
    assert generate.stale(target) == []
    with (target / "kvring_ext_proc_pb2.py").open("a") as file:
        file.write("# edited by hand\n")
    (target / "kvring_ext_proc_pb2.pyi").unlink()
    (target / "gone_pb2.py").touch()
    assert generate.stale(target) == ["gone_pb2.py", "kvring_ext_proc_pb2.py", "kvring_ext_proc_pb2.pyi"]


def test_the_oldest_protobuf_admitted_by_the_package_can_load_the_generated_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (floor,) = [entry.partition(">=")[2] for entry in requirements if entry.startswith("protobuf")]
    numbers = [*(int(part) for part in floor.partition(",")[0].split(".")), 0, 0][:3]
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        runtime_version,
        "ValidateProtobufRuntimeVersion",
        lambda _domain, major, minor, patch, *_rest: asked.append((major, minor, patch)),
    )
    spec = importlib.util.spec_from_file_location("kvring_pb2_again", pb.__file__)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert len(asked) == 1
    assert tuple(numbers) >= asked[0]


def test_the_schema_has_a_package_and_a_file_name_of_its_own() -> None:
    assert pb.DESCRIPTOR.package == "kvring.extproc.v1"
    assert pb.DESCRIPTOR.name == "extproc/pb/kvring_ext_proc.proto"
    assert pb.ProcessingRequest.__module__ == "extproc.pb.kvring_ext_proc_pb2"


# ---- against the full schema ----


def pairs() -> Iterator[tuple[descriptors.Descriptor, type[betterproto2.Message]]]:
    """Each message of ours with its original, found by following equal field names from the two roots."""
    queue = [
        (pb.ProcessingRequest.DESCRIPTOR, ext_proc.ProcessingRequest),
        (pb.ProcessingResponse.DESCRIPTOR, ext_proc.ProcessingResponse),
    ]
    seen: set[str] = set()
    while queue:
        ours, full = queue.pop()
        if ours.full_name in seen or ours.file is not pb.DESCRIPTOR:
            continue  # google.protobuf.Struct is everybody's
        seen.add(ours.full_name)
        yield ours, full
        for field in ours.fields:
            is_message = field.type == FieldDescriptor.TYPE_MESSAGE
            if is_message and not field.message_type.GetOptions().map_entry:
                queue.append((field.message_type, full._betterproto.cls_by_field[field.name]))


PAIRS = list(pairs())


def test_every_message_of_the_schema_is_reached_from_the_two_roots() -> None:
    assert {ours.full_name for ours, _ in PAIRS} == {
        message.full_name for message in pb.DESCRIPTOR.message_types_by_name.values()
    }
    assert len(PAIRS) >= 18


@pytest.mark.parametrize(("ours", "full"), PAIRS, ids=[ours.name for ours, _ in PAIRS])
def test_every_field_has_number_type_label_and_oneof_of_the_full_schema(
    ours: descriptors.Descriptor, full: type[betterproto2.Message]
) -> None:
    assert ours.name == full.__name__
    originals = {
        field.name: betterproto2.FieldMetadata.get(field)
        for field in dataclasses.fields(full)
        if "betterproto" in field.metadata
    }
    for field in ours.fields:
        original = originals[field.name]
        assert field.number == original.number, field.full_name
        oneof = field.containing_oneof.name if field.containing_oneof else None
        assert oneof == original.group, field.full_name
        if original.proto_type == "map":
            assert field.message_type.GetOptions().map_entry
            key, value = field.message_type.fields
            assert (TYPES[key.type], TYPES[value.type]) == tuple(
                each.proto_type for each in original.map_meta
            )
            assert value.message_type.full_name == "google.protobuf.Struct"
            continue
        assert TYPES[field.type] == original.proto_type, field.full_name
        assert field.is_repeated == original.repeated, field.full_name
        if field.type == FieldDescriptor.TYPE_ENUM:
            assert_part_of(field.enum_type, full._betterproto.cls_by_field[field.name])


def assert_part_of(ours: descriptors.EnumDescriptor, full: type[betterproto2.Enum]) -> None:
    numbers = {plain(member.name): member.value for member in full}
    for value in ours.values:
        assert numbers[plain(value.name)] == value.number, f"{ours.full_name}.{value.name}"


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def test_the_comparison_would_notice_a_wrong_number() -> None:
    header_map = pb.HeaderMap.DESCRIPTOR
    with pytest.raises((AssertionError, KeyError)):
        test_every_field_has_number_type_label_and_oneof_of_the_full_schema(header_map, core.HeaderValue)
    with pytest.raises((AssertionError, KeyError)):
        assert_part_of(pb.BodySendMode.DESCRIPTOR, core.HeaderValueOptionHeaderAppendAction)


def test_both_schemas_of_the_same_protocol_live_in_one_process() -> None:
    """Envoy's file and message names stay free in protobuf's default pool."""
    script = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "import extproc.pb.kvring_ext_proc_pb2\n"
        "file = descriptor_pb2.FileDescriptorProto(\n"
        "    name='envoy/service/ext_proc/v3/external_processor.proto',\n"
        "    package='envoy.service.ext_proc.v3', syntax='proto3')\n"
        "file.message_type.add(name='ProcessingRequest')\n"
        "pool = descriptor_pool.Default()\n"
        "pool.AddSerializedFile(file.SerializeToString())\n"
        "pool.FindMessageTypeByName('envoy.service.ext_proc.v3.ProcessingRequest')\n"
        "pool.FindMessageTypeByName('kvring.extproc.v1.ProcessingRequest')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert (result.returncode, result.stderr) == (0, "")
