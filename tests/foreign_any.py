"""A small run of every format, for what holds for all of them.

put_any("harbor", folder)      task a twice and task b once, where the format has attempts
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.foreign import put
from tests.foreign_harbor import a_call, a_step, an_atif, put_job
from tests.foreign_harbor import a_trial as a_harbor_trial
from tests.foreign_miles import a_phase, an_event, first_turn, put_dump, streams
from tests.foreign_miles import a_sample as a_miles_sample
from tests.foreign_mini_swe_agent import a_report, a_trajectory, put_run
from tests.foreign_prime_rl import T0, a_trace, an_episode, put_lines
from tests.foreign_slime import LINES, console
from tests.foreign_terminal_bench import a_trial as a_bench_trial
from tests.foreign_terminal_bench import put_results
from tests.foreign_verl import a_folder, a_line
from tests.foreign_verl import a_sample as a_verl_sample


def _terminal_bench(folder: Path, good: Any, bad: Any) -> None:
    trials = [
        a_bench_trial("a", good),
        a_bench_trial("a", bad, number=1),
        a_bench_trial("b", None, "parse_error"),
    ]
    put_results(folder, trials)


def _mini_swe_agent(folder: Path, good: Any, bad: Any) -> None:
    broken = a_trajectory("b", 1, "Timeout", calls=2)
    put(folder / f"m.{folder.name}.json", a_report(resolved=["a"], error=["b"]))
    statuses = [{"CalledProcessError": ["a"]}, {"Submitted": ["a"]}]
    put_run(folder, [a_trajectory("a"), broken], statuses)


def _swe_bench(folder: Path, good: Any, bad: Any) -> None:
    put(folder / "m.run.json", a_report(resolved=["a"], unresolved=["b"], incomplete=["c"]))


def _harbor(folder: Path, good: Any, bad: Any) -> None:
    trials = [
        a_harbor_trial("a", 0, {"reward": good}),
        a_harbor_trial("a", 1, {"reward": bad}),
        a_harbor_trial("b", 0, None, "RuntimeError", 1),
    ]
    put_job(folder, trials, {"n_trials": 2, "metrics": [{"mean": 0.5}]})
    steps = [a_step("user"), a_step(tool_calls=[a_call(0, x=1)])]
    put(
        folder / trials[0]["trial_name"] / "agent" / "trajectory.json",
        an_atif(steps, (100, 50, 10)),
    )


def _atif(folder: Path, good: Any, bad: Any) -> None:
    step = a_step(tool_calls=[a_call(0)], observation={"results": [{"content": "x"}]})
    put(folder / "trajectory.json", an_atif([a_step("user"), step], (100, 50, 10)))


def _miles(folder: Path, good: Any, bad: Any) -> None:
    samples = [a_miles_sample(0, 0, good), a_miles_sample(1, 0, bad, status="truncated"),
               a_miles_sample(2, 1, None, status="failed")]  # fmt: skip
    put_dump(folder / "rollout_data", "0.pt", samples)
    put_dump(folder / "rollout_data", "eval_0.pt", [a_miles_sample(0, 0, good)])
    events = [*first_turn(), an_event("attempt_end", 21, 0, detail="completed")]
    streams(
        folder / "dashboard",
        phases=[a_phase("train_wait", 0, 100), a_phase("train", 100, 160)],
        trajectories=events,
        metrics=[{"ts": T0, "step": 0, "metrics": {"train/loss": 0.5}}],
        topology=[{"ts": T0, "engines": [{"addr": "e", "gpus": [["n", 0], ["n", 1]]}]}],
        engine_series=[{"ts": T0, "addr": "e", "metric": "sglang:num_running_reqs", "value": 5.0}],
    )


def _verl(folder: Path, good: Any, bad: Any) -> None:
    samples = [a_verl_sample(10, "a", good, acc=True), a_verl_sample(10, "a", bad),
               a_verl_sample(10, "b", 0.5)]  # fmt: skip
    a_folder(folder, {10: samples}, a_line(10, 96.0))


def _slime(folder: Path, good: Any, bad: Any) -> None:
    console(folder, LINES)


def _prime_rl(folder: Path, good: Any, bad: Any) -> None:
    def rewarded(value: Any) -> dict[str, Any]:
        return {"tests": {"score": value, "weight": 1.0}}

    other = {"type": "Swe", "key": "b", "data": {}}
    episodes = [
        an_episode(1, [a_trace("t1", rewards=rewarded(good))]),
        an_episode(2, [a_trace("t2", rewards=rewarded(bad))]),
        an_episode(3, [a_trace("t3", rewards={})], task=other, group={"id": "g2"}),
    ]
    put_lines(folder / "rollouts" / "step_3" / "train" / "all", episodes)
    put_lines(folder, [{"step": 3, "time": T0 + 99, "time/step": 50.0}], "metrics.jsonl")


_PUT = {
    "atif": _atif,
    "harbor": _harbor,
    "miles": _miles,
    "mini-swe-agent": _mini_swe_agent,
    "prime-rl": _prime_rl,
    "slime": _slime,
    "swe-bench": _swe_bench,
    "terminal-bench": _terminal_bench,
    "verl": _verl,
}
FORMS = tuple(_PUT)
REWARDED = ("harbor", "miles", "prime-rl", "verl")
"""Those whose rewards may be any number."""


def put_any(form: str, folder: Path, good: Any = None, bad: Any = None) -> Path:
    """A run of a format; `good` and `bad`, rewards of task a's two attempts, by default 1 and 0."""
    usual = (True, False) if form == "terminal-bench" else (1.0, 0.0)
    _PUT[form](folder, usual[0] if good is None else good, usual[1] if bad is None else bad)
    return folder
