"""Compiles what pip installed. A process that imports what isn't compiled does so itself, on one
core and, where bytecode may not be written, each time: an engine starts half a minute to a minute
later.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import sysconfig
from collections.abc import Generator

SELDOM = (
    r"/tests?/",
    r"/testing/",
    r"/transformers/models/\w+/(?!__init__|configuration_|tokenization_)",
    r"/sglang/multimodal_gen/",
    r"/(pip|plotly|pygments/lexers)/",
)
"""Two fifths of all source, of which our processes import no more than a few files."""


@contextlib.contextmanager
def compiled() -> Generator[None]:
    """Around an installation by pip, which keeps one core busy: the other one compiles what was
    there before, both what has come since."""
    with subprocess.Popen(_line(1), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as before:
        try:
            yield
        except BaseException:
            before.kill()
            raise
    # Packages carry files that no Python compiles; what of them is imported tells so itself.
    subprocess.run(_line(0), capture_output=True, check=False)


def _line(workers: int) -> list[str]:
    """The command; 0 workers: one for each core."""
    line = [sys.executable, "-m", "compileall", "-qq", "-j", str(workers), "-x", "|".join(SELDOM)]
    return [*line, sysconfig.get_path("purelib")]
