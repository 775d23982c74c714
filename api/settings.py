"""Settings: rollbook.toml, over it the environment, over that the command line.

    [log]
    url = "kafka://localhost:9092/lab"
    options = { security_protocol = "SASL_SSL", sasl_plain_password = "..." }
    [book]
    path = "book.duckdb"
    [engines]
    urls = ["http://127.0.0.1:30000"]
    [sandboxes]
    url = "http://127.0.0.1:3000"   # without it: E2B itself, with E2B_API_KEY

In the environment: ROLLBOOK_LOG__URL, ROLLBOOK_BOOK__PATH and so on. An unknown key is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

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

    @property
    def client_options(self) -> dict[str, str]:
        """The options as they would stand in a URL."""
        return {name: str(value) for name, value in self.options.items()}


class BookSettings(_Section):
    """[book]"""

    path: Path = Path("book.duckdb")
    """The DuckDB file."""


class EngineSettings(_Section):
    """[engines]"""

    urls: list[str] = ["http://127.0.0.1:30000"]
    """SGLang servers."""


class SandboxSettings(_Section):
    """[sandboxes]"""

    url: str | None = None
    """An E2B-compatible server; null: E2B itself."""


class AlertSettings(_Section):
    """[alerts]: what a value must not be above; null: not watched."""

    producer_silent: float | None = 60.0
    """Seconds since a producer's last pulse."""
    projector_behind_records: float | None = 10_000
    """Records of the log that the book doesn't have."""
    contamination: float | None = 0
    """Attempts of a run that voted though the decision knew that they were lost."""
    lag_over_bound: float | None = 0
    """Attempts of a run that were trained on with a token over the bound."""
    lag_bound: int | None = None
    """Most versions that a token may be behind; null: what the assembler was told."""
    infrastructure_share: float | None = 0.1
    """Of judged attempts, those that the infrastructure ended."""
    exclusion_share: float | None = 0.25
    """Of a policy version's attempts, those that were excluded."""
    late_contamination_share: float | None = 0.05
    """Of votes, those that turned out too late to be lost."""
    tail_share: float | None = 0.4
    """Of rollout time, what came after 90% of the attempts had ended."""
    truncated_share: float | None = 0.3
    """Of judged attempts, those that ran into a cap."""
    zero_variance_share: float | None = 0.6
    """Of decided groups, those without a gradient."""
    least_attempts: int = 20
    """A share of fewer attempts or groups raises no alert."""


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="ROLLBOOK_", env_nested_delimiter="__", extra="forbid"
    )

    log: LogSettings = LogSettings()
    book: BookSettings = BookSettings()
    assembler: dict[str, Any] = {}
    """[assembler]: see `consumers.assembling.settings`."""
    trainer: dict[str, Any] = {}
    """[trainer]: see `trainer.training_settings`."""
    serve: dict[str, Any] = {}
    """[serve]: see `api.server.settings`."""
    engines: EngineSettings = EngineSettings()
    sandboxes: SandboxSettings = SandboxSettings()
    alerts: AlertSettings = AlertSettings()

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


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a settings file is followed to the letter."""
    names = [f"ROLLBOOK_{name.upper()}" for name in Settings.model_fields]
    return {
        name: value
        for name, value in environment.items()
        if not any(name.upper() == each or name.upper().startswith(f"{each}__") for each in names)
    }


def load(file: Path | None) -> Settings:
    """Settings from `file`, or from rollbook.toml here if there is one. Raises SettingsError."""
    if file is not None and not file.is_file():
        raise SettingsError(f"settings file {file} does not exist (--config)")
    path = file or DEFAULT_FILE

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        return FromFile()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    except SourceError as error:
        raise SettingsError(f"the environment: {error}") from None
    except ValidationError as error:
        # Without the input: it may be a password.
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_input=False)
        ]
        where = path if path.exists() else "the environment"
        raise SettingsError(f"{'; '.join(problems)} ({where})") from None
