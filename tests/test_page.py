"""The live page in a real Chromium: the book's own figures, while a run goes on, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from playwright.sync_api import Browser, expect

from api.pages.figures import Panel
from ledger.facts.lists import Blame, Outcome, Phase, Stage, StopReason
from ledger.open_log import open_log
from tests.account_logs import Story
from tests.books import append, projected
from tests.browsers import Opened, a_browser, opened
from tests.evaluated import an_evaluation
from tests.serving import Served, serving

STORY = Story("the page's run")
HELD_OUT = {"fix-1": "p p", "fix-2": "p f", "fix-3": "f i", "fix-4": "f f"}
"""pass@1 = (1 + 1/2 + 0 + 0) / 4; of the missing one, 37.5% to 50%."""


def tell() -> None:
    """A published run's figures: a tail of 32%, 860 and then 3,480 an hour on 1 and on 3 nodes, a
    step of 388.5 s of which 106.58 s have no name; two attempts are lost to the infrastructure."""
    STORY.resources(0, engine_nodes=1, engine_gpus_per_node=8, sandbox_slots=128)
    STORY.resources(360, engine_nodes=3, engine_gpus_per_node=8, sandbox_slots=384)
    STORY.group(1, 10, step=1)
    for slot in range(9):
        STORY.attempt(1, slot, 0, 7.5556 * (slot + 1))
    STORY.attempt(1, 9, 0, 100)
    for slot in range(76):
        STORY.attempt(2, slot, 0, 359)
    for slot in range(348):
        STORY.attempt(3, slot, 360, 720)
    STORY.step(1, 1, 389.5, [(Phase.WAITING, 1, 153.77), (Phase.FORWARD_BACKWARD, 154, 249.3),
                             (Phase.PUBLISHING, 250, 283.85)])  # fmt: skip
    for slot in range(2):
        STORY.attempt(
            4, slot, 10, 20, stop=StopReason.ERROR, reward=None, trainable=False,
            outcome=Outcome.ERRORED, cause_stage=Stage.SANDBOX_START,
            cause_class="sandbox_error", blame=Blame.INFRASTRUCTURE,
        )  # fmt: skip
        STORY.tell("sandbox_failed", 15, **STORY.ids(4, slot), try_no=0, stage=Stage.SANDBOX_START,
                   seconds=5.0, error_type="RateLimit")  # fmt: skip


tell()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page")
    url = f"sqlite:///{folder / 'log.db'}"
    evaluation = an_evaluation(
        "after", HELD_OUT, parent_run_id=STORY.run_id, parent_policy_version=1, dataset="repairs",
        split="held out",
    )  # fmt: skip
    with open_log(url) as log:
        append(log, [*STORY.facts, *evaluation])
    with serving(url, folder, snapshot_s=0) as served:
        served.caught_up()
        yield served


@pytest.fixture(scope="module")
def page(browser: Browser, served: Served) -> Iterator[Opened]:
    with opened(browser, served) as page:
        yield page


def test_the_figures_are_those_of_the_book(page: Opened) -> None:
    assert page.text("#steps .figures").startswith("388.5 s step 1, of which exposed")
    assert "unattributed 106.6 s" in page.text("#steps .figures")
    assert page.text("#tail .figures").startswith(
        "32.0% of the rollouts' time came after t90 (68.0 s of 100.0 s)"
    )
    assert page.text("#throughput .figures").startswith("3,480 completed / h on 3 nodes, 384 slots")
    assert page.text("#failures .figures").startswith("0 contaminated votes")
    assert "sandbox start · sandbox error" in page.text("#failures .body")
    assert page.text("#quality .figures").startswith("37.50% pass@1 of version 1")
    assert "missing as 0 or 1: 37.50% to 50.00%" in page.text("#quality .figures")
    assert page.text("#quality .scope p") == "repairs / held out: 4 tasks × 2"
    assert "436 of 436 attempts ended, 1 steps" in page.text("#about")
    for each in ("capacity", "lag"):
        assert page.page.locator(f"#{each} .empty").is_visible(), each


def test_a_rate_is_held_against_what_it_was_bought_with(page: Opened, served: Served) -> None:
    for per, told in (("node", "1,160 completed / inference node-hour"),
                      ("slot", "9.06 completed / sandbox slot-hour")):  # fmt: skip
        page.page.select_option("#per", per)
        expect(page.page.locator("#throughput .figures")).to_contain_text(told)
    page.page.select_option("#per", "hour")
    # Two lines, one a span, of all that completed there; nothing joins them.
    assert page.page.locator("#throughput .scatterlayer .trace").count() == 2
    course = served.ask(f"/v1/panels/throughput_course?run_id={STORY.run_id}").json["rows"]
    assert [sum(row["completed"] for row in course if row["span"] == span) for span in (1, 2)] == [
        86,
        348,
    ]


def test_every_figure_opens_its_definition_with_the_sql_that_was_asked(
    page: Opened, served: Served
) -> None:
    page.page.click("#tail .define")
    told = page.text("#dialog-body")
    for each in ("one row", "numerator", "denominator", "window", "left out", "rule set\n1"):
        assert each in told, each
    sql = page.page.locator("#dialog-body pre").first.inner_text()
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#dialog")).to_be_hidden()
    answer = served.sql(f"SELECT tail_share FROM ({sql})").json
    assert [round(share, 6) for (share,) in answer["rows"]] == [0.319996]


def test_the_keyboard_opens_an_attempt_and_comes_back(page: Opened) -> None:
    rows = page.page.locator("#attempts tbody tr")
    rows.nth(0).focus()
    page.page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    page.page.keyboard.press("Enter")
    body = page.page.locator("#dialog-body")
    expect(body).to_contain_text("Judgements, with the rule that made each")
    expect(body).to_contain_text("Group decision")
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#dialog")).to_be_hidden()
    expect(rows.nth(1)).to_be_focused()
    page.page.locator("#run").focus()
    order = []
    for _ in range(6):
        page.page.keyboard.press("Tab")
        order.append(page.page.locator(":focus").get_attribute("id"))
    assert order[:2] == ["split", "rule-set"]


def test_light_and_dark_follow_the_reader_and_the_switch(page: Opened) -> None:
    body = page.page.locator("body")
    light, dark = ("rgb(244, 245, 247)", "rgb(16, 19, 23)")
    page.page.emulate_media(color_scheme="light")
    expect(body).to_have_css("background-color", light)
    page.page.emulate_media(color_scheme="dark")
    expect(body).to_have_css("background-color", dark)
    page.page.click("#theme")
    expect(page.page.locator("#theme")).to_have_text("☾ light")
    expect(body).to_have_css("background-color", light)
    page.page.click("#theme")
    page.page.emulate_media(color_scheme="light")
    expect(body).to_have_css("background-color", dark)
    page.page.click("#theme")


def test_it_follows_the_run_and_redraws_only_what_changed(page: Opened, served: Served) -> None:
    before = {each: page.page.locator(f"#{each}").bounding_box() for each in ("steps", "attempts")}
    drawn = page.page.locator("#quality").get_attribute("data-draws")
    told = len(STORY.facts)
    STORY.step(2, 721, 741, [(Phase.WAITING, 721, 730)])
    with open_log(f"sqlite:///{served.book.parent / 'log.db'}") as log:
        append(log, STORY.facts[told:])
    expect(page.page.locator("#steps .figures")).to_contain_text("step 2, of which")
    page.look_again()
    assert page.page.locator("#quality").get_attribute("data-draws") == drawn
    for each, box in before.items():
        assert page.page.locator(f"#{each}").bounding_box() == box, each


def test_nothing_is_asked_elsewhere_and_the_token_stays(page: Opened, served: Served) -> None:
    assert page.errors == []
    assert all(each.startswith((served.url, "data:")) for each in page.asked)
    assert set(page.told) <= {""}
    assert served.token not in page.page.url
    assert served.token not in page.page.content()
    assert sum(served.token in each for each in page.asked) == 1  # the way in


def test_a_browser_without_the_token_is_asked_for_it(browser: Browser, served: Served) -> None:
    page = browser.new_page()
    page.goto(served.url)
    page.fill("input[name=token]", "not the token at all")
    page.click("button")
    expect(page.get_by_role("alert")).to_contain_text("not this book's token")
    assert served.ask("/static/page.js", token=None).status == 401
    page.fill("input[name=token]", served.token)
    page.click("button")
    expect(page.locator("#run")).to_be_visible()
    assert page.url == f"{served.url}/"
    page.close()


def test_a_panel_as_of_then_is_the_same_query(served: Served) -> None:
    then = served.ask("/v1/runs").json["position"]
    for panel in Panel:
        path = f"/v1/panels/{panel}?run_id={STORY.run_id}&step=1"
        now, past = served.ask(path), served.ask(f"{path}&as_of={then}")
        assert now.status == past.status == 200, (panel, now.body, past.body)
        assert now.json["rows"] == past.json["rows"], panel
        assert now.json["denominator"], panel
    assert served.ask(f"/v1/alerts?as_of={then}").status == 200


def test_an_empty_book_says_what_will_be_where(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_log(url), serving(url, tmp_path) as served, opened(browser, served) as page:
        assert "No step has completed" in page.text("#steps .body")
        assert "No attempt has ended" in page.text("#throughput .body")
        assert page.text("#balance") == "books balance ✓"
        assert page.errors == []


def multiplied(book: Path, groups: int, slots: int, turns: int) -> None:
    """The book of one attempt as one of many: rows that are made in SQL, as no log could be written
    and read in the time of a test."""
    group, slot = f"i // {slots * turns}", f"(i // {turns}) % {slots}"
    ids = (
        f"md5('group ' || ({group}))::UUID AS group_id, ({slot})::BIGINT AS slot,"
        f" md5('attempt ' || (i // {turns}))::UUID AS trajectory_id"
    )
    every = {"turn_completed": 1, "group_opened": slots * turns} | dict.fromkeys(
        ("trajectory_started", "trajectory_finished", "reward_assigned", "trajectory_judged"), turns
    )
    own = {
        "turn_completed": f"(i % {turns})::BIGINT AS turn_no,",
        "group_opened": f"({group} // 8)::BIGINT AS target_step,",
    }
    with contextlib.closing(duckdb.connect(str(book))) as made:
        for table, step in every.items():
            keys = ids if table != "group_opened" else ids.split(",")[0]
            made.execute(
                f"INSERT INTO {table} SELECT {table}.* REPLACE ({own.get(table, '')} {keys},"
                f" md5('{table} ' || i)::UUID AS event_id, (1000000 + i)::BIGINT AS log_offset,"
                " occurred_at + to_microseconds(i * 5000) AS occurred_at)"
                f" FROM {table}, range(0, {groups * slots * turns}, {step}) AS numbers(i)"
            )


@pytest.mark.long
def test_a_book_of_a_million_turns_is_asked_for_summaries_only(
    browser: Browser, tmp_path: Path
) -> None:
    story = Story("one of many")
    story.group(1, 8, step=0)
    ids = story.attempt(1, 0, 0, 9)
    story.tell("turn_completed", 5, **ids, turn_no=0, completion_tokens=7, client_s=4.0)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_log(url) as log:
        append(log, story.facts)
    projected(url, tmp_path / "book.duckdb")
    multiplied(tmp_path / "book.duckdb", groups=2_500, slots=8, turns=50)
    with serving(url, tmp_path) as served, opened(browser, served) as page:
        assert "20,001 of 20,001 attempts ended" in page.text("#about")
        assert "32 of 32 attempts" in page.text("#tail .figures")
        assert page.page.locator("#attempts tbody tr").count() == 50
        assert page.page.locator(".when.bad").count() == 0
        assert page.errors == []
        for path in {each for each in page.asked if "/v1/" in each}:
            answer = served.ask(path.removeprefix(served.url))
            assert answer.status == 200, path
            assert len(answer.body) < 1_000_000, path
