"""One record in the bytes of every schema ever released, and what it says.

    tests/released/turn_completed.1.avsc.bin    the bytes, as they lie in a log
    tests/released/turn_completed.1.avsc.json   the fields that were written

`python -m tests.released` writes them for schemas that have none yet. They are never written
again: logs hold such bytes, and every later version must read them to the same values.
"""

from __future__ import annotations

import json
from pathlib import Path

from ledger.avro import WriterSchema, encode, header_of, writer_schemas
from ledger.rendering.render import RELEASED
from tests.builders import a_record, plain

HERE = Path(__file__).parent


def released_names() -> list[str]:
    """File names of all released schemas."""
    return sorted(path.name for path in RELEASED.glob("*.avsc"))


def writer_of(name: str) -> WriterSchema:
    """What the library knows of a released schema."""
    return writer_schemas()[header_of(json.loads((RELEASED / name).read_text()))]


def write_missing() -> list[str]:
    """Write what is missing; names of the schemas that it was written for."""
    missing = [name for name in released_names() if not (HERE / f"{name}.bin").exists()]
    for name in missing:
        writer = writer_of(name)
        if writer.released:
            raise SystemExit(f"{name} is no current schema any more: its bytes can't be made up")
        record = a_record(writer.wire.cls)
        fields = {field: getattr(record, field) for field in record.__dataclass_fields__}
        text = json.dumps(plain(record), indent=2, ensure_ascii=False) + "\n"
        (HERE / f"{name}.bin").write_bytes(encode(writer.wire, writer.wire.check.datum(fields)))
        (HERE / f"{name}.json").write_text(text)
    return missing
