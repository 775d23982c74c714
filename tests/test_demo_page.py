"""docs/DEMO.md, a real run as it is told today."""

from __future__ import annotations

import json
from pathlib import Path

from api.demo.page import SHOWN, page_of, readme_of

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_tells_its_run_as_a_demo_would_today() -> None:
    found = json.loads((DOCS / "demo.json").read_text())
    assert (DOCS / "DEMO.md").read_text() == page_of(found)


def test_the_page_says_what_was_reached_and_how_sure_that_is() -> None:
    found = json.loads((DOCS / "demo.json").read_text())
    after = {**found["pass_at_1_after"], "value": 0.625, "interval": [0.5, 0.75]}
    page = page_of({**found, "pass_at_1_after": after, "deaths": {"engine": 2}})
    assert "62.5%" in page
    assert "50.0% to 75.0%" in page
    assert "Parts that died and were started again\nengine\n     2\n" in page


def test_the_readme_shows_the_first_tables_of_the_same_run() -> None:
    found = json.loads((DOCS / "demo.json").read_text())
    readme = (DOCS.parent / "README.md").read_text()
    assert readme == readme_of(readme, found)
    for title in SHOWN:
        assert f"\n{title}\n" in readme
