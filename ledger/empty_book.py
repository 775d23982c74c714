"""An empty book, made once in a process; every other new book is a copy of it.

Making the views takes most of a second, for each is bound with all that it selects from.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import duckdb

Statements = tuple[str, ...]
"""SQL that makes an empty book of an empty file."""

_made: dict[Statements, bytes] = {}
"""Content of the file."""


def is_made(statements: Statements) -> bool:
    """Whether a copy would cost no making."""
    return statements in _made


def copy_to(path: Path, statements: Statements) -> None:
    """Put a file that these SQL statements have made at `path`, unless there is one. It is whole
    from the moment it is there."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        file = Path(folder, "empty")
        if statements not in _made:
            with contextlib.closing(duckdb.connect(str(file))) as connection:
                for statement in statements:
                    connection.execute(statement)
            _made[statements] = file.read_bytes()
        else:
            file.write_bytes(_made[statements])
        try:
            os.link(file, path)
        except FileExistsError:
            pass  # somebody else was first: theirs is the book
        except OSError:  # a file system without hard links
            if not path.exists():
                file.rename(path)
