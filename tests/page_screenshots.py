"""Pictures of the live page for docs/, in light and dark.

python -m tests.page_screenshots --log sqlite:///demo/log.db      docs/page-light.png, page-dark.png
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.browsers import a_browser, opened
from tests.recorded import ROOT
from tests.serving import serving


def main() -> None:
    """Serve a book of the log, and take its pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log", required=True, help="URL of a log, as `rollbook demo` writes one")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", help="folder: docs")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(given.log, Path(folder)) as served,
        a_browser() as browser,
    ):
        served.caught_up()
        for theme in ("light", "dark"):
            with opened(browser, served, color_scheme=theme) as page:
                page.page.wait_for_timeout(500)  # the last chart's letters
                path = given.to / f"page-{theme}.png"
                page.page.screenshot(path=path, full_page=True)
                print(path, page.errors or "")


if __name__ == "__main__":
    main()
