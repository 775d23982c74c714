"""SIGTERM and Ctrl-C: a command is asked to end, and ends by itself.

Invariant: a handler only asks. What is in hand is finished or cancelled by whoever has it, so that
its last facts are written.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

from api.output import say

ENDINGS = (signal.SIGINT, signal.SIGTERM)


def stop_on_signals() -> threading.Event:
    """An event that is set from the first signal on."""
    stop = threading.Event()
    for number in ENDINGS:
        signal.signal(number, lambda *_: stop.set())
    return stop


def cancel_on_signals(running: asyncio.Future[Any], told: str) -> None:
    """Cancel `running` at the first signal, and say `told`. Further ones change nothing, nor does
    any once `running` is done."""
    loop = running.get_loop()
    asked = False

    def end(*_: object) -> None:
        nonlocal asked
        # Once: a second cancellation would hit the clean-up. And never on a loop that is gone.
        if asked or running.done():
            return
        asked = True
        loop.call_soon_threadsafe(running.cancel)
        say(told)

    for number in ENDINGS:
        signal.signal(number, end)


def ignore_signals() -> None:
    """From now on nothing but SIGKILL ends the process early. Python's own end would give a handled
    signal back its default, which is to kill."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
