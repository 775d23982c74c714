"""Foreign files and their JSON, each value with the place that it stands at.

Invariant: whatever a file holds, reading it gives a value of the type asked for, or raises
BadImport with value, rule and place; never another exception.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

MAX_SHOWN = 60
"""Characters of a wrong value that an error shows."""
MAX_LISTED = 20
"""Names that a note gives one by one."""


class BadImport(ValueError):
    """A foreign file isn't what its format says; the message says value, rule and place."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text file and its digest."""

    name: str
    """Its path below what is imported."""
    sha256: str
    """Hex digest of its bytes."""
    text: str
    """All of it."""

    @classmethod
    def read(cls, path: Path, root: Path) -> Self:
        """Raises BadImport for what can't be read as UTF-8."""
        name = name_below(path, root)
        try:
            content = path.read_bytes()
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise BadImport(f"{name} can't be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise BadImport(f"{name} must be UTF-8, got byte {error.start} that isn't") from None
        return cls(name, hashlib.sha256(content).hexdigest(), text)

    def ref(self, pointer: str = "") -> str:
        """The source_ref of what stands at a JSON pointer of this file."""
        return f"{self.name}#{pointer} sha256:{self.sha256}"

    def json(self) -> Json:
        """The file as JSON. Raises BadImport for a truncated one."""
        try:
            return Json(_parsed(self.text), self)
        except (ValueError, RecursionError) as error:
            raise BadImport(f"{self.name} must be JSON: {error}") from None

    def yaml(self) -> Any:
        """The file as YAML, read without running anything. Raises BadImport."""
        import yaml

        try:
            return yaml.safe_load(self.text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # 2024-13-45 is a ValueError
            raise BadImport(f"{self.name} must be YAML: {error}") from None

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line). Only \\n, \\r and both end one: a JSON text may hold every other
        character that Python would break a line at."""
        for number, line in enumerate(io.StringIO(self.text, newline=None), 1):
            yield number, line.removesuffix("\n")

    def json_lines(self) -> Iterator[Json]:
        """Each line that isn't empty as JSON; its pointer is the line's number from 1."""
        for number, line in self.lines():
            if line.strip():
                try:
                    yield Json(_parsed(line), self, f"/{number}")
                except (ValueError, RecursionError) as error:
                    raise BadImport(f"{self.name} line {number} must be JSON: {error}") from None


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a character, which no UTF-8 can carry."""


def _parsed(text: str) -> Any:
    value = json.loads(text)
    return _repaired(value) if _HALF.search(text) else value


def _repaired(value: Any) -> Any:
    """The same value; half a character is its escape, spelled out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_repaired(each) for each in cast(list[Any], value)]
    if isinstance(value, dict):
        pairs = cast(dict[str, Any], value)
        return {_repaired(key): _repaired(each) for key, each in pairs.items()}
    return value


class Json:
    """A JSON value, where it stands, and its members by the type that a format gives them.

    A member that is missing is null; the `need_` forms raise BadImport for null."""

    __slots__ = ("pointer", "source", "value")

    def __init__(self, value: Any, source: SourceFile, pointer: str = "") -> None:
        self.value = value
        self.source = source
        self.pointer = pointer

    @property
    def ref(self) -> str:
        """The source_ref of facts that were read here."""
        return self.source.ref(self.pointer)

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.source.name}#{self.pointer}"

    def object(self) -> dict[str, Any]:
        """This value, an object."""
        return cast(dict[str, Any], self._of(dict, "an object"))

    def array(self) -> list[Json]:
        """This value, an array."""
        items = cast(list[Any], self._of(list, "an array"))
        return [Json(each, self.source, f"{self.pointer}/{i}") for i, each in enumerate(items)]

    def has(self, name: str) -> bool:
        """Whether there is such a member, and it isn't null."""
        return self.object().get(name) is not None

    def at(self, name: str) -> Json:
        """A member, whatever it is."""
        escaped = name.replace("~", "~0").replace("/", "~1")
        return Json(self.object().get(name), self.source, f"{self.pointer}/{escaped}")

    def member(self, name: str) -> Json:
        """An object; an empty one where it is missing."""
        found = self.at(name)
        if found.value is None:
            return Json({}, self.source, found.pointer)
        found.object()
        return found

    def has_array(self, name: str) -> bool:
        """Whether this is an object with an array of that name."""
        return isinstance(self.value, dict) and isinstance(self.object().get(name), list)

    def entries(self) -> dict[str, Json]:
        """The members of this value, an object."""
        return {key: self.at(key) for key in self.object()}

    def members(self, name: str) -> dict[str, Json]:
        """The members of an object; none where it is missing."""
        return self.member(name).entries()

    def numbers(self, *, flags: bool = False) -> dict[str, float]:
        """The members of this value that are numbers, or with `flags` true and false as well; one
        that fits in no double is left out."""
        kinds = (int, float, bool) if flags else (int, float)
        found: dict[str, float] = {}
        for name, value in self.object().items():
            if type(value) in kinds:
                with contextlib.suppress(OverflowError):
                    found[name] = float(value)
        return found

    def items(self, name: str) -> list[Json]:
        """The items of an array; none where it is missing."""
        found = self.at(name)
        return [] if found.value is None else found.array()

    def text(self, name: str) -> str | None:
        return self.at(name).as_text()

    def need_text(self, name: str) -> str:
        return self._need(name, self.text(name))

    def integer(self, name: str) -> int | None:
        return self.at(name).as_integer()

    def number(self, name: str) -> float | None:
        return self.at(name).as_number()

    def flag(self, name: str) -> bool | None:
        found = self.at(name)
        return None if found.value is None else cast(bool, found._of(bool, "true or false"))

    def as_text(self) -> str | None:
        return None if self.value is None else cast(str, self._of(str, "text"))

    def as_integer(self) -> int | None:
        """A whole number, also where it is written 5.0."""
        number = self.as_number()
        if number is None:
            return None
        if not math.isfinite(number) or number != int(number):
            raise self.wrong("a whole number")
        if abs(number) >= 2**63:
            raise self.wrong("a whole number of 64 bits")
        return int(self.value)

    def as_number(self) -> float | None:
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong("a number")
        try:
            return float(self.value)
        except OverflowError:
            raise self.wrong("a number that fits in a double") from None

    def wrong(self, rule: str) -> BadImport:
        """The error for a value that isn't as it must be."""
        try:
            text = json.dumps(self.value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):  # rings, odd names
            text = repr(self.value)
        return BadImport(f"{self.place} must be {rule}, got {shown(text)}")

    def _of(self, kind: type, rule: str) -> Any:
        if not isinstance(self.value, kind):
            raise self.wrong(rule)
        return self.value

    def _need(self, name: str, value: str | None) -> str:
        if value is None:
            raise self.at(name).wrong("given")
        return value


def name_below(path: Path, root: Path) -> str:
    """How a file is called: its path below what is imported."""
    return path.relative_to(root).as_posix() if path != root else path.name


def digest_of(text: str) -> str:
    """SHA-256 of a text, hex; a character that UTF-8 can't carry counts as its escape."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def shown(text: str) -> str:
    """The beginning of a text, for an error."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def listed(names: Sequence[str]) -> str:
    """Names for a note; of many, the first and how many more."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
