"""Rule sets and the table of error names: everything is covered, and a slip in a file is an error
that names file and key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ledger.facts.lists import Blame, Stage
from ledger.judgement import load_rules, newest_rules, rule_numbers
from ledger.judging.error_kinds import error_kinds, parse_kinds
from ledger.judging.rule_set import UNDECIDED, parse_rules
from ledger.judging.signs import Sign
from ledger.judging.strict_toml import RulesError
from tests.attempts import an_attempt, fact, finished, judged, sandbox_failed

SOURCES = tomllib.loads((Path(__file__).parent / "error_names.toml").read_text())["source"]
NAMES = [
    pytest.param(name, source["stage"], source["blame"], id=f"{source['system']}: {name}")
    for source in SOURCES
    for name in source["names"]
]


@pytest.mark.parametrize(("name", "stage", "blame"), NAMES)
def test_every_name_that_other_systems_record_is_judged(name: str, stage: str, blame: str) -> None:
    """At the stage where it is raised, behind the first token and alone of its peers."""
    facts = [finished("error", stage, error_type=name)]
    if stage in ("sandbox_start", "setup"):
        facts.append(sandbox_failed(name, stage))
    assert error_kinds().of(name) != "unknown"
    for rules in rule_numbers():
        judgement = judged(an_attempt(*facts), rules=rules)
        assert judgement.cause_class != "unknown"
        assert judgement.outcome == "errored"
        if rules == 1:
            assert judgement.blame == blame


@pytest.mark.parametrize("rules", rule_numbers())
@pytest.mark.parametrize("stage", [*Stage, None])
def test_every_kind_has_a_rule_wherever_it_may_happen(rules: int, stage: Stage | None) -> None:
    for kind in sorted(error_kinds().kinds):
        for signs in (frozenset[Sign](), frozenset({Sign.AFTER_FIRST_TOKEN})):
            assert load_rules(rules).verdict(kind, stage, signs) != UNDECIDED, kind


def test_before_the_first_token_no_rule_of_set_1_blames_the_policy() -> None:
    rules = load_rules(1)
    for kind in error_kinds().kinds:
        for stage in (*Stage, None):
            for sign in Sign:
                if sign is not Sign.AFTER_FIRST_TOKEN:
                    said = rules.verdict(kind, stage, frozenset({sign}))
                    assert said.blame is not Blame.POLICY


def test_the_rule_set_that_is_used_where_none_is_named_is_one_to_train_by() -> None:
    assert newest_rules().number == 1
    assert [load_rules(number).decides for number in rule_numbers()] == [True, False]


def test_every_rule_gives_its_reason() -> None:
    for number in rule_numbers():
        assert all(len(rule.reason) > 10 for rule in load_rules(number).rules)


def test_a_rule_set_that_is_not_there() -> None:
    with pytest.raises(RulesError, match=re.escape("no rule set 7 (rule sets: 1, 2)")):
        load_rules(7)


GOOD = """
number = 3
title = "t"
decides = false
policy_from_first_token = true
reason = "r"
[limits]
near_limit = 0.9
peer_window_s = 30.0
peer_tasks = 2
clock_slack = 0.01
[[rule]]
errors = ["timeout"]
stages = ["tool"]
when = ["peers_lost"]
blame = "infrastructure"
reason = "r"
[[rule]]
errors = ["timeout", "cancelled"]
blame = "policy"
reason = "r"
"""


def test_a_good_rule_set_is_taken() -> None:
    rules = parse_rules(GOOD, "f.toml")
    assert rules.verdict("timeout", Stage.TOOL, frozenset({Sign.PEERS_LOST})) == (
        "timeout",
        "infrastructure",
    )
    after = frozenset({Sign.AFTER_FIRST_TOKEN})
    assert rules.verdict("timeout", None, after) == ("timeout", "policy")
    assert rules.verdict("timeout", None, frozenset()) == UNDECIDED
    assert rules.verdict("sandbox_lost", Stage.TOOL, after) == UNDECIDED


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "t"', "", "f.toml: title: is required"),
        ('title = "t"', "title = 7", "f.toml: title: must be a text, got 7"),
        ('title = "t"', 'titel = "t"\ntitle = "t"', "f.toml: titel: is no key here"),
        ("near_limit = 0.9", "near_limit = 9", "f.toml: limits.near_limit: must be 0.0 to 1.0"),
        ("near_limit = 0.9", "near_limit = true", "limits.near_limit: must be a number, got True"),
        ("near_limit = 0.9", "near_limit = nan", "limits.near_limit: must be 0.0 to 1.0, got nan"),
        ("peer_tasks = 2", "peer_tasks = 0", "f.toml: limits.peer_tasks: must be at least 1"),
        (
            "peer_window_s = 30.0",
            "peer_window_s = 600.0",
            "limits.peer_window_s: must be 0.0 to 60",
        ),
        ("peer_tasks = 2", "peers = 2", "f.toml: limits.peer_tasks: is required"),
        ("peer_tasks = 2", "peer_tasks = 2\nx = 1", "f.toml: limits.x: is no key here"),
        ('["tool"]', '["tools"]', "f.toml: rule[0].stages: must be one of queue, sandbox_start"),
        ('["peers_lost"]', '["peers"]', "f.toml: rule[0].when: must be one of after_first_token"),
        ('"infrastructure"', '"nobody"', "f.toml: rule[0].blame: must be one of policy"),
        ('errors = ["timeout"]', 'errors = ["timeot"]', "rule[0].errors: must be kinds of"),
        ('errors = ["timeout"]', "errors = []", "f.toml: rule[0].errors: must name one kind"),
        ('["timeout", "cancelled"]', '["timeout", "timeout"]', "'timeout' stands in it twice"),
        ('["timeout", "cancelled"]', "[1]", "must be a list of texts, got 1 in it"),
        ('when = ["peers_lost"]\n', 'when = ["starved"]\nunless = ["starved"]\n', "can't fit"),
        ("[[rule]]", "[[rules]]", "f.toml: rule: is required"),
        ("number = 3", "number = 0", "f.toml: number: must be at least 1, got 0"),
        ("number = 3", "number = = 3", "f.toml is not TOML"),
    ],
)
def test_a_slip_in_a_rule_set_names_file_and_key(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(RulesError, match=re.escape(message)):
        parse_rules(GOOD.replace(old, new), "f.toml")


def a_rule(errors: str, conditions: str = "", blame: str = "task") -> str:
    return f'[[rule]]\nerrors = {errors}\n{conditions}\nblame = "{blame}"\nreason = "r"\n'


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([a_rule('["timeout"]', blame="policy")], "rule[2].errors: says the same as rule[1]"),
        ([a_rule('["cancelled"]', 'when = ["after_first_token"]')], "nothing to decide"),
        (
            [
                a_rule('["disk_full"]', 'when = ["starved"]'),
                a_rule('["disk_full"]', 'unless = ["starved"]'),
                a_rule('["disk_full"]', 'when = ["peers_lost"]'),
            ],
            "f.toml: rule[4].errors: the rules before it leave it nothing to decide",
        ),
    ],
    ids=["a duplicate", "one before it fits always", "two before it fit between them"],
)
def test_a_rule_that_can_decide_nothing_is_an_error(rules: list[str], message: str) -> None:
    text = GOOD.replace('["timeout", "cancelled"]', '["timeout"]')
    text += a_rule('["cancelled"]') if "cancelled" in rules[0] else ""
    with pytest.raises(RulesError, match=re.escape(message)):
        parse_rules(text + "".join(rules), "f.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[kinds.a]\nmeans = "m"\nnames = ["x"]\n[kinds.b]\nmeans = "m"\nnames = ["x"]\n',
         "f.toml: kinds.b.names: 'x' is of kind a already"),
        ('[kinds.a]\nnames = ["x"]\n', "f.toml: kinds.a.means: is required"),
        ('[kinds.a]\nmeans = "m"\nnames = ["x"]\nnmaes = []\n', "f.toml: kinds.a.nmaes: is no key"),
        ('[kinds.a]\nmeans = "m"\nnames = ["x"]\nstage = "s"\n', "kinds.a.stage: must be one of"),
        ("kinds = 1\n", "f.toml: kinds: must be a table, got 1"),
    ],
)  # fmt: skip
def test_a_slip_in_the_table_of_names_names_file_and_key(text: str, message: str) -> None:
    with pytest.raises(RulesError, match=re.escape(message)):
        parse_kinds(text, "f.toml")


def test_a_dotted_name_is_looked_up_whole_and_then_by_its_last_part() -> None:
    kinds = error_kinds()
    assert kinds.of("litellm.exceptions.RateLimitError") == "engine_busy"
    assert kinds.of("Http503") == kinds.of("Http599") == "engine_unavailable"
    assert (kinds.of("Http418"), kinds.of("Http429")) == ("request_refused", "engine_busy")
    assert (kinds.of("Http200"), kinds.of("Http"), kinds.of("")) == ("unknown",) * 3


def test_a_text_speaks_only_for_a_name_that_says_little() -> None:
    text = fact("sandbox_failed", error_type="x", stage="tool", error="maximum context length")
    assert error_kinds().of("BadRequestError", text.error) == "context_too_long"
    assert error_kinds().of("SandboxNotFoundException", text.error) == "sandbox_lost"
