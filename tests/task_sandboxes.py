"""Real sandboxes for tests of tasks: the local server, the e2b SDK, and templates with pytest."""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from producers.local_e2b.launch import LocalE2B
from producers.sandbox import Sandbox
from producers.sandbox_pool import Sandboxes
from producers.sandboxes.settings import SandboxSettings
from producers.tasks.task import Task, Verdict
from producers.tasks.validation import UNRECORDED

T = TypeVar("T")
PYTEST_TEMPLATE = "pytest"


def write_template(folder: Path, name: str = PYTEST_TEMPLATE) -> Path:
    """A template in which `python3 -m pytest` works; its folder."""
    packages = sysconfig.get_path("purelib")
    (folder / name).mkdir(parents=True)
    (folder / name / "template.toml").write_text(
        f'read_only = ["{packages}"]\n[env]\nPYTHONPATH = "{packages}"\n'
    )
    return folder / name


@contextmanager
def local_sandboxes(
    folder: Path, templates: Path, faults: Sequence[str] = ()
) -> Iterator[SandboxSettings]:
    """A server while it is needed."""
    server = LocalE2B(folder, templates=templates, slots=8, unsafe=True, faults=faults)
    url = server.start()
    try:
        yield SandboxSettings(
            api_url=url, sandbox_url=url, api_key="e2b_0", template=PYTEST_TEMPLATE, slots=4
        )
    finally:
        server.stop()


def with_sandboxes(settings: SandboxSettings, work: Callable[[Sandboxes], Awaitable[T]]) -> T:
    """What `work` returns, with sandboxes that are all gone afterwards."""

    async def run() -> T:
        async with Sandboxes(settings) as sandboxes:
            return await work(sandboxes)

    return asyncio.run(run())


async def verdict_on(
    sandboxes: Sandboxes, task: Task, work: Callable[[Sandbox], Awaitable[object]]
) -> Verdict:
    """The verdict on what `work` does in a sandbox with the task."""
    async with sandboxes.open(UNRECORDED, task.template) as sandbox:
        await task.setup(sandbox)
        await work(sandbox)
        return await task.verify(sandbox, partial(sandboxes.instead_of, sandbox, UNRECORDED))
