"""The page at `/`, and the way in.

    GET  /            the page; for a browser without the token, a form that asks for it
    GET  /?token=     moves the token from the address into a cookie of this site
    POST /            the same from the form, so that it never stands in an address
    GET  /static/...  scripts and styles; only with the token

Invariants: the page loads nothing from elsewhere and tells nobody where it was (its headers forbid
both); the shell holds nothing of the book, so it may be served before anybody has shown a token.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs

import plotly
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.staticfiles import StaticFiles

from api.server.access import COOKIE, Gate
from ledger.facts.lists import Outcome

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
"""The charts' script, from the wheel: the page works without a network."""
HEADERS = {
    # Plotly writes a style element of its own; scripts come from files of this site alone.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
FORM_BYTES = 4096
"""A longer form holds no token."""


def add_home(app: FastAPI, gate: Gate) -> None:
    """The routes above."""
    templates = Environment(
        loader=PackageLoader("api.pages"), autoescape=select_autoescape(), trim_blocks=True
    )

    def sign_in(status: int, wrong: bool = False) -> Response:
        text = templates.get_template("sign_in.html").render(wrong=wrong)
        return HTMLResponse(text, status, HEADERS)

    def let_in(token: str) -> Response:
        answer = RedirectResponse("/", 303, HEADERS)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return answer

    @app.get("/", include_in_schema=False)
    async def home(request: Request, token: str | None = None) -> Response:
        """The page, or the way to it."""
        if token is not None:
            known = gate.opens_to(token)
            return let_in(token) if known else RedirectResponse("/", 303, HEADERS)
        if not gate.opens_to(request.cookies.get(COOKIE)):
            return sign_in(200)
        text = templates.get_template("page.html").render(outcomes=list(Outcome))
        return HTMLResponse(text, headers=HEADERS)

    @app.post("/", include_in_schema=False)
    async def enter(request: Request) -> Response:
        """The form's token."""
        body = (await request.body())[:FORM_BYTES].decode("utf-8", "replace")
        token = parse_qs(body).get("token", [""])[0].strip()
        return let_in(token) if gate.opens_to(token) else sign_in(401, wrong=True)

    kept = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}

    @app.get("/static/plotly.min.js", include_in_schema=False)
    async def charts() -> Response:
        """The charts' script."""
        return FileResponse(PLOTLY, media_type="text/javascript", headers=kept)

    app.mount("/static", _Static(directory=str(files("api.pages") / "static")))


class _Static(StaticFiles):
    """Files that a browser asks about each time, so that a page and its scripts fit together."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
