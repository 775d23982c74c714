"""Settings that are one of a few words."""

from __future__ import annotations

from enum import StrEnum


def settle(settings: object, **choices: type[StrEnum]) -> None:
    """Makes members of what a frozen dataclass was given as words, as a file or a command line
    has them. Raises ValueError for another word."""
    for name, kind in choices.items():
        word = getattr(settings, name)
        try:
            object.__setattr__(settings, name, kind(word))
        except ValueError:
            known = ", ".join(kind)
            raise ValueError(f"{name} must be one of {known}, got {word!r}") from None
