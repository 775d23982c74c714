"""The accounts, side by side and never summed.

GET /v1/accounts                  which there are, and what they mean
GET /v1/accounts/{account}        one of them
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, JsonValue

from api.server.desk import Desk, Paged
from api.server.pages import PageModel, total_order
from api.server.problems import Problem, problems
from api.server.reports import RunId
from api.server.rows import columns_of, definition_of
from ledger.book import VIEWS


class AccountModel(BaseModel):
    """What an account is."""

    account: str
    view: str
    definition: str
    sql: str


class AccountPage(PageModel):
    """Rows of an account, with what they mean."""

    account: str
    definition: str = Field(description="What one row is.")
    sql: str
    rows: list[dict[str, JsonValue]]


def router(desk: Desk) -> APIRouter:
    """The endpoints above."""
    routes = APIRouter(prefix="/v1", tags=["accounts"], responses=problems(409, 422, 503))

    @routes.get("/accounts")
    async def accounts() -> list[AccountModel]:
        """The accounts that there are."""
        return [_model(view) for view in VIEWS]

    @routes.get("/accounts/{account}", response_model=AccountPage, responses=problems(404))
    async def account(
        request: Request,
        account: str,
        paging: Paged,
        run_id: RunId = None,
        rule_set: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    ) -> Response:
        """One account."""
        view = account.replace("-", "_")
        if view not in VIEWS:
            known = ", ".join(each.replace("_", "-") for each in VIEWS)
            raise Problem(
                404, "not_found", rule=f"accounts are {known}", place="path account", value=account
            )
        columns = {name for name, _ in columns_of(view)}
        filters = {
            name: value
            for name, value in (("run_id", run_id), ("rule_set", rule_set))
            if name in columns
        }
        told = _model(view).model_dump(exclude={"view"})
        return await desk.page(request, view, total_order(view), filters, paging, told)

    return routes


def _model(view: str) -> AccountModel:
    name = view.replace("_", "-")
    return AccountModel(account=name, view=view, definition=definition_of(view), sql=f"FROM {view}")
