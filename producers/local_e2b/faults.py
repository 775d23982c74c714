"""Faults by rule and seed: pure, but for how often each rule has fired.

A rule is `KIND:KEY=VALUE,...`; at least one of p and after says when it fires:

    start_refused:p=0.1,status=503       the create request gets this status
    start_slow:p=0.1,seconds=3           the start takes this much longer
    dropped_stream:p=0.02,seconds=0.1    a command's stream breaks this long after its start event;
                                         the command runs on
    lost:p=0.05,seconds=0                the sandbox is killed this long after a command's start
    lost_idle:after=0,p=0.05             the sandbox is gone when a command has told its end
    command_slow:p=0.05,seconds=2        a command starts this much later
    disk_full:p=0.01                     a write through the files API gets 507
    pool_exhausted:p=0.01,seconds=5      a command waits this long, then gets 503

    p=0.1      with this probability, at each create request, command or write
    after=3    when 3 of them were served before: commands and writes are counted in each sandbox;
               with p too, only then, and with this probability
    times=5    no more than this often in all

What is drawn depends on the seed, the rule's place in the list, the number of the create request
and the number of the command in the sandbox, and on nothing else: the same requests in the same
order meet the same faults, however they overlap in time.
"""

from __future__ import annotations

import random
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from producers.local_e2b.settings import LocalE2BError

Point = Literal["create", "command", "write"]

POINTS: dict[str, Point] = {
    "start_refused": "create",
    "start_slow": "create",
    "dropped_stream": "command",
    "lost": "command",
    "lost_idle": "command",
    "command_slow": "command",
    "disk_full": "write",
    "pool_exhausted": "command",
}
"""Kinds of fault and where they strike."""

SECONDS = {"start_slow": 5.0, "command_slow": 2.0, "pool_exhausted": 5.0}
"""Defaults; 0 for other kinds."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of fault and when it fires."""

    text: str
    """As it was given; names it in the account of faults."""
    kind: str
    p: float = 0.0
    after: int | None = None
    times: int | None = None
    """None: no limit."""
    status: int = 503
    """HTTP status of a refused start."""
    seconds: float = 0.0

    @property
    def point(self) -> Point:
        return POINTS[self.kind]

    def chance(self, served: int) -> float:
        """Probability that it strikes one behind which so many were served."""
        if self.after is None:
            return self.p
        return 0.0 if self.after != served else self.p or 1.0


def parse_rule(text: str) -> Rule:
    """A rule of the command line. Raises LocalE2BError."""
    kind, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for pair in rest.split(",") if rest else []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise LocalE2BError(f"a fault's setting must be KEY=VALUE, got {pair!r} ({text!r})")
        values[key.strip()] = value.strip()
    return make_rule(text, kind.strip(), values)


def make_rule(text: str, kind: str, values: dict[str, Any]) -> Rule:
    """A checked rule. Raises LocalE2BError."""
    if kind not in POINTS:
        raise LocalE2BError(f"a fault is one of {', '.join(POINTS)}; got {kind!r} ({text!r})")
    kinds = {"p": float, "after": int, "times": int, "status": int, "seconds": float}
    checked: dict[str, Any] = {"seconds": SECONDS.get(kind, 0.0)}
    for key, value in values.items():
        if key not in kinds:
            names = ", ".join(kinds)
            raise LocalE2BError(f"a fault's settings are {names}; got {key!r} ({text!r})")
        try:
            checked[key] = kinds[key](value)
        except (TypeError, ValueError) as error:
            raise LocalE2BError(f"{key} must be a number, got {value!r} ({text!r})") from error
    rule = Rule(text, kind, **checked)
    if not 0 <= rule.p <= 1 or (rule.after or 0) < 0 or not 0 <= rule.seconds < 86_400:
        raise LocalE2BError(f"p is within 0..1, after and seconds not negative ({text!r})")
    if rule.p == 0 and rule.after is None:
        raise LocalE2BError(f"a fault needs p or after, else it never fires ({text!r})")
    if not 400 <= rule.status <= 599:
        raise LocalE2BError(f"status must be within 400..599, got {rule.status} ({text!r})")
    return rule


def load_rules(path: Path) -> list[Rule]:
    """Rules of a TOML file, `[[fault]]` tables with kind and settings. Raises LocalE2BError."""
    try:
        tables = tomllib.loads(path.read_text()).get("fault", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LocalE2BError(f"faults of {path}: {error}") from error
    rules: list[Rule] = []
    for table in tables:
        values = {key: value for key, value in table.items() if key != "kind"}
        settings = ",".join(f"{key}={value}" for key, value in values.items())
        text = f"{table.get('kind')}:{settings}"
        rules.append(make_rule(text, str(table.get("kind")), values))
    return rules


class FaultPlan:
    """All rules of a server."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self.rules = tuple(rules)
        self.seed = seed
        self.fired: Counter[int] = Counter()

    def strike(self, point: Point, create_no: int, served: int) -> list[Rule]:
        """The rules that fire here, in their order; at most one but for slow starts.

        `create_no` counts create requests, `served` those of this kind served before in the
        sandbox (for `create`: in the server)."""
        struck: list[Rule] = []
        for number, rule in enumerate(self.rules):
            if rule.point != point or self.fired[number] == rule.times:
                continue
            if draw(self.seed, number, create_no, served) < rule.chance(served):
                self.fired[number] += 1
                struck.append(rule)
                if rule.kind != "start_slow":
                    break
        return struck


def draw(seed: int, rule_no: int, create_no: int, served: int) -> float:
    """Within [0, 1), by these four numbers alone."""
    return random.Random(f"fault/{seed}/{rule_no}/{create_no}/{served}").random()
