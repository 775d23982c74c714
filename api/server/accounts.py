"""The accounts, side by side and never summed.

    GET /v1/accounts                  which there are, and what they mean
    GET /v1/accounts/{account}        one of them: the rows that `rollbook report` prints
    GET /v1/compare                   two runs beside one another, as `rollbook compare` prints them

Numerators and denominators are columns of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, JsonValue

from api.compare_commands import Compared, compared
from api.server.desk import Desk, Paged
from api.server.pages import AsOf, PageModel, total_order
from api.server.places import show
from api.server.problems import Problem, problems
from api.server.reading import Reading, Row
from api.server.reports import RunId
from api.server.rows import columns_of
from ledger.accounts.outcomes import TASKS
from ledger.accounts.registry import (
    ACCOUNTS,
    Account,
    UnknownAccount,
    definition_of,
    find_account,
)
from ledger.accounts.reports import COMPUTED, extended
from ledger.accounts.rule_sets import IN_BOOK, check_rule_set
from ledger.book import BookError

RuleSet = Annotated[int | None, Query(ge=0, lt=2**31, description="Rows of one rule set alone.")]


class AccountModel(BaseModel):
    """What an account is."""

    account: str = Field(examples=["step-time"])
    definition: str = Field(description="What one row is.")
    window: str = Field(description="Over which time a row is.")
    excluded: str = Field(description="What is in no row, or not in its figures.")
    sql: str = Field(description="The same, to ask in SQL.")


class AccountPage(PageModel, AccountModel):
    """Rows of an account, with what they mean."""

    rule_sets: list[int | None] = Field(
        description="Rule sets of the rows; empty where nothing depends on judgement."
    )
    problems: dict[str, int] = Field(
        description="What keeps the book from being the whole story; empty: nothing."
    )
    rows: list[dict[str, JsonValue]]


class Comparison(BaseModel):
    """Two runs beside one another."""

    position: str = Field(description="Where the book was, as positions of the log.")
    account: Compared
    a: str
    b: str
    lines: list[dict[str, JsonValue]] = Field(
        description="Ratios, work, resources and settings that differ, and the verdict last."
    )


def router(desk: Desk) -> APIRouter:
    """The endpoints above."""
    routes = APIRouter(prefix="/v1", tags=["accounts"], responses=problems(409, 422, 503))

    @routes.get("/accounts")
    async def accounts() -> list[AccountModel]:
        """The accounts that there are, in the order of a run's story."""
        return [_model(each) for each in ACCOUNTS]

    @routes.get("/accounts/{account}", response_model=AccountPage, responses=problems(404))
    async def account(
        request: Request,
        account: str,
        paging: Paged,
        run_id: RunId = None,
        rule_set: RuleSet = None,
    ) -> Response:
        """One account. A filter is ignored by an account that doesn't have its column."""
        asked = _found(account)
        columns = [name for name, _ in columns_of(asked.view)]
        given = {"run_id": run_id, "rule_set": rule_set}
        filters = {name: value for name, value in given.items() if name in columns}
        order = total_order(asked.view, asked.order)

        def finish(reading: Reading, page: dict[str, Any]) -> dict[str, Any]:
            if rule_set is not None:  # which this reading may show a part of
                with desk.owner.readings.open() as whole:
                    refuse_unknown(whole, rule_set)
            page["rows"] = completed(reading, asked.view, page["rows"])
            judged = {row["rule_set"] for row in page["rows"]} if "rule_set" in columns else set()
            page["rule_sets"] = sorted(judged, key=lambda each: (each is None, each or 0))
            page["problems"] = {
                row["problem"]: int(row["records"])
                for row in reading.rows("FROM book_problems ORDER BY ALL")
            }
            return _model(asked).model_dump() | page

        return await desk.page(request, asked.view, order, filters, paging, finish)

    @routes.get("/compare", response_model=Comparison)
    async def compare(
        request: Request,
        account: Compared,
        a: Annotated[str, Query(min_length=1, max_length=200, description="RUN or RUN/NUMBER.")],
        b: Annotated[str, Query(min_length=1, max_length=200, description="The other one.")],
        rule_set: RuleSet = None,
        as_of: AsOf = None,
    ) -> Response:
        """Two runs, by their ids or names; a number behind a slash is a span of constant resources,
        or a policy version."""

        def look(reading: Reading) -> Any:
            lines = _compared(reading, account, a, b, rule_set)
            told = {"position": show(reading.positions), "account": account.value, "a": a, "b": b}
            return told | {"lines": [dataclasses.asdict(line) for line in lines]}

        return await desk.give(request, ("compare", account, a, b, rule_set), look, as_of)

    return routes


def _found(name: str) -> Account:
    try:
        return find_account(name)
    except UnknownAccount as error:
        raise Problem(
            404, "not_found", rule=str(error).partition(";")[0], place="path account", value=name
        ) from None


def refuse_unknown(reading: Reading, rule_set: int | None) -> None:
    """Raise Problem for a rule set that there isn't; null: none was asked for."""
    if rule_set is None:
        return
    try:
        check_rule_set(rule_set, (row["rule_set"] for row in reading.rows(IN_BOOK)))
    except BookError as error:
        rule = str(error).partition(", got")[0]
        raise Problem(422, "invalid", rule=rule, place="query rule_set", value=rule_set) from None


def _model(account: Account) -> AccountModel:
    return AccountModel(
        account=account.name,
        definition=definition_of(account.view),
        window=account.window,
        excluded=account.excluded,
        sql=f"FROM {account.view} ORDER BY {account.order}",
    )


def completed(reading: Reading, view: str | None, rows: list[Row]) -> list[Row]:
    """Rows of a view with the columns that are computed beside them; null: no view's."""
    if view is None or view not in COMPUTED:
        return rows
    have = frozenset[UUID]() if reading.source is None else reading.source.kept
    return extended(reading.cursor_for(view, TASKS), view, rows, have)


def _compared(
    reading: Reading, account: Compared, a: str, b: str, rule_set: int | None
) -> Sequence[Any]:
    try:
        return compared(reading.cursor, account, a, b, rule_set)
    except (BookError, ValueError) as error:
        raise Problem(422, "not_comparable", rule=str(error), place="query a, b") from None
