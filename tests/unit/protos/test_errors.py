"""The map between codes and exceptions is total, and nothing is lost on the way."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos import errors
from semel.protos.errors import CLASS_OF_CODE, SemelError, from_detail, to_detail
from semel.protos.v1.errors_pb2 import ErrorCode, ErrorDetail

PROTO = Path(errors.__file__).parent / "v1" / "errors.proto"
CONCRETE = sorted(CLASS_OF_CODE.values(), key=lambda cls: cls.code)

VALUES = {
    "master_address": st.text(max_size=20),
    "owner": st.text(max_size=20),
    "last_sequence": st.integers(-1, 2**63 - 1),
    "log_start_offset": st.integers(0, 2**63 - 1),
    "log_end_offset": st.integers(0, 2**63 - 1),
    "current_epoch": st.integers(0, 2**32 - 1),
    "current_session": st.integers(0, 2**32 - 1),
    "epoch_floor": st.integers(0, 2**32 - 1),
    "master_id": st.integers(0, 2**64 - 1),
    "term": st.integers(0, 2**64 - 1),
    "route_version": st.integers(0, 2**64 - 1),
    "retry_after_ms": st.integers(0, 2**64 - 1),
    "current_token": st.integers(0, 2**64 - 1),
    "limit_bytes": st.integers(0, 2**64 - 1),
    "split_record": st.binary(max_size=20),
    "topic_id": st.integers(0, 2**64 - 1),
    "queue_id": st.integers(0, 2**32 - 1),
    "level": st.integers(0, 2**32 - 1),
    "group_id": st.integers(0, 2**32 - 1),
    "message_id": st.binary(max_size=20),
    "offset": st.integers(-1, 2**63 - 1),
    "due_us": st.integers(0, 2**63 - 1),
    "due_messages": st.integers(0, 2**64 - 1),
    "due_messages_max": st.integers(0, 2**64 - 1),
    "next_offset": st.integers(0, 2**63 - 1),
    "resource": st.text(max_size=20),
}


@st.composite
def any_error(draw: st.DrawFn) -> SemelError:
    cls = draw(st.sampled_from(CONCRETE))
    attributes = {name: draw(VALUES[name]) for name in cls.attributes}
    return cls(draw(st.text(max_size=50)), **attributes)


def _all_classes() -> set[type[SemelError]]:
    return {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, SemelError)
    }


def test_every_code_has_one_class_and_every_class_one_code() -> None:
    assert set(CLASS_OF_CODE) == set(ErrorCode.values())
    assert len(set(CLASS_OF_CODE.values())) == len(CLASS_OF_CODE)
    families = {
        errors.RetriableError,
        errors.FencedError,
        errors.CallerError,
        errors.StorageError,
    }
    assert set(CLASS_OF_CODE.values()) | families == _all_classes()


def test_the_names_of_codes_and_classes_agree() -> None:
    for code, cls in CLASS_OF_CODE.items():
        name = ErrorCode.Name(code).removeprefix("ERROR_CODE_")
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        if cls is not SemelError:
            assert snake.removesuffix("_ERROR") == name


def test_every_code_has_a_grpc_status_that_is_a_failure() -> None:
    assert set(CLASS_OF_CODE) == set(ErrorCode.values())
    for kind in CLASS_OF_CODE.values():
        assert grpc.StatusCode[kind.status] is not grpc.StatusCode.OK


@given(any_error())
def test_errors_survive_the_wire(error: SemelError) -> None:
    received = from_detail(ErrorDetail.FromString(to_detail(error).SerializeToString()))
    assert type(received) is type(error)
    assert repr(received) == repr(error)
    assert str(received) == error.message


@given(any_error())
def test_errors_survive_pickling_and_copying(error: SemelError) -> None:
    assert repr(pickle.loads(pickle.dumps(error))) == repr(error)
    assert repr(copy.copy(error)) == repr(error)


@given(any_error())
def test_a_detail_has_the_fields_of_its_class_and_no_others(error: SemelError) -> None:
    present = {field.name for field, _ in to_detail(error).ListFields()}
    present |= {"code", "message"}
    assert present == {"code", "message", *error.attributes}


def test_every_field_of_the_detail_belongs_to_a_class() -> None:
    fields = {field.name for field in ErrorDetail.DESCRIPTOR.fields} - {"code", "message"}
    assert fields == {name for cls in CONCRETE for name in cls.attributes}
    assert fields == set(VALUES)


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.__name__)
def test_a_detail_without_attributes_gives_the_defaults(cls: type[SemelError]) -> None:
    assert repr(from_detail(ErrorDetail(code=cls.code, message="m"))) == repr(cls("m"))


def test_fields_of_other_errors_are_ignored() -> None:
    detail = ErrorDetail(code=errors.Throttled.code, retry_after_ms=3, owner="someone")
    assert repr(from_detail(detail)) == "Throttled('', retry_after_ms=3)"


def test_an_unknown_code_becomes_the_root_which_is_not_retriable() -> None:
    detail = ErrorDetail(message="from the future")
    detail.MergeFromString(b"\x08\xe7\x07")
    error = from_detail(detail)
    assert type(error) is SemelError
    assert error.message == "from the future"
    assert not error.retriable


def test_a_misspelled_attribute_is_a_bug() -> None:
    with pytest.raises(TypeError, match="master_adress"):
        errors.NotMaster("m", master_adress="h:1")


def test_exactly_the_retriable_family_is_retriable() -> None:
    assert {cls for cls in CONCRETE if cls.retriable} == {
        errors.NotMaster,
        errors.QueueMoved,
        errors.Unavailable,
        errors.Throttled,
        errors.TimedOut,
    }


def test_families() -> None:
    assert issubclass(errors.CorruptFrame, errors.CorruptSegment)
    assert issubclass(errors.CorruptSegment, errors.StorageError)
    assert issubclass(errors.LockLost, errors.FencedError)
    assert issubclass(errors.PartialOverlap, errors.CallerError)
    assert not issubclass(errors.Closed, errors.StorageError)


def test_a_second_class_for_a_code_is_caught() -> None:
    """The planted bug; the class disappears again with the last reference to it."""
    import gc

    cls = type("Impostor", (errors.CallerError,), {"code": errors.NotMaster.code})
    with pytest.raises(AssertionError, match="NOT_MASTER"):
        errors._concrete(SemelError)
    del cls
    gc.collect()
    assert errors._concrete(SemelError) == CLASS_OF_CODE


def test_every_value_and_field_of_the_proto_file_has_a_comment() -> None:
    lines = PROTO.read_text(encoding="utf-8").splitlines()
    declared = [at for at, line in enumerate(lines) if re.match(r"\s+\S.* = \d+;$", line)]
    assert len(declared) == len(ErrorCode.values()) + len(ErrorDetail.DESCRIPTOR.fields)
    for at in declared:
        assert lines[at - 1].lstrip().startswith("//"), lines[at]


def _unknown_attributes(source: str) -> list[str]:
    """Calls of error classes in `source` with a keyword that the class does not have."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            cls = getattr(errors, name, None)
            if isinstance(cls, type) and issubclass(cls, SemelError):
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                found += [f"{name}({each}=)" for each in sorted(given - set(cls.attributes))]
    return found


def test_no_source_gives_an_error_an_attribute_that_it_does_not_have() -> None:
    """mypy cannot see this: attributes are keyword arguments of the root class."""
    root = Path(__file__).parents[3]
    parts = ("protos", "tier", "client", "broker", "controller", "spark_connector", "web")
    sources = [path for part in parts for path in (root / part).rglob("*.py")]
    assert len(sources) > 10
    wrong = {
        str(path.relative_to(root)): unknown
        for path in sources
        if (unknown := _unknown_attributes(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


def test_an_unknown_attribute_in_a_source_is_caught() -> None:
    planted = "raise errors.LockLost('m', current_token=1, token=2)\nNotMaster('m', node=3)"
    assert _unknown_attributes(planted) == ["LockLost(token=)", "NotMaster(node=)"]
