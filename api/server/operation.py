"""For whoever operates it.

GET /healthz    the process answers                    GET /metrics    for Prometheus
GET /readyz     the book keeps up with the log
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.server.owner import Owner
from api.server.places import show
from api.server.problems import problems

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Health(BaseModel):
    """The process answers."""

    status: str = Field("ok", examples=["ok"])


class Readiness(BaseModel):
    """How far the book is behind its log."""

    ready: bool
    position: str = Field(description="Where the book is.", examples=["events/0:1200"])
    behind: int = Field(description="Records between the book and the log's end.")
    lag_s: float = Field(description="Seconds since the book was at the log's end.")
    failure: str | None = Field(description="Why nothing is projected; null: it is.")


class Measures:
    """What is counted while the server runs; the book's own standing is asked for when needed."""

    def __init__(self, owner: Owner) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Book(owner))
        self.requests = Histogram(
            "rollbook_http_seconds",
            "Seconds from a request to the begin of its answer.",
            ("route", "status"),
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )


class _Book(Collector):
    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def collect(self) -> Iterator[Metric]:
        standing, done = self._owner.standing, self._owner.projected
        read = GaugeMetricFamily(
            "rollbook_book_position", "The next offset that the book reads.", labels=["place"]
        )
        ends = GaugeMetricFamily("rollbook_log_end", "Where the log ends.", labels=["place"])
        for family, positions in ((read, standing.positions), (ends, standing.ends)):
            for place, offset in sorted(positions.items()):
                family.add_metric([str(place)], offset)
        yield read
        yield ends
        yield GaugeMetricFamily(
            "rollbook_behind_records", "Records not yet in the book.", standing.behind
        )
        yield GaugeMetricFamily(
            "rollbook_lag_seconds", "Seconds since the book was at the log's end.", standing.lag_s
        )
        yield GaugeMetricFamily(
            "rollbook_projecting", "1 while facts are projected.", float(standing.failure is None)
        )
        for name, what, value in (
            ("facts", "Facts put into the book since the start.", done.facts),
            ("duplicates", "Facts that came again and count once.", done.duplicates),
            ("quarantined", "Records that are no fact the book can take.", done.quarantined),
        ):
            yield CounterMetricFamily(f"rollbook_{name}", what, value)


class Timed:
    """ASGI middleware: times every request by its route."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self._app = app
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = time.monotonic()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's pattern: a path has ids in it, which would be a series each.
                route = getattr(scope.get("route"), "path", "none")
                seconds = time.monotonic() - began
                self._measures.requests.labels(route, message["status"]).observe(seconds)
            await send(message)

        return await self._app(scope, receive, timed)


def router(owner: Owner, measures: Measures) -> APIRouter:
    """The endpoints above."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/healthz")
    async def healthz() -> Health:
        """Whether the process answers at all; needs no token."""
        return Health(status="ok")

    @routes.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready."}})
    async def readyz() -> Readiness:
        """Whether the book keeps up with the log; needs no token, and tells nothing without one
        but how far it is."""
        standing = owner.standing
        ready = standing.failure is None and standing.lag_s <= owner.settings.ready_lag_s
        told = Readiness(
            ready=ready,
            position=show(standing.positions),
            behind=standing.behind,
            lag_s=round(standing.lag_s, 3),
            failure=None if standing.failure is None else standing.failure.partition(":")[0],
        )
        return told if ready else JSONResponse(told.model_dump(), 503)  # type: ignore[return-value]

    @routes.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=problems(),
    )
    def metrics() -> Response:
        """For Prometheus, in its text format."""
        return Response(generate_latest(measures.registry), media_type=CONTENT_TYPE)

    return routes
