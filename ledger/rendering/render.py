"""Renders what the fact classes are the single source of. `python -m ledger.rendering` writes the
files, `--check` only says which are stale, `--release` also keeps each current schema for ever.

    schemas/<fact>.avsc           Avro schema, with documentation
    schemas/released/<fact>.N.avsc  every schema that was ever released
    ledger/tables.sql             the book's tables
    ledger/views/facts.sql        the envelopes of all facts in one view
    ledger/recording/calls.pyi     the recorder's calls, for editors and type checkers
    docs/FACTS.md                 the facts' reference page
    docs/VIEWS.md                 the views' (`views_page.py`)
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast, get_origin

from ledger.avro import header_of, wire_types
from ledger.facts import FACTS, Fact
from ledger.recording.calls import OWN_FACTS
from ledger.rendering import ddl
from ledger.rendering.views_page import views_page
from ledger.wire.schema import (
    Docs,
    any_number_fields,
    avro_schema,
    hints,
    is_enum,
    is_record,
    optional,
    uuid_fields,
)

ROOT = Path(__file__).resolve().parents[2]
RELEASED = ROOT / "schemas" / "released"

_BOUND_IDS = {"run_id", "group_id", "slot", "trajectory_id", "turn_no", "task_id", "sandbox_id"}
_ENVELOPE_OPTIONAL = {"event_id", "occurred_at", "time_quality", "source_ref"}
_ENVELOPE_OWN = {"producer", "incarnation", "producer_seq"}


@cache
def docs_of(cls: type) -> dict[tuple[str, str], str]:
    """Docstrings of a dataclass and its fields, and of the dataclasses it is made of."""
    docs: dict[tuple[str, str], str] = {}
    for owner in reversed([each for each in cls.__mro__ if is_record(each)]):
        tree = ast.parse(inspect.getsource(owner)).body[0]
        assert isinstance(tree, ast.ClassDef)
        docs[owner.__name__, ""] = _one_line(ast.get_docstring(tree) or "")
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                docs[owner.__name__, field.target.id] = _one_line(_string(text))
    for hint in hints(cls).values():
        for inner in _parts(hint):
            docs |= docs_of(inner)
    return docs


@cache
def doc_of(cls: type, field: str) -> str:
    """The documentation of one field, or with "" of the class."""
    docs = docs_of(cls)
    owners = [owner.__name__ for owner in cls.__mro__]
    return next(docs[name, field] for name in owners if docs.get((name, field)))


def _string(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _parts(hint: object) -> Iterator[type]:
    inner, _ = optional(hint)
    if is_record(inner):
        yield inner
    for argument in getattr(inner, "__args__", ()):
        yield from _parts(argument)


def schema_files() -> dict[Path, str]:
    """The .avsc of every wire type."""
    return {
        ROOT / "schemas" / f"{name}.avsc": schema_text(wire.cls, docs_of(wire.cls))
        for name, wire in wire_types().items()
    }


def schema_text(cls: type, docs: Docs) -> str:
    """One schema as it is kept in a file."""
    return json.dumps(avro_schema(cls, docs), indent=2, ensure_ascii=False) + "\n"


def tables() -> str:
    """ledger/tables.sql"""
    return (
        "-- The book's tables of facts, rendered from ledger/facts by `make render`. A row comes\n"
        "-- from the record at log_partition, log_offset of topic `events`, appended at\n"
        "-- log_time.\n\n" + ddl.create_all(doc_of)
    )


def facts_view() -> str:
    """ledger/views/facts.sql"""
    envelope = ", ".join((*ddl.PLACE_COLUMNS, *hints(Fact)))
    selects = "\nUNION ALL\n".join(
        f"SELECT '{name}' AS fact, {envelope} FROM {name}" for name in FACTS
    )
    return (
        "-- One row per fact of any kind: where it lies in the log, and its envelope.\n"
        "-- Rendered from ledger/facts by `make render`.\n"
        f"CREATE OR REPLACE VIEW facts AS\n{selects};\n"
    )


def calls_stub() -> str:
    """ledger/recording/calls.pyi"""
    lines = [
        '"""Rendered from ledger/facts by `make render`: the types of the recorder\'s calls."""',
        "",
        "from datetime import datetime",
        "from typing import Any",
        "from uuid import UUID",
        "",
        "from ledger.facts import *",
        "from ledger.facts.lists import *",
        "from ledger.tokens import Tokens",
        "",
        "OWN_FACTS: tuple[str, ...]",
        "",
        "class RecordCalls:",
        "    def _put(self, name: str, fields: dict[str, Any]) -> None: ...",
    ]
    for name, cls in FACTS.items():
        if name in OWN_FACTS:
            continue
        lines += [f"    def {name}(", "        self,", "        *,"]
        lines += [f"        {parameter}," for parameter in _parameters(name, cls)]
        lines += ["    ) -> None:", f'        """{doc_of(cls, "")}"""']
    return "\n".join(lines) + "\n"


def _parameters(name: str, cls: type) -> list[str]:
    schema = avro_schema(cls)
    parameters: list[str] = []
    for field, hint in zip(schema["fields"], hints(cls).values(), strict=True):
        if field["name"] in _ENVELOPE_OWN:
            continue
        # Ids may come from `bind`, so a checker can't ask for them; the encoder does.
        filled = _BOUND_IDS | _ENVELOPE_OPTIONAL
        default = " = ..." if "default" in field or field["name"] in filled else ""
        text = _hint_text(hint)
        if field["name"] in uuid_fields(cls):
            text = text.replace("str", "str | UUID")
        parameters.append(f"{field['name']}: {text}{default}")
    if name == "turn_completed":
        parameters.append("tokens: Tokens | None = ...")
    return parameters


def _hint_text(hint: object) -> str:
    inner, nullable = optional(hint)
    text = inner.__name__ if isinstance(inner, type) and not hasattr(inner, "__args__") else ""
    if not text:
        arguments = ", ".join(_hint_text(each) for each in getattr(inner, "__args__", ()))
        text = f"{cast(type, get_origin(inner)).__name__}[{arguments}]"
    if text == "Excerpt":
        text = "Excerpt | str"
    return f"{text} | None" if nullable else text


def reference() -> str:
    """docs/FACTS.md"""
    lines = [
        "# Facts",
        "",
        "Rendered from `ledger/facts` by `make render`. Every fact begins with the same envelope;",
        "below each fact stand the fields that it adds. In the book each is a table of that name.",
        "Audit only: no view shows it but `facts`, which lists them all. A number is at least 0",
        "but where its type says any; over HTTP, a fact with another one is refused.",
        "",
    ]
    envelope = list(hints(Fact))
    lines += ["## The envelope", "", *_field_table(Fact, envelope), ""]
    for name, cls in FACTS.items():
        lines += [f"## {name}", "", doc_of(cls, ""), ""]
        lines += _field_table(cls, [field for field in hints(cls) if field not in envelope])
        lines.append("")
    parts = {part.__name__: part for cls in FACTS.values() for part in _deep_parts(cls)}
    lines += ["# Records inside facts", ""]
    for name in sorted(parts):
        lines += [f"## {name}", "", doc_of(parts[name], ""), ""]
        lines += [*_field_table(parts[name], list(hints(parts[name]))), ""]
    return "\n".join(lines).rstrip() + "\n"


def _deep_parts(cls: type) -> Iterator[type]:
    for hint in hints(cls).values():
        for part in _parts(hint):
            yield part
            yield from _deep_parts(part)


def _field_table(cls: type, fields: list[str]) -> list[str]:
    rows = [f"| {field} | {_type_text(cls, field)} | {doc_of(cls, field)} |" for field in fields]
    return ["| field | type | meaning |", "|---|---|---|", *rows]


def _type_text(cls: type, field: str) -> str:
    inner, nullable = optional(hints(cls)[field])
    if is_enum(inner):
        text = " / ".join(member.value for member in inner)
    else:
        text = _hint_text(inner).replace(" | str", "")
    if field in uuid_fields(cls):
        text = text.replace("str", "UUID")
    if field in any_number_fields(cls):
        text = f"{text} (any)"
    return f"{text}, or null" if nullable else text


def rendered() -> dict[Path, str]:
    """Every rendered file and what must stand in it."""
    return schema_files() | {
        ROOT / "ledger" / "tables.sql": tables(),
        ROOT / "ledger" / "views" / "facts.sql": facts_view(),
        ROOT / "ledger" / "recording" / "calls.pyi": calls_stub(),
        ROOT / "docs" / "FACTS.md": reference(),
        ROOT / "docs" / "VIEWS.md": views_page(),
    }


def unreleased() -> dict[Path, str]:
    """Current schemas that no released file has, under their next number."""
    missing: dict[Path, str] = {}
    for name, wire in wire_types().items():
        released = sorted(RELEASED.glob(f"{name}.*.avsc"))
        headers = {header_of(json.loads(file.read_text())) for file in released}
        if wire.header not in headers:
            missing[RELEASED / f"{name}.{len(released) + 1}.avsc"] = schema_text(wire.cls, {})
    return missing


def main(arguments: list[str]) -> int:
    """0: all files are right (now); 1: with --check, some are stale, and named."""
    files = rendered() | (unreleased() if "--release" in arguments else {})
    stale = [file for file, text in files.items() if not file.exists() or file.read_text() != text]
    for file in stale:
        if "--check" in arguments:
            print(f"{file.relative_to(ROOT)} is stale: run `make render`")
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[file])
    return 1 if stale and "--check" in arguments else 0
