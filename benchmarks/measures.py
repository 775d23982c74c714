"""The measures, each from a stage to rows of the table."""

from __future__ import annotations

from benchmarks.measured import Measured, middle, paired, paired_cpu
from benchmarks.report import Row, progress
from benchmarks.stage import PEER_PYTHON, Stage, alternate, fill
from benchmarks.workload import Maker
from ledger.kafka.settings import parse
from ledger.kafka.topics import topic_name

CALL_LIMIT_US = 10.0
TRAJECTORY_LIMIT_US = 300.0
REPLAYS = (0.5, 5)
"""The shorter and the longer log, in `facts`: 100,000 and 1,000,000 by default."""


def call(stage: Stage, facts: int, rounds: int) -> list[Row]:
    """1. What a call costs its caller."""
    progress("1. record(): the caller's thread")

    def side() -> Measured:
        return stage.work(
            "call_cost",
            url=stage.kafka("call"),
            spool=stage.path("spool"),
            seed=stage.seed,
            calls=min(5_000, facts),
        )

    (done,) = alternate(rounds, side)

    def figure(name: str) -> float:
        return sorted(each.more[f"{name}_us"] for each in done)[len(done) // 2]

    def row(name: str, key: str, limit_us: float, floor: str = "") -> Row:
        middle_us = figure(f"{key}_p50")
        ours = f"{middle_us:.1f} us (p99 {figure(f'{key}_p99'):.0f})"
        other = f"{limit_us:g} us"
        if floor:
            other += f" (empty call {figure(f'{floor}_p50'):.1f})"
        return Row(name, ours, other, middle_us / limit_us, most=1.0)

    return [
        row("1 turn_completed(), 1 ms apart, median", "paced", CALL_LIMIT_US, "floor_paced"),
        row("1 turn_completed(), bursts of 500, median", "burst", CALL_LIMIT_US, "floor_burst"),
        row("1 trajectory of 26 facts, 50 ms apart, median", "trajectory", TRAJECTORY_LIMIT_US),
        row("1 trajectory of 26 facts, without a pause, median", "dense", TRAJECTORY_LIMIT_US),
    ]


def produce(stage: Stage, facts: int, rounds: int) -> list[Row]:
    """2. Recorder -> Kafka, beside a bare producer of the same bytes."""
    progress("2. recorder -> Kafka")
    source = ""

    def ours() -> Measured:
        nonlocal source
        source = stage.kafka("recorded")
        spool = stage.path("spool")
        return stage.work("record", url=source, spool=spool, seed=stage.seed, facts=facts)

    def bare(placed: bool) -> Measured:
        target = stage.kafka("bare")
        return stage.work("send", source=source, target=target, facts=facts, placed=placed)

    recorded, sent, placed = alternate(rounds, ours, lambda: bare(False), lambda: bare(True))
    name = "2 recorder -> Kafka, mix"
    return [
        _row(f"{name} : bare KafkaProducer", recorded, sent, least=0.6),
        _row(f"{name} : the same, partitions given", recorded, placed),
    ]


def consume(stage: Stage, facts: int, rounds: int) -> list[Row]:
    """3. Kafka -> book, beside a bare consumer, Quix Streams and dlt on the same topic."""
    rows: list[Row] = []
    for what, least in (("turns", 0.7), ("mix", 0.4)):
        progress(f"3. Kafka -> book, {what}")
        url = stage.kafka(what)
        maker = Maker(stage.seed)
        fill(url, maker.turns(facts) if what == "turns" else maker.run(facts))
        rows += _consume(stage, url, facts, rounds, f"3 Kafka -> book, {what}", least)
    return rows


def _consume(stage: Stage, url: str, facts: int, rounds: int, name: str, least: float) -> list[Row]:
    topic = topic_name(parse(url, {}), "events")

    def peer(script: str) -> Measured:
        return stage.peer(script, stage.bootstrap, topic, str(facts), stage.path("peer"))

    sides = [
        lambda: stage.work("project", url=url, book=stage.path("book"), facts=facts),
        lambda: stage.work("read", url=url, facts=facts),
    ]
    if PEER_PYTHON.exists():
        sides += [lambda: peer("peer_quix.py"), lambda: peer("peer_dlt.py")]
    ours, bare, *peers = alternate(rounds, *sides)
    rows = [_row(f"{name} : bare KafkaConsumer", ours, bare, least=least)]
    for of, other in zip(("Quix Streams", "dlt"), peers, strict=False):
        rows.append(_row(f"{name} : {of}", ours, other, least=2.0))
    return rows


def sqlite(stage: Stage, facts: int, rounds: int) -> list[Row]:
    """4. Recorder -> SQLite -> book."""
    progress("4. SQLite")
    url = ""

    def record() -> Measured:
        nonlocal url
        url = stage.sqlite("log")
        spool = stage.path("spool")
        return stage.work("record", url=url, spool=spool, seed=stage.seed, facts=facts)

    def project() -> Measured:
        return stage.work("project", url=url, book=stage.path("book"), facts=facts)

    recorded, projected = alternate(rounds, record, project)
    return [
        Row("4 recorder -> SQLite, mix", _rate(middle(recorded))),
        Row("4 SQLite -> book, mix", _rate(middle(projected))),
    ]


def replay(stage: Stage, facts: int, rounds: int) -> list[Row]:
    """5. A log replayed, and one with a tenth of its facts."""
    progress("5. replay")
    short, long = (round(part * facts) for part in REPLAYS)

    def filled(count: int) -> str:
        url = stage.kafka("replay")
        fill(url, Maker(stage.seed).run(count))
        return url

    def side(url: str, count: int) -> Measured:
        return stage.work("project", url=url, book=stage.path("book"), facts=count)

    long_url, short_url = filled(long), filled(short)
    longs, shorts = alternate(rounds, lambda: side(long_url, long), lambda: side(short_url, short))
    slow, fast = middle(longs), middle(shorts)
    costs = [f"{each.seconds / each.facts * 1e6:.1f} us a fact" for each in (slow, fast)]
    per_fact = 1 / paired(longs, shorts)
    per_fact_cpu = 1 / paired_cpu(longs, shorts)
    peaks = [f"{each.peak_mb:.0f} MB" for each in (slow, fast)]
    sizes = f"{long:,} : {short:,} facts"
    return [
        Row(f"5 replay of {sizes}, cost", *costs, per_fact, per_fact_cpu, most=1.15),
        Row(f"5 replay of {sizes}, peak memory", *peaks, slow.peak_mb / fast.peak_mb),
    ]


def _row(name: str, ours: list[Measured], other: list[Measured], least: float | None = None) -> Row:
    return Row(
        name,
        _rate(middle(ours)),
        _rate(middle(other)),
        paired(ours, other),
        paired_cpu(ours, other),
        least=least,
    )


def _rate(measured: Measured) -> str:
    return f"{measured.rate / 1000:.1f}k/s ({measured.cpu_s:.1f} of {measured.seconds:.1f} s CPU)"


MEASURES = {
    "call": call,
    "produce": produce,
    "consume": consume,
    "sqlite": sqlite,
    "replay": replay,
}
