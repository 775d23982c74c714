"""`rollbook serve`: answers with their position, pages, the book as it was, facts, the stream."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import stat
import subprocess
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api.server.access import COOKIE
from ledger.open_log import open_log
from tests.assembled import RUN, group_id, trajectory_id
from tests.lived_runs import lived
from tests.serving import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served book of the lived run: 12 groups of three, two assemblers, four batches."""
    folder = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder / 'log.db'}"
    with open_log(url) as log:
        lived(log)
    with serving(url, folder, snapshot_s=0) as served:
        served.caught_up()
        yield served


def rows(served: Served, path: str) -> list[Any]:
    reply = served.ask(path)
    assert reply.status == 200, reply.body
    return reply.json["rows"]


WHOSE = ("event_id", "run_id", "occurred_at", "group_id", "slot", "trajectory_id")
"""Fields of everything about an attempt."""


def event_id_of(number: int) -> str:
    return str(uuid.uuid5(uuid.UUID(RUN), f"turn {number}"))


def a_turn(number: int, **fields: Any) -> dict[str, Any]:
    """A turn as JSON; the same number is the same fact."""
    told = {
        "event_id": event_id_of(number),
        "run_id": str(uuid.uuid5(uuid.UUID(RUN), "posted")),
        "occurred_at": "2026-01-31T12:00:00Z",
        "group_id": group_id(900),
        "slot": 0,
        "trajectory_id": trajectory_id(900, 0),
        "turn_no": number,
        "completion_tokens": 7,
        "version_spans": [{"policy_version": 3, "start": 0, "end": 7}],
    }
    return {"fact": "turn_completed", "fields": told | fields}


def turns(served: Served) -> list[tuple[int, int]]:
    """Number and policy version of the posted turns."""
    query = (
        "SELECT turn_no, oldest_version FROM turns"
        f" WHERE trajectory_id = '{trajectory_id(900, 0)}' ORDER BY turn_no"
    )
    return [(number, version) for number, version in served.sql_of_now(query).json["rows"]]


def test_every_collection_says_where_the_book_was(served: Served) -> None:
    for path, count in {
        "runs": 1,
        "trajectories": 36,
        "groups": 12,
        "steps": 1,
        "policy-versions": 2,
        "tasks": 12,
    }.items():
        reply = served.ask(f"/v1/{path}?run_id={RUN}" if path != "runs" else "/v1/runs")
        assert len(reply.json["rows"]) == count, path
        assert reply.json["position"].startswith("events/0:")
        assert reply.json["next_cursor"] is None
        assert reply.headers["rollbook-position"] == reply.json["position"]


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/trajectories?run=7", "run_id"),
        ("/v1/accounts/throughput?columns=x", "rule_set"),
        ("/v1/runs?limitt=1", "limit, cursor, as_of"),
        ("/healthz?x=1", "none"),
    ],
)
def test_a_parameter_that_is_not_known_is_refused(served: Served, path: str, known: str) -> None:
    answer = served.ask(path)
    assert answer.status == 422, answer.body
    assert answer.json["type"] == "unknown_parameter"
    assert known in answer.json["detail"]


@pytest.mark.parametrize(
    "path",
    ["accounts/throughput", "accounts/step-time", f"panels/failures?run_id={RUN}"],
)
def test_a_rule_set_that_there_is_not_is_refused(served: Served, path: str) -> None:
    answer = served.ask(f"/v1/{path}{'&' if '?' in path else '?'}rule_set=77")
    assert answer.status == 422, answer.body
    assert answer.json["detail"] == "a rule set must be one of 1, 2, got '77' (query rule_set)"


def test_an_unchanged_answer_is_not_sent_again(served: Served) -> None:
    first = served.ask("/v1/groups?limit=3")
    again = served.ask("/v1/groups?limit=3", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    other = served.ask("/v1/groups?limit=4", headers={"If-None-Match": first.headers["etag"]})
    assert other.status == 200


def test_pages_give_every_row_once_also_while_facts_arrive(served: Served) -> None:
    seen: list[str] = []
    path = "/v1/trajectories?limit=10"
    cursor = ""
    while cursor is not None:
        reply = served.ask(path + (f"&cursor={cursor}" if cursor else "")).json
        seen += [row["trajectory_id"] for row in reply["rows"]]
        cursor = reply["next_cursor"]
        posted = served.ask("/v1/facts", {"facts": [a_turn(100 + len(seen))]})
        assert posted.status == 201, posted.body
        served.caught_up()
    assert len(seen) == len(set(seen)) == 36
    assert served.ask(f"/v1/runs?cursor={seen[0]}").status == 422


def test_a_trajectory_comes_with_all_that_is_known_of_it(served: Served) -> None:
    told = served.ask(f"/v1/trajectories/{trajectory_id(0, 0)}").json
    assert told["row"]["reward"] == 1.0
    assert [turn["turn_no"] for turn in told["turns"]] == [0, 1]
    assert len(told["tool_calls"]) == 2
    assert told["rewards"][0]["verifier"] == "tests"
    assert {each["stage"] for each in told["timeline"]} == {"model", "tool", "verify"}
    assert told["decisions"][0]["votes"] is True
    assert served.ask(f"/v1/trajectories/{uuid.UUID(int=0)}").status == 404


def test_a_group_says_who_voted_and_why_others_did_not(served: Served) -> None:
    told = served.ask(f"/v1/groups/{group_id(1)}").json
    votes = {row["slot"]: (row["votes"], row["exclusion_reason"]) for row in told["members"]}
    assert votes == {0: (True, None), 1: (True, None), 2: (False, "reward_missing")}
    assert [slot["slot"] for slot in told["slots"]] == [0, 1, 2]


def test_a_batch_lists_its_members_in_the_order_of_training(served: Served) -> None:
    batch = rows(served, "/v1/batches")[0]
    told = served.ask(f"/v1/batches/{batch['batch_id']}").json
    order = [row["group_id"] for row in told["members"]]
    assert list(dict.fromkeys(order)) == batch["group_ids"]


def test_the_book_as_it_was_has_what_was_there_then(served: Served) -> None:
    def groups(as_of: str) -> int:
        return len(rows(served, f"/v1/groups?as_of={as_of}"))

    assert [groups(f"events/0:{offset}") for offset in (0, 3, 60)] == [0, 1, 3]
    assert groups("2020-01-01T00:00:00Z") == 0
    full = served.ask("/v1/groups").json["position"]
    whole = served.ask(f"/v1/groups?as_of={full}").json
    assert whole["rows"] == rows(served, "/v1/groups")
    assert served.ask("/v1/groups?as_of=events/0:99999999").status == 409
    assert served.ask("/v1/groups?as_of=yesterday").status == 422
    assert served.ask("/v1/groups?as_of=events/7:1").status == 422
    ahead = served.ask("/v1/groups?as_of=2099-01-01T00:00:00Z")
    assert (ahead.status, ahead.json["type"]) == (422, "ahead_of_the_clock")
    assert "a time must not lie ahead, and it is 20" in ahead.json["detail"]
    soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat().replace("+", "%2B")
    assert served.ask(f"/v1/groups?as_of={soon}").status == 200


def test_facts_are_recorded_once_however_often_they_are_sent(served: Served) -> None:
    facts = {"facts": [a_turn(1), a_turn(2)]}
    for _ in range(2):
        assert served.ask("/v1/facts", facts).json == {"recorded": 2, "spooled": False}
    served.caught_up()
    assert turns(served)[:2] == [(1, 3), (2, 3)]


def test_a_wrong_fact_records_none_of_its_request(served: Served) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"event_id": str(uuid.uuid4())}, "event_id must be derived"),
        ({"occurred_at": None}, "occurred_at must be given"),
        ({"turn_no": "one"}, "turn_no must be int"),
        ({"turns": 3}, "no field"),
        ({"occurred_at": "noon"}, "a time in ISO 8601"),
        ({"version_spans": [{"policy_version": 3}]}, "version_spans"),
        ({"producer": "me"}, "the recorder's own"),
        ({"tokens": [1]}, "can't be sent over HTTP"),
        ({"engine": -5}, "engine must be str"),
        (
            {"prompt_tokens": -5},
            "turn_completed.prompt_tokens must be at least 0 and finite, got -5",
        ),
        ({"client_s": -0.5}, "client_s must be at least 0"),
        ({"client_s": math.nan}, "client_s must be at least 0 and finite, got nan"),
        ({"client_s": math.inf}, "client_s must be at least 0 and finite, got inf"),
        (
            {"version_spans": [{"policy_version": 3, "start": -1, "end": 7}]},
            "version_spans[0].start must be at least 0",
        ),
        (
            {"occurred_at": "0001-01-01T00:00:00Z"},
            "occurred_at must lie between 1990 and 20",
        ),
        ({"occurred_at": "9999-12-31T23:59:59Z"}, "occurred_at must lie between 1990 and 20"),
        ({"occurred_at": -(10**15)}, "occurred_at must lie between 1990 and 20"),
        ({"occurred_at": "2026-01-31T12:00:00"}, "occurred_at must have a time zone"),
    ]
    for fields, rule in wrong:
        reply = served.ask("/v1/facts", {"facts": [a_turn(50), a_turn(51, **fields)]})
        assert reply.status == 422
        (fault,) = reply.json["faults"]
        assert fault["place"] == "body facts.1"
        assert rule in fault["rule"]
    assert 50 not in [number for number, _ in turns(served)]


def test_a_fact_with_the_id_of_another_one_records_none_of_its_request(served: Served) -> None:
    assert served.ask("/v1/facts", {"facts": [a_turn(60)]}).status == 201
    served.caught_up()
    reward = {name: a_turn(60)["fields"][name] for name in WHOSE} | {"value": 1.0, "verifier": "x"}
    conflicts = [
        [a_turn(61), a_turn(60, completion_tokens=8)],  # in the book with other content
        [a_turn(61), {"fact": "reward_assigned", "fields": reward}],  # as another kind
        [a_turn(62), a_turn(62, completion_tokens=8)],  # both in one request
        [
            a_turn(62),
            {"fact": "reward_assigned", "fields": reward | {"event_id": event_id_of(62)}},
        ],
    ]
    for facts in conflicts:
        reply = served.ask("/v1/facts", {"facts": facts})
        assert (reply.status, reply.json["type"]) == (409, "conflict"), reply.body
        (fault,) = reply.json["faults"]
        assert fault["place"] == "body facts.1"
        assert fault["value"] == facts[1]["fields"]["event_id"]
        assert fault["rule"].startswith("an id must stand for one fact")
    again = {"facts": [a_turn(60), a_turn(60), a_turn(63), a_turn(63)]}
    assert served.ask("/v1/facts", again).status == 201
    assert [number for number, _ in turns(served) if 60 <= number < 70] == [60, 63]
    assert served.sql_of_now("SELECT count(*) FROM quarantine").json["rows"] == [[0]]


def test_a_number_of_any_sign_is_taken_where_its_field_may_be_one(served: Served) -> None:
    whose = {name: a_turn(0)["fields"][name] for name in WHOSE}
    reward = whose | {
        "event_id": event_id_of(300),
        "value": -1.0,
        "components": {"length": -0.25},
        "verifier": "tests",
    }
    tool = whose | {
        "event_id": event_id_of(301),
        "turn_no": 0,
        "tool_call_no": 0,
        "name": "bash",
        "exit_code": -9,
    }
    facts = [
        {"fact": "reward_assigned", "fields": reward},
        {"fact": "tool_call_completed", "fields": tool},
    ]
    reply = served.ask("/v1/facts", {"facts": facts})
    assert reply.status == 201, reply.body


def test_a_stream_goes_on_behind_the_last_event_that_its_client_saw(served: Served) -> None:
    def events(count: int, last: str, query: str = "") -> list[tuple[str, dict[str, Any]]]:
        request = urllib.request.Request(
            f"{served.url}/v1/stream{query}",
            headers={"Authorization": f"Bearer {served.token}", "Last-Event-ID": last},
        )
        found: list[tuple[str, dict[str, Any]]] = []
        with urllib.request.urlopen(request, timeout=30) as stream:
            at = ""
            for line in stream:
                if line.startswith(b"id: "):
                    at = line[4:].decode().strip()
                if line.startswith(b"data: "):
                    found.append((at, json.loads(line[6:])))
                if len(found) == count:
                    break
        return found

    first = events(5, "events/0:0")
    assert first[0][1]["fact"] == "run_declared"
    assert [at for at, _ in first] == [f"events/0:{n + 1}" for n in range(5)]
    (after,) = events(1, first[2][0])
    assert after == first[3]
    end = served.ask("/v1/runs", headers={"Cache-Control": "no-cache"}).json["position"]
    assert served.ask("/v1/facts", {"facts": [a_turn(70)]}).status == 201
    ((_, fact),) = events(1, end, "?fact=turn_completed")
    assert fact["turn_no"] == 70


def test_the_position_of_an_answer_can_be_asked_for_at_once(served: Served) -> None:
    for turn_no in range(10):
        assert served.ask("/v1/facts", {"facts": [a_turn(100 + turn_no)]}).status == 201
        now = served.ask("/v1/runs", headers={"Cache-Control": "no-cache"}).json["position"]
        assert served.ask(f"/v1/runs?as_of={now}").json["position"] == now


def test_nothing_of_the_book_is_told_without_the_token(served: Served) -> None:
    for path in ("/v1/runs", "/sql", "/metrics", "/docs", "/openapi.json", "/v1/stream"):
        for token in (None, "wrong", served.token[:-1]):
            reply = served.ask(path, token=token)
            assert (reply.status, reply.headers["content-type"]) == (
                401,
                "application/problem+json",
            ), path
    assert served.ask("/healthz", token=None).status == 200
    mode = stat.S_IMODE(Path(f"{served.book}.token").stat().st_mode)
    assert mode == 0o600
    assert served.token not in "".join(served.said)


def test_no_page_names_another_host(served: Served) -> None:
    """What a page names is asked too, but for Plotly's own script, which the headers keep in."""
    cookie = {"Cookie": f"{COOKIE}={served.token}"}
    pages = [served.ask("/", headers=cookie), served.ask("/docs")]
    named = {each for page in pages for each in re.findall(rb'(?:src|href)="(/[^"]*)"', page.body)}
    assert {b"/openapi.json", b"/static/page.js"} <= named
    for page in pages:
        assert "default-src 'self'" in page.headers["content-security-policy"]
    rest = [served.ask(each.decode()) for each in named if b"plotly" not in each and each != b"/"]
    for reply in (*pages, *rest):
        assert reply.status == 200
        own = reply.body.replace(served.url.encode(), b"").replace(b"http://www.w3.org/", b"")
        assert not re.search(rb"""["'(]\s*(https?:)?//\w""", own)
    listed = pages[1].body.decode()
    assert all(path in listed for path in served.ask("/openapi.json").json["paths"])


def test_a_browser_trades_the_token_of_an_address_for_a_cookie(served: Served) -> None:
    def cookie(token: str) -> str | None:
        parts = urllib.parse.urlsplit(served.url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc)) as connection:
            connection.request("GET", f"/?token={token}")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["location"]) == (303, "/")
            return answer.headers["set-cookie"]

    given = cookie(served.token)
    assert given is not None
    assert "HttpOnly" in given
    assert "SameSite=strict" in given
    sent = {"Cookie": given.partition(";")[0]}
    assert served.ask("/v1/runs", token=None, headers=sent).status == 200
    assert cookie("wrong") is None


def test_a_second_process_is_told_who_serves_the_book(served: Served) -> None:
    for command in (["serve", "--log", "sqlite:///nowhere.db"], ["sql", "FROM runs"]):
        arguments = [*command, "--book", str(served.book)]
        if command[0] == "serve":
            log = served.book.with_name("log.db")
            arguments = ["serve", "--log", f"sqlite:///{log}", "--book", str(served.book)]
        done = subprocess.run(
            [sys.executable, "-m", "api.cli", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert f"open in process {served.process.pid}" in done.stderr
        assert f"ask that process (rollbook serve, at {served.url}), or stop it" in done.stderr


def test_killed_it_serves_again_and_asked_to_end_it_ends_with_streams_open(
    sqlite_url: str, tmp_path: Path
) -> None:
    with open_log(sqlite_url) as log:
        lived(log)
    with serving(sqlite_url, tmp_path) as first:
        first.process.kill()
        first.process.wait()
    with serving(sqlite_url, tmp_path) as again:
        again.caught_up()
        assert again.token == first.token
        assert len(rows(again, "/v1/groups")) == 12
        request = urllib.request.Request(
            again.url + "/v1/stream", headers={"Authorization": f"Bearer {again.token}"}
        )
        with urllib.request.urlopen(request, timeout=30):
            again.process.terminate()
            assert again.process.wait(30) == 0
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("book"))
    assert left == ["book.duckdb", "book.duckdb.token"]


def test_a_body_may_not_be_endless(served: Served) -> None:
    reply = served.ask("/v1/facts", b"[" + b" " * 9_000_000 + b"]")
    assert reply.status == 413


def test_metrics_show_that_the_book_keeps_up(served: Served) -> None:
    text = served.ask("/metrics").body.decode()
    assert "rollbook_projecting 1.0" in text
    assert "rollbook_behind_records 0.0" in text
    assert 'rollbook_http_seconds_bucket{le="+Inf",route="/v1/runs",status="200"}' in text


@pytest.mark.parametrize(
    ("options", "settings", "said"),
    [
        (["--host", "0.0.0.0", "--no-token"], {}, "needs the token"),
        ([], {"token": "short"}, "at least 16 printable ASCII characters"),
        ([], {"rows": 3}, r"rows: Extra inputs"),
        (["--host", "192.0.2.1"], {}, "this machine's own and free"),
    ],
)
def test_a_wrong_setting_is_said_before_anything_is_served(
    sqlite_url: str, tmp_path: Path, options: list[str], settings: dict[str, Any], said: str
) -> None:
    with open_log(sqlite_url):
        pass
    with (
        pytest.raises(AssertionError, match=said),
        serving(sqlite_url, tmp_path, *options, **settings),
    ):
        pass
