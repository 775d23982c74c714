"""A numbered rule set: ordered rules from (kind of error, stage, signs) to (class, blame).

`ledger/rules/rules-N.toml` is rule set N. Once judgements by it are in a log it is never changed:
another opinion is another number.

Invariants:

1. The first rule that fits decides, in the file's order; what none fits is `UNKNOWN`.
2. Every rule can decide something: one that those before it leave nothing is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import chain, combinations
from typing import NamedTuple, cast

from ledger.facts.lists import Blame, Stage
from ledger.judging.error_kinds import UNKNOWN, error_kinds
from ledger.judging.evidence import PEER_WINDOW_MAX_S
from ledger.judging.signs import Sign, Signs
from ledger.judging.strict_toml import RulesError, Table, read_toml

_PLACES: tuple[Stage | None, ...] = (*Stage, None)


class Verdict(NamedTuple):
    """What a rule says."""

    error_class: str
    """The rule set's name for it."""
    blame: Blame
    """Who caused it."""


UNDECIDED = Verdict(UNKNOWN, Blame.UNKNOWN)
"""What is said where no rule fits."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    errors: tuple[str, ...]
    """Kinds of error that it is for."""
    stages: tuple[Stage | None, ...]
    """Where; null stands for an unknown stage."""
    when: Signs
    """All of these must be there."""
    unless: Signs
    """None of these may be there."""
    error_class: str | None
    """Its name for the error; null: the kind."""
    blame: Blame
    """Who caused it."""
    reason: str
    """Why, for people."""

    def fits(self, signs: Signs) -> bool:
        """Whether its conditions hold."""
        return self.when <= signs and self.unless.isdisjoint(signs)


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers behind the signs."""

    near_limit: float
    """Share of a memory or disk limit."""
    peer_window_s: float
    """Peers count that were hit within this time."""
    peer_tasks: int
    """How many other tasks they must be attempts at."""
    clock_slack: float
    """Share of the clock cap that a clock may be short of it."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A numbered rule set. Made by `load_rules`."""

    number: int
    """What judgements name."""
    title: str
    """For people."""
    reason: str
    """The idea behind it."""
    decides: bool
    """Whether it is meant to train by, and not only to compare with."""
    limits: Limits
    rules: tuple[Rule, ...]
    """In the order in which they are tried."""
    index: Mapping[tuple[str, Stage | None], tuple[Rule, ...]] = field(repr=False)
    """(kind, stage) -> the rules that are for it, in order."""

    def verdict(self, kind: str, stage: Stage | None, signs: Signs) -> Verdict:
        """What the first rule that fits says."""
        for rule in self.index.get((kind, stage), ()):
            if rule.fits(signs):
                return Verdict(rule.error_class or kind, rule.blame)
        return UNDECIDED


def rule_numbers() -> list[int]:
    """Numbers of the rule sets that come with this version, ascending."""
    names = [file.name for file in resources.files("ledger").joinpath("rules").iterdir()]
    found = [name.removeprefix("rules-").removesuffix(".toml") for name in names]
    return sorted(int(each) for each in found if each.isdecimal())


@cache
def load_rules(number: int) -> RuleSet:
    """The rule set of this number. Raises RulesError, which names file and key."""
    if number not in rule_numbers():
        known = ", ".join(map(str, rule_numbers()))
        raise RulesError(f"there is no rule set {number} (rule sets: {known})")
    file = f"rules-{number}.toml"
    rules = parse_rules(resources.files("ledger").joinpath("rules", file).read_text(), file)
    if rules.number != number:
        raise RulesError(f"{file}: number: must be {number} as in its name, got {rules.number}")
    return rules


@cache
def newest_rules() -> RuleSet:
    """The newest rule set that is meant to train by: what is used where none is named."""
    return next(
        rules for number in reversed(rule_numbers()) if (rules := load_rules(number)).decides
    )


def parse_rules(text: str, file: str) -> RuleSet:
    """The rule set in `text`. Raises RulesError, which names file and key."""
    top = read_toml(text, file)
    number, title, reason = top.whole("number", 1), top.text("title"), top.text("reason")
    decides, spares = top.boolean("decides"), top.boolean("policy_from_first_token")
    limits = _limits(top.table("limits"))
    tables = top.tables("rule")
    top.nothing_else()
    rules = tuple(_rule(table, spares) for table in tables)
    index = _index(rules)
    for i, (rule, table) in enumerate(zip(rules, tables, strict=True)):
        if rule in rules[:i]:
            raise table.error("errors", f"says the same as rule[{rules.index(rule)}]")
        if not _can_decide(rule, index):
            raise table.error("errors", "the rules before it leave it nothing to decide")
    return RuleSet(number, title, reason.strip(), decides, limits, rules, index)


def _limits(table: Table) -> Limits:
    limits = Limits(
        near_limit=table.number("near_limit", 0.0, 1.0),
        peer_window_s=table.number("peer_window_s", 0.0, PEER_WINDOW_MAX_S),
        peer_tasks=table.whole("peer_tasks", 1),
        clock_slack=table.number("clock_slack", 0.0, 1.0),
    )
    table.nothing_else()
    return limits


def _rule(table: Table, spares: bool) -> Rule:
    kinds = error_kinds().kinds
    errors = table.texts("errors")
    if errors == ["*"]:
        errors = sorted(kinds)
    for error in errors:
        if error not in kinds:
            raise table.error("errors", f"must be kinds of errors.toml or ['*'], got {error!r}")
    when = frozenset(table.some_of("when", Sign))
    unless = frozenset(table.some_of("unless", Sign))
    blame = cast(Blame, table.one_of("blame", Blame))
    if spares and blame is Blame.POLICY:
        when |= {Sign.AFTER_FIRST_TOKEN}
    if both := when & unless:
        raise table.error("unless", f"{min(both)} is in when too, so the rule can't fit")
    rule = Rule(
        tuple(errors),
        tuple(table.some_of("stages", Stage)) or _PLACES,
        when,
        unless,
        table.text("class", None),
        blame,
        table.text("reason"),
    )
    if not errors:
        raise table.error("errors", "must name one kind at least")
    table.nothing_else()
    return rule


def _index(rules: Sequence[Rule]) -> dict[tuple[str, Stage | None], tuple[Rule, ...]]:
    index: dict[tuple[str, Stage | None], tuple[Rule, ...]] = {}
    for rule in rules:
        for pair in _pairs(rule):
            index[pair] = (*index.get(pair, ()), rule)
    return index


def _pairs(rule: Rule) -> Iterator[tuple[str, Stage | None]]:
    return ((error, stage) for error in rule.errors for stage in rule.stages)


def _can_decide(rule: Rule, index: Mapping[tuple[str, Stage | None], tuple[Rule, ...]]) -> bool:
    """Whether some error with some signs gets to `rule`. Exact: tries every set of signs that the
    rules before it look at."""
    for pair in _pairs(rule):
        before = index[pair][: index[pair].index(rule)]
        looked_at = frozenset(chain.from_iterable(each.when | each.unless for each in before))
        free = looked_at - rule.when - rule.unless
        for more in chain.from_iterable(combinations(free, n) for n in range(len(free) + 1)):
            signs = rule.when | frozenset(more)
            if not any(each.fits(signs) for each in before):
                return True
    return False
