"""Settings: rollbook.toml, over it the environment, over that the command line.

    [log]
    url = "kafka://localhost:9092/lab"
    options = { security_protocol = "SASL_SSL", sasl_plain_password = "..." }
    [book]
    path = "book.duckdb"
    [spool]
    dir = "/var/lib/rollbook/spool"

In the environment: ROLLBOOK_LOG__URL, ROLLBOOK_BOOK__PATH and so on. An unknown key is an error.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from ledger.recording.spool import default_root

DEFAULT_FILE = Path("rollbook.toml")


class SettingsError(ValueError):
    """A setting is unknown or wrong; the message says value, rule and place."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LogSettings(_Section):
    """[log]"""

    url: str = "sqlite:///rollbook.db"
    """For `ledger.open_log`."""
    options: dict[str, Any] = {}
    """Kafka client options that should not stand in the URL."""


class BookSettings(_Section):
    """[book]"""

    path: Path = Path("book.duckdb")
    """The DuckDB file."""


class SpoolSettings(_Section):
    """[spool]"""

    dir: Path | None = None
    """Where recorders keep facts while the log is away; null: the user's state directory."""

    @property
    def root(self) -> Path:
        """The directory itself."""
        return self.dir or default_root()


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="ROLLBOOK_", env_nested_delimiter="__", extra="forbid"
    )

    log: LogSettings = LogSettings()
    book: BookSettings = BookSettings()
    spool: SpoolSettings = SpoolSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(file: Path | None) -> Settings:
    """Settings from `file`, or from rollbook.toml here if there is one. Raises SettingsError."""
    if file is not None and not file.exists():
        raise SettingsError(f"settings file {file} does not exist (--config)")
    path = file or DEFAULT_FILE

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        return FromFile()
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        # Without the input: it may be a password.
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_input=False)
        ]
        where = path if path.exists() else "the environment"
        raise SettingsError(f"{'; '.join(problems)} ({where})") from None
