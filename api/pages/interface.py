"""The page at `/docs`: what may be asked of the server, from its OpenAPI document.

Invariant: the page is whole by itself; it loads nothing, from here or from elsewhere.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape

from api.pages.home import HEADERS


def add_interface(app: FastAPI) -> None:
    """GET /docs."""
    templates = Environment(
        loader=PackageLoader("api.pages"), autoescape=select_autoescape(), trim_blocks=True
    )

    @app.get("/docs", include_in_schema=False)
    async def interface() -> Response:
        """The interface, for people."""
        document = app.openapi()
        text = templates.get_template("interface.html").render(
            info=document["info"], operations=operations_of(document)
        )
        return HTMLResponse(text, headers=HEADERS)


def operations_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every operation of an OpenAPI document by path: method, texts, parameters with their type,
    statuses."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "text": told.get("description") or told.get("summary") or "",
            "parameters": [
                {
                    "name": each["name"],
                    "where": each["in"],
                    "required": each.get("required", False),
                    "type": type_of(each.get("schema", {})),
                    "text": each.get("description", ""),
                }
                for each in told.get("parameters", [])
            ],
            "takes": sorted(told.get("requestBody", {}).get("content", {})),
            "answers": sorted(told.get("responses", {})),
        }
        for path, methods in sorted(document["paths"].items())
        for method, told in sorted(methods.items())
    ]


def type_of(schema: dict[str, Any]) -> str:
    """A schema in a word: `integer`, `array of string`, `a | b` of an enumeration."""
    if "anyOf" in schema:
        return " or ".join(type_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"array of {type_of(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
