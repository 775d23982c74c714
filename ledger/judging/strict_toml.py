"""TOML tables read strictly: an unknown key, a missing one or a wrong type is an error that names
the file and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypeVar

E = TypeVar("E", bound=StrEnum)

_REQUIRED: Any = object()


class RulesError(ValueError):
    """A file of rules is wrong; the message says value, rule, file and key."""


def read_toml(text: str, file: str) -> Table:
    """The top table of a file. Raises RulesError."""
    try:
        return Table(tomllib.loads(text), file, "")
    except tomllib.TOMLDecodeError as error:
        raise RulesError(f"{file} is not TOML: {error}") from error


class Table:
    """One table; every key that was asked for is taken."""

    def __init__(self, data: dict[str, Any], file: str, path: str) -> None:
        self._data = data
        self._file = file
        self._path = path
        self._taken: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        """Its keys, in the file's order."""
        return iter(self._data)

    def error(self, key: str, problem: str) -> RulesError:
        """The error for one of its keys."""
        return RulesError(f"{self._file}: {self._path}{key}: {problem}")

    def text(self, key: str, default: str | None = _REQUIRED) -> str:
        return self._get(key, str, "a text", default)

    def boolean(self, key: str, default: bool = _REQUIRED) -> bool:
        return self._get(key, bool, "true or false", default)

    def whole(self, key: str, least: int) -> int:
        value = self._get(key, int, "a whole number", _REQUIRED)
        if value < least:
            raise self.error(key, f"must be at least {least}, got {value}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        value = float(self._get(key, (int, float), "a number", _REQUIRED))
        if not least <= value <= most:
            raise self.error(key, f"must be {least} to {most}, got {value}")
        return value

    def texts(self, key: str, default: list[str] = _REQUIRED) -> list[str]:
        """A list of texts, each once."""
        values: list[Any] = self._get(key, list, "a list of texts", default)
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(key, f"must be a list of texts, got {value!r} in it")
            if value in values[:i]:
                raise self.error(key, f"{value!r} stands in it twice")
        return values

    def one_of(self, key: str, enum: type[E], default: E | None = _REQUIRED) -> E | None:
        """A value of a closed list."""
        if (value := self._get(key, str, "a text", default)) is None:
            return None
        return self._member(key, enum, value)

    def some_of(self, key: str, enum: type[E]) -> list[E]:
        """Values of a closed list, each once; none if the key is absent."""
        return [self._member(key, enum, value) for value in self.texts(key, [])]

    def table(self, key: str) -> Table:
        return Table(self._get(key, dict, "a table", _REQUIRED), self._file, f"{self._path}{key}.")

    def tables(self, key: str) -> list[Table]:
        """An array of tables, which must not be empty."""
        values: list[Any] = self._get(key, list, "an array of tables", _REQUIRED)
        if not values or not all(isinstance(each, dict) for each in values):
            raise self.error(key, "must be an array of tables with one at least")
        return [
            Table(each, self._file, f"{self._path}{key}[{i}].") for i, each in enumerate(values)
        ]

    def nothing_else(self) -> None:
        """Raise RulesError for a key that nobody asked for."""
        for key in self._data:
            if key not in self._taken:
                known = ", ".join(sorted(self._taken))
                raise self.error(key, f"is no key here (keys: {known})")

    def _get(self, key: str, kind: Any, what: str, default: Any) -> Any:
        self._taken.add(key)
        if key not in self._data:
            if default is _REQUIRED:
                raise self.error(key, "is required")
            return default
        value = self._data[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"must be {what}, got {value!r}")
        return value

    def _member(self, key: str, enum: type[E], value: str) -> E:
        try:
            return enum(value)
        except ValueError:
            allowed = ", ".join(enum)
            raise self.error(key, f"must be one of {allowed}, got {value!r}") from None
