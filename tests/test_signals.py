"""SIGTERM and Ctrl-C ask a command to end, and only while there is something to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from api.signals import ENDINGS, cancel_on_signals, ignore_signals, stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Gives the handlers back."""
    kept = [(number, signal.getsignal(number)) for number in ENDINGS]
    yield
    for number, handler in kept:
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_sets_the_event(number: signal.Signals) -> None:
    stop = stop_on_signals()
    assert not stop.is_set()
    signal.raise_signal(number)
    signal.raise_signal(number)
    assert stop.is_set()


def test_only_the_first_signal_cancels(capsys: pytest.CaptureFixture[str]) -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0.01)
            cleaned.append("up")

    async def main() -> bool:
        running = asyncio.ensure_future(work())
        cancel_on_signals(running, "ending")
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait({running})
        return running.cancelled()

    assert asyncio.run(main())
    assert cleaned == ["up"]
    assert capsys.readouterr().err == "ending\n"


def test_a_first_signal_behind_the_end_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> str:
        running = asyncio.ensure_future(asyncio.sleep(0, "done"))
        cancel_on_signals(running, "ending")
        return await running

    assert asyncio.run(main()) == "done"
    for number in ENDINGS:
        signal.raise_signal(number)  # the loop is closed
    ignore_signals()
    for number in ENDINGS:
        signal.raise_signal(number)
    assert capsys.readouterr().err == ""
