"""Templates: what a new sandbox holds. A template is a folder below the templates' folder:

    <name>/files/...        copied to / of each new sandbox (files/home/user/x is ~/x)
    <name>/template.toml    setup = "..."            run in each new sandbox before it is given
                            read_only = ["/opt/x"]   folders of the host, bound where they are
                            [env] NAME = "value"     for each command

Both are optional. `base` always exists: an empty home. Files are packed once, when the server
starts, into a tar file that each new sandbox unpacks itself, so links in it lead nowhere else.
"""

from __future__ import annotations

import tarfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from producers.local_e2b.settings import LocalE2BError

KEYS = {"setup", "read_only", "env"}


@dataclass(frozen=True, slots=True)
class Template:
    """One template, checked and packed."""

    name: str
    archive: Path | None = None
    """Tar file of its files; None: none."""
    setup: str | None = None
    read_only: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])


def load_templates(folder: Path | None, packed: Path) -> dict[str, Template]:
    """All templates by name; tar files go to the folder `packed`. Raises LocalE2BError."""
    templates = {"base": Template("base")}
    if folder is None:
        return templates
    if not folder.is_dir():
        raise LocalE2BError(f"there is no folder of templates {folder}")
    packed.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            templates[path.name] = _load(path, packed / f"{path.name}.tar")
    return templates


def _load(path: Path, archive: Path) -> Template:
    settings = {}
    file = path / "template.toml"
    if file.exists():
        try:
            settings = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise LocalE2BError(f"{file}: {error}") from error
    if unknown := set(settings) - KEYS:
        raise LocalE2BError(f"unknown settings {', '.join(sorted(unknown))} ({file})")
    setup, read_only = settings.get("setup"), settings.get("read_only", [])
    if setup is not None and not isinstance(setup, str):
        raise LocalE2BError(f"setup must be a string, got {setup!r} ({file})")
    for each in read_only:
        if not isinstance(each, str) or not Path(each).is_absolute() or not Path(each).exists():
            raise LocalE2BError(f"read_only must be existing absolute paths, got {each!r} ({file})")
    env = settings.get("env", {})
    if not all(isinstance(value, str) for value in env.values()):
        raise LocalE2BError(f"values of env must be strings, got {env!r} ({file})")
    has_files = (path / "files").is_dir()
    if has_files:
        _pack(path / "files", archive)
    return Template(path.name, archive if has_files else None, setup, tuple(read_only), env)


def _pack(files: Path, archive: Path) -> None:
    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 1000
        member.uname = member.gname = ""
        return member if member.isreg() or member.isdir() or member.issym() else None

    with tarfile.open(archive, "w") as tar:
        for path in sorted(files.iterdir()):  # the root itself is the sandbox's
            tar.add(path, arcname=f"./{path.name}", filter=anonymous)
