"""Spools: where facts wait while the log is away, one file per incarnation in a folder per log.

A lock beside a file (`spool_owner.py`) tells whether its owner lives; the file of a dead one
(`spool_file.py`) is drained by the next producer that starts with the same log and folder, or by
`drain_orphans`. The lock goes with the process, so a killed owner leaves nothing to clean up.

    <root>/<digest of the log's place>/<producer>-<incarnation>.spool
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ledger.log import EventLog, LogUnavailable
from ledger.open_log import check_url, sqlite_path
from ledger.recording.spool_file import Spool

logger = logging.getLogger(__name__)

SUFFIX = ".spool"


def default_root() -> Path:
    """`$ROLLBOOK_SPOOL_DIR`, else a folder of the user's state directory."""
    if named := os.environ.get("ROLLBOOK_SPOOL_DIR"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "rollbook" / "spool"


def folder_of(root: Path, url: str) -> Path:
    """Where spools for the log at `url` lie. Two logs never share a folder, and a log has one
    whatever client options or login its URL has."""
    if check_url(url) == "sqlite":
        place = f"sqlite:{os.path.realpath(sqlite_path(url))}"
    else:
        parts = urlsplit(url)
        hosts = sorted(parts.netloc.rpartition("@")[2].lower().split(","))
        place = f"kafka://{','.join(hosts)}/{parts.path.strip('/')}"
    return root / hashlib.sha256(os.fsencode(place)).hexdigest()[:16]


def spool_name(producer: str, incarnation: str) -> str:
    """The file name of an incarnation's spool, whatever characters its producer's name has."""
    return f"{re.sub('[^A-Za-z0-9._-]', '_', producer)[:80]}-{incarnation}{SUFFIX}"


def orphans(folder: Path) -> Iterator[Spool]:
    """Spools that dead owners left in `folder`, oldest first, each taken over when it is
    yielded. One that can't be had is logged and left where it is."""
    left = {path.with_suffix(SUFFIX) for path in folder.glob("*.owner")}
    for path in sorted(left.union(folder.glob(f"*{SUFFIX}")), key=_changed_at):
        spool = Spool(path)
        try:
            adopted = spool.adopt()
        except FileNotFoundError:
            continue
        except (LogUnavailable, OSError) as error:
            logger.warning("spool %s can't be drained now: %s", path, error)
            continue
        if adopted:
            yield spool


def drain_orphans(log: EventLog, folder: Path, timeout_s: float) -> int:
    """Bring the spools that dead owners left in `folder` to `log`; records moved.

    `timeout_s` is for one append. Raises what an append does; what is left then stays spooled."""
    moved = 0
    for spool in orphans(folder):
        try:
            while not spool.empty:
                moved += spool.drain(log, timeout_s)
        finally:
            spool.close()
    return moved


def _changed_at(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
