"""[serve]: how the book is served, and what a question may cost."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError


class ServeError(ValueError):
    """The book can't be served like this; the message says value, rule and place."""


class ServeSettings(BaseModel):
    """[serve] of rollbook.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """0: any free one."""
    token: SecretStr | None = None
    """What a client must show; null: the one in `token_file`."""
    token_file: Path | None = None
    """Where the token is kept, readable by its owner alone; null: the book's name and .token."""
    quack_port: int | None = Field(9494, ge=1, le=65535)
    """Where DuckDB clients attach, on this machine alone; null: nowhere."""
    answer_s: float = Field(30.0, gt=0)
    """An answer that takes longer is given up."""
    sql_s: float = Field(30.0, gt=0)
    """The same for SQL of a client."""
    sql_memory_mb: int = Field(1024, ge=64)
    """Memory of one process that answers SQL."""
    sql_rows: int = Field(100_000, ge=1)
    """An answer with more rows is an error."""
    sql_mb: int = Field(64, ge=1)
    """The same for its size as JSON."""
    sql_processes: int = Field(2, ge=1, le=64)
    """SQL that is answered at the same time."""
    snapshot_s: float = Field(3.0, ge=0)
    """SQL is answered from a copy of the book that is at most about this old, unless copying takes
    over a twentieth of the time."""
    ready_lag_s: float = Field(30.0, gt=0)
    """Ready means: at most this far behind the log."""
    streams: int = Field(64, ge=1)
    """Clients of /v1/stream at the same time."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ServeSettings:
        """Checked settings. Raises ServeError."""
        try:
            return cls(**given)
        except ValidationError as error:
            # Without the input: it may be the token.
            problems = [
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in error.errors(include_input=False)
            ]
            raise ServeError(f"{'; '.join(problems)} ([serve])") from None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
