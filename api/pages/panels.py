"""What each panel of the page asks of the book.

    GET /v1/panels/{panel}    rows of one panel of one run, with its definition and its SQL

An account answers with all its rows, oldest first; a panel is the stretch of it that one can look
at, and never more than `MOST` rows, however long the run.

Invariant: the SQL in an answer is, letter by letter, what was asked; so whoever doubts a figure
can ask again.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, JsonValue

from api.pages.figures import FIGURES, Figure, Panel
from api.server.accounts import RuleSet, completed, refuse_unknown
from api.server.desk import Desk
from api.server.pages import AsOf
from api.server.places import show
from api.server.problems import problems
from api.server.reading import Reading
from ledger.accounts.registry import definition_of, find_account

MOST = 5_000
"""Rows of an answer."""


class PanelModel(BaseModel):
    """Rows of a panel, with what they mean."""

    position: str = Field(description="Where the book was, as positions of the log.")
    panel: str = Field(examples=["step_time"])
    account: str | None = Field(description="The account that it is of; null: none.")
    definition: str = Field(description="What one row is.")
    numerator: str = Field(description="What its figures count.")
    denominator: str = Field(description="What they are held against.")
    window: str = Field(description="Over which time they are.")
    excluded: str = Field(description="What is not in them.")
    sql: str = Field(description="The very query, to ask again.")
    rule_set: int | None = Field(description="That judged; null: none has, or none is needed.")
    left_out: bool = Field(description="Whether there are more rows than are given.")
    rows: list[dict[str, JsonValue]]


def router(desk: Desk) -> APIRouter:
    """The endpoint above."""
    routes = APIRouter(prefix="/v1", tags=["panels"], responses=problems(409, 422, 503))

    @routes.get("/panels/{panel}", response_model=PanelModel)
    async def panel(
        request: Request,
        panel: Panel,
        run_id: Annotated[UUID, Query(description="Of this run.")],
        rule_set: RuleSet = None,
        step: Annotated[
            int | None, Query(ge=0, lt=2**62, description="Of this step, where one is looked at.")
        ] = None,
        as_of: AsOf = None,
    ) -> Response:
        """One panel. Without a rule set: by the newest that has judged the run."""

        def look(reading: Reading) -> dict[str, Any]:
            return _told(reading, panel, run_id, rule_set, step)

        key = ("panel", panel, run_id, rule_set, step)
        return await desk.give(request, key, look, as_of)

    return routes


def _told(
    reading: Reading, panel: Panel, run_id: UUID, rule_set: int | None, step: int | None
) -> dict[str, Any]:
    refuse_unknown(reading, rule_set)
    figure = FIGURES[panel]
    sql = _query(panel)
    judged = rule_set
    if "$rule_set" in sql and judged is None:
        judged = _newest(reading, run_id)
    sql = filled(sql, run_id=run_id, rule_set=judged, asked_rule_set=rule_set, step=step)
    rows = reading.rows(f"FROM ({sql}) LIMIT {MOST + 1}")
    return {
        "position": show(reading.positions),
        "panel": panel.value,
        **_meaning(figure),
        "sql": sql,
        "rule_set": judged,
        "left_out": len(rows) > MOST,
        "rows": completed(reading, figure.account, rows[:MOST]),
    }


def filled(sql: str, **values: UUID | int | None) -> str:
    """A query with its values written out: nothing but ids and numbers, so nothing to escape."""
    for name, value in values.items():
        text = "NULL" if value is None else f"UUID '{value}'" if isinstance(value, UUID) else value
        sql = sql.replace(f"${name}", str(text))
    return sql


def _newest(reading: Reading, run_id: UUID) -> int | None:
    row = reading.one(
        "SELECT max(rule_set) AS it FROM trajectory_judged WHERE run_id = ?", [run_id]
    )
    return None if row is None else row["it"]


@cache
def _query(panel: Panel) -> str:
    text = files("api.pages").joinpath(f"sql/{panel}.sql").read_text()
    return text.strip().rstrip(";")


def _meaning(figure: Figure) -> dict[str, Any]:
    """An account's own words, where the panel has none of its own."""
    account = None if figure.account is None else find_account(figure.account)
    return {
        "account": None if account is None else account.name,
        "definition": figure.definition or ("" if account is None else definition_of(account.view)),
        "numerator": figure.numerator,
        "denominator": figure.denominator,
        "window": figure.window or ("" if account is None else account.window),
        "excluded": figure.excluded or ("" if account is None else account.excluded),
    }
