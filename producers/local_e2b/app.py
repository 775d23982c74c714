"""The application: routes, and how errors are answered."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, Request, Response

from producers.local_e2b import control, envd, envd_files
from producers.local_e2b.fault_log import FaultLog
from producers.local_e2b.faults import FaultPlan, Rule, load_rules, parse_rule
from producers.local_e2b.isolation import Host
from producers.local_e2b.server import Refusal, Server
from producers.local_e2b.settings import Settings
from producers.local_e2b.store import Store
from producers.local_e2b.templates import load_templates

FAULTS_FILE = "faults.jsonl"


def make_app(settings: Settings, host: Host, boxes: Path) -> FastAPI:
    """The server over its folder, which exists and is ours alone. Raises LocalE2BError."""
    templates = load_templates(settings.templates, settings.folder / "templates")
    plan = FaultPlan(rules_of(settings.faults), settings.seed)

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        store = Store(settings, host, boxes)
        faults = FaultLog(settings.folder / FAULTS_FILE)
        app.state.server = Server(settings, store, templates, plan, faults)
        try:
            yield
        finally:
            await store.close()

    app = FastAPI(lifespan=life, openapi_url=None)
    for part in (control, envd, envd_files):
        app.include_router(part.router)

    @app.exception_handler(Refusal)
    async def refuse(_: Request, refusal: Refusal) -> Response:
        return refusal.response()

    return app


def rules_of(texts: tuple[str, ...]) -> list[Rule]:
    """Each text is a rule or the path of a TOML file of rules. Raises LocalE2BError."""
    rules: list[Rule] = []
    for text in texts:
        rules += load_rules(Path(text)) if text.endswith(".toml") else [parse_rule(text)]
    return rules
