"""The fact classes are the single source: what is rendered from them is current and complete."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.avro import wire_types
from ledger.facts import FACTS, Fact
from ledger.recording.calls import OWN_FACTS, RecordCalls
from ledger.rendering.render import ROOT, docs_of, rendered, unreleased
from ledger.wire.schema import any_number_fields, avro_schema, is_record, optional
from tests.builders import a_fact

RENDERED = rendered()
ENVELOPE = [field.name for field in dataclasses.fields(Fact)]
RECORDERS_OWN = {"producer", "incarnation", "producer_seq"}


@pytest.mark.parametrize("path", sorted(RENDERED), ids=lambda path: path.name)
def test_a_rendered_file_is_current(path: Path) -> None:
    place = path.relative_to(ROOT)
    assert path.exists(), f"{place} is missing: run `make render`"
    assert path.read_text() == RENDERED[path], f"{place} is stale: run `make render`"


def test_no_schema_file_is_left_over_from_a_fact_that_is_gone() -> None:
    assert {path.stem for path in (ROOT / "schemas").glob("*.avsc")} == set(wire_types())


def test_every_current_schema_is_released() -> None:
    names = sorted(path.name for path in unreleased())
    assert names == [], "run `python -m ledger.rendering.render --release`: logs outlive them"


@pytest.mark.parametrize("name", sorted(wire_types()))
def test_every_field_is_documented(name: str) -> None:
    docs = docs_of(wire_types()[name].cls)
    undocumented = [
        f"{record.__name__}.{field.name}"
        for record in records_of(wire_types()[name].cls)
        for field in dataclasses.fields(record)
        if not any(docs.get((owner.__name__, field.name)) for owner in record.__mro__)
    ]
    assert undocumented == []
    assert [each.__name__ for each in records_of(wire_types()[name].cls) if not each.__doc__] == []


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_has_only_types_that_can_be_decoded_in_columns(name: str) -> None:
    bad = [
        (place, avro)
        for place, avro in avro_types(avro_schema(FACTS[name]), name)
        if avro not in ALLOWED
    ]
    assert bad == []


def test_bytes_and_general_unions_would_be_found() -> None:
    assert list(avro_types(["null", "bytes"], "x")) == [("x", "bytes")]
    assert list(avro_types(["string", "long"], "x")) == [("x", "union")]
    assert list(avro_types({"type": "string", "logicalType": "uuid"}, "x")) == [("x", "uuid")]
    assert not ALLOWED & {"bytes", "union", "uuid", "fixed"}


def test_a_union_other_than_with_null_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"must be `X \| None`, got int \| str"):
        optional(int | str)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_begins_with_the_envelope(name: str) -> None:
    assert [field.name for field in dataclasses.fields(FACTS[name])][: len(ENVELOPE)] == ENVELOPE


def test_only_these_numbers_may_be_below_0() -> None:
    """All others count, measure or place something; a new one that may be must say so."""
    records = {each for wire in wire_types().values() for each in records_of(wire.cls)}
    assert {
        f"{record.__name__}.{name}" for record in records for name in any_number_fields(record)
    } == {
        "GroupDecided.mean",
        "Member.advantage",
        "Member.reward",
        "ProducerAlive.last_seq",
        "ProducerClosed.last_seq",
        "RewardAssigned.components",
        "RewardAssigned.value",
        "RunDeclared.pass_threshold",
        "RunDeclared.top_k",
        "StepCompleted.grad_norm",
        "StepCompleted.loss",
        "StepCompleted.metrics",
        "ToolCallCompleted.exit_code",
    }


def test_a_fact_is_in_a_view_or_says_that_it_is_audit_only() -> None:
    audit_only = {name for name, cls in FACTS.items() if "Audit only" in (cls.__doc__ or "")}
    unused = FACTS.keys() - tables_in_views()
    assert sorted(unused - audit_only) == [], "say `Audit only` in its docstring, or show it"
    assert sorted(audit_only - unused) == [], "a view shows it: take `Audit only` away"


def test_the_stub_has_exactly_the_recorders_calls() -> None:
    calls = {name for name in vars(RecordCalls) if not name.startswith("_")}
    assert calls == set(FACTS) - set(OWN_FACTS)
    assert set(stub_calls()) == calls


@pytest.mark.parametrize("name", sorted(set(FACTS) - set(OWN_FACTS)))
def test_a_call_in_the_stub_takes_exactly_what_the_recorder_takes(name: str) -> None:
    extra = {"tokens"} if name == "turn_completed" else set()
    known = wire_types()[name].check.known
    assert set(stub_calls()[name]) == known - RECORDERS_OWN | extra


@pytest.mark.parametrize("name", sorted(set(FACTS) - set(OWN_FACTS)))
def test_a_call_in_the_stub_asks_for_what_nobody_else_can_fill_in(name: str) -> None:
    required = {field for field, has_default in stub_calls()[name].items() if not has_default}
    by_class = {
        field.name
        for field in dataclasses.fields(FACTS[name])
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    bound = {"run_id", "group_id", "slot", "trajectory_id", "turn_no", "task_id", "sandbox_id"}
    assert required == by_class - RECORDERS_OWN - {"event_id"} - bound


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_can_not_be_changed(name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_fact(name).run_id = "another"


ALLOWED = {
    "record",
    "enum",
    "array",
    "map",
    "string",
    "long",
    "double",
    "boolean",
    "timestamp-micros",
}


def records_of(cls: type) -> Iterator[type]:
    """A dataclass and all that it is made of."""
    yield cls
    for hint in typing.get_type_hints(cls).values():
        for part in parts_of(hint):
            yield from records_of(part)


def parts_of(hint: Any) -> Iterator[type]:
    if is_record(hint):
        yield hint
    for argument in typing.get_args(hint):
        yield from parts_of(argument)


def avro_types(schema: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each type in a schema, where it stands; a union with null is the other type."""
    if isinstance(schema, list):
        if len(schema) == 2 and schema[0] == "null" and not isinstance(schema[1], list):
            yield from avro_types(schema[1], place)
        else:
            yield place, "union"
    elif isinstance(schema, str):
        # A name was declared before, where it is looked at.
        yield place, "record" if schema.startswith("rollbook.") else schema
    else:
        yield place, schema.get("logicalType", schema["type"])
        for field in schema.get("fields", ()):
            yield from avro_types(field["type"], f"{place}.{field['name']}")
        for inner in ("items", "values"):
            if inner in schema:
                yield from avro_types(schema[inner], f"{place}[]")


def tables_in_views() -> set[str]:
    """Names after FROM and JOIN in every view but `facts`, which lists all facts."""
    views = [path for path in (ROOT / "ledger" / "views").glob("*.sql") if path.stem != "facts"]
    text = "\n".join(re.sub("--.*", "", path.read_text()) for path in views)
    return set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", text, re.IGNORECASE))


def stub_calls() -> dict[str, dict[str, bool]]:
    """The parameters of each call in record_calls.pyi, and whether they have a default."""
    path = Path(inspect.getfile(RecordCalls)).with_suffix(".pyi")
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return {
        call.name: {
            parameter.arg: default is not None
            for parameter, default in zip(call.args.kwonlyargs, call.args.kw_defaults, strict=True)
        }
        for call in classes[0].body
        if isinstance(call, ast.FunctionDef) and not call.name.startswith("_")
    }
