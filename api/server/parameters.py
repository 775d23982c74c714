"""A parameter that an endpoint doesn't know is refused: passed over, a filter with a typo would be
answered with everything.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from api.server.problems import Problem


def check_parameters(request: Request) -> None:
    """Raise Problem for a query parameter that isn't in the OpenAPI document."""
    path = request.app.openapi()["paths"].get(request.scope["route"].path_format, {})
    operation: dict[str, Any] | None = path.get(request.method.lower())
    if operation is None:
        return
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            raise Problem(
                422,
                "unknown_parameter",
                rule=f"a parameter must be one of {', '.join(known) or 'none'}",
                place=f"query {name}"[:200],
                value=request.query_params[name],
            )
