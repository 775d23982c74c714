"""One simulated attempt: what its agent loop would have recorded, and where it was when.

Invariant: `trajectory_finished` declares exactly the turns, tool calls and reward that were told.
"""

from __future__ import annotations

from random import Random
from typing import Any

from ledger.facts import Excerpt, VersionSpan
from ledger.facts.lists import EngineStage, Stage, StopReason
from producers.simulator.lived import Lived, Seat, Stay
from producers.simulator.plan import AttemptPlan
from producers.simulator.room import Admission
from producers.simulator.teller import Teller

SANDBOX_TRIES = 3
BACKEND = "simulated"
TEMPLATE = "simulated-base"
COMMANDS = [
    Excerpt.of(text)
    for text in ("pytest -x -q", "git diff", "grep -rn 'def ' src", "sed -n 1,120p setup.py")
]
PRINTED = [Excerpt.of(f"{words} passed\n" * words) for words in (1, 8, 40, 90)]


def live(plan: AttemptPlan, seat: Seat, admitted: Admission, tell: Teller, chance: Random) -> Lived:
    """One attempt from its start to its end."""
    life = _Life(plan, seat, tell, chance, admitted.started_s)
    life.say("trajectory_started", task_id=seat.task_id, queue_s=admitted.started_s - seat.opened_s)
    life.move(Stage.SANDBOX_START, admitted.slot_s)
    stop, error = StopReason.ERROR, "BuildException"
    if life.get_sandbox(admitted.slot_s - admitted.started_s):
        stop, error = life.act()
        if error is None:
            life.verify()
        life.say(
            "sandbox_stopped",
            try_no=life.tries - 1,
            backend=BACKEND,
            template=TEMPLATE,
            sandbox_id=life.sandbox_id,
            reason="finished",
            lifetime_s=life.now_s - life.sandbox_since_s,
        )
    return life.finish(stop, error)


class _Life:
    """The attempt's clock and what was told so far."""

    def __init__(
        self, plan: AttemptPlan, seat: Seat, tell: Teller, chance: Random, now_s: float
    ) -> None:
        self._plan = plan
        self._seat = seat
        self._tell = tell
        self._chance = chance
        self._ids = seat.ids
        self._lived = Lived(now_s)
        self._turns = self._failed = self._calls = 0
        self._stage = Stage.SANDBOX_START
        self._policy_s = 0.0
        self.tries = 0
        self.sandbox_id = ""
        self.sandbox_since_s = 0.0
        self.now_s = now_s

    def say(self, name: str, /, **fields: Any) -> None:
        """Tell a fact that happens now."""
        facts = self._lived.facts
        key = f"{self._seat.trajectory_id}/{len(facts)}"
        facts.append((self.now_s, self._tell.tell(key, name, self.now_s, self._ids | fields)))

    def move(self, stage: Stage, until_s: float) -> None:
        """Be in a stage until then."""
        self._lived.stays.append(Stay(stage, self.now_s, until_s))
        self._stage, self.now_s = stage, until_s

    def get_sandbox(self, slot_wait_s: float) -> bool:
        """Start a sandbox and set it up; whether one of the tries came up."""
        plan, chance = self._plan, self._chance
        while self.tries < SANDBOX_TRIES:
            here = {"try_no": self.tries, "backend": BACKEND, "template": TEMPLATE}
            self.tries += 1
            if chance.random() < plan.start_fails:
                seconds = plan.start_failure_s.draw(chance)
                self.move(Stage.SANDBOX_START, self.now_s + seconds)
                self.say(
                    "sandbox_failed",
                    stage=Stage.SANDBOX_START,
                    error_type="BuildException",
                    seconds=seconds,
                    **here,
                )
                continue
            seconds = plan.sandbox_start_s.draw(chance)
            self.move(Stage.SANDBOX_START, self.now_s + seconds)
            self.sandbox_id = f"sim-{self._seat.trajectory_id[:13]}-{self.tries}"
            self.sandbox_since_s = self.now_s
            here |= {"sandbox_id": self.sandbox_id}
            self.say("sandbox_started", vcpus=2.0, queue_s=slot_wait_s, start_s=seconds, **here)
            seconds = plan.setup_s.draw(chance)
            self.move(Stage.SETUP, self.now_s + seconds)
            self.say("sandbox_prepared", setup_s=seconds, **here)
            return True
        return False

    def act(self) -> tuple[StopReason, str | None]:
        """All turns and commands; why they ended, and the raw error where one ended them."""
        plan, chance = self._plan, self._chance
        active_s = plan.active_s.draw(chance)
        turns = min(plan.turn_cap, max(1, round(active_s / plan.turn_s)))
        shares = [0.3 + chance.expovariate(1.0) for _ in range(turns)]
        unit_s = active_s / sum(shares)
        grown = self._growth(turns)
        lost_in = chance.randrange(turns) if chance.random() < plan.lost else -1
        prompt, cached = round(plan.prompt_tokens.draw(chance)), 0
        for turn_no, (share, (sampled, answer)) in enumerate(zip(shares, grown, strict=True)):
            seconds = share * unit_s
            model_s = seconds * plan.model_share
            self._request(turn_no, model_s, prompt, cached, sampled)
            cached, prompt = prompt, prompt + sampled + answer
            if turn_no == lost_in:
                self._lose()
                return StopReason.ERROR, "SandboxNotFoundException"
            self._command(turn_no, seconds - model_s, answer)
        capped = turns == plan.turn_cap
        return (StopReason.TURN_CAP if capped else StopReason.SUBMITTED), None

    def _growth(self, turns: int) -> list[tuple[int, int]]:
        """(turns,) tokens sampled in a turn, and tokens of the tool's answer to it."""
        plan, chance = self._plan, self._chance
        grown = [
            (
                max(1, round(plan.completion_tokens.draw(chance))),
                max(1, round(plan.output_tokens.draw(chance))),
            )
            for _ in range(turns)
        ]
        if plan.runaway and chance.random() < plan.runaway:
            # The longest context is the last prompt and its answer, so the last output isn't in it.
            goal = chance.uniform(*plan.runaway_tokens) - plan.prompt_tokens.median
            sampled = sum(own for own, _ in grown)
            answers = max(1, sum(answer for _, answer in grown[:-1]))
            factor = max(1.0, (goal - sampled) / answers)
            grown = [(own, round(answer * factor)) for own, answer in grown]
        return grown

    def _request(
        self, turn_no: int, seconds: float, prompt: int, cached: int, sampled: int
    ) -> None:
        """One answered request, perhaps behind one that failed."""
        plan, chance, seat = self._plan, self._chance, self._seat
        queue_s = plan.queue_s.draw(chance)
        self._stage = Stage.MODEL
        if chance.random() < plan.request_fails:
            self._in_model(queue_s, 0, queue_s)
            self.say(
                "turn_failed",
                turn_no=turn_no,
                segment=0,
                engine=seat.engine,
                stage=EngineStage.QUEUE,
                error_type="Http503",
                http_status=503,
                seconds=queue_s,
                tokens_so_far=0,
            )
            self._failed += 1
        client_s = seconds + queue_s
        self._in_model(client_s, prompt + sampled, queue_s)
        self.say(
            "turn_completed",
            turn_no=turn_no,
            segment=0,
            engine=seat.engine,
            model="simulated-policy",
            request_id=f"{seat.trajectory_id[:8]}-{turn_no}",
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=sampled,
            client_s=client_s,
            engine_s=client_s,
            queue_s=queue_s,
            first_token_s=queue_s + 0.15 * seconds,
            paused_s=0.0,
            finish_reason="stop",
            retractions=0,
            version_spans=[VersionSpan(seat.policy_version, 0, sampled)],
        )
        self._turns += 1
        self._lived.completion_tokens += sampled
        self._policy_s += seconds

    def _in_model(self, seconds: float, tokens: int, queue_s: float) -> None:
        until_s = self.now_s + seconds
        engine = self._seat.engine
        self._lived.stays.append(Stay(Stage.MODEL, self.now_s, until_s, engine, tokens, queue_s))
        self.now_s = until_s

    def _command(self, turn_no: int, seconds: float, tokens: int) -> None:
        self.move(Stage.TOOL, self.now_s + seconds)
        failed = self._chance.random() < 0.1
        self.say(
            "tool_call_completed",
            turn_no=turn_no,
            tool_call_no=self._calls,
            sandbox_id=self.sandbox_id,
            name="bash",
            arguments=COMMANDS[turn_no % len(COMMANDS)],
            wall_s=seconds,
            sandbox_s=0.97 * seconds,
            exit_code=int(failed),
            timed_out=False,
            output=PRINTED[min(tokens // 250, len(PRINTED) - 1)],
        )
        self._calls += 1
        self._policy_s += seconds

    def _lose(self) -> None:
        """The sandbox is gone when the next command comes."""
        self._stage = Stage.TOOL
        self.say(
            "sandbox_failed",
            try_no=self.tries - 1,
            backend=BACKEND,
            template=TEMPLATE,
            sandbox_id=self.sandbox_id,
            stage=Stage.TOOL,
            error_type="SandboxNotFoundException",
            seconds=self.now_s - self.sandbox_since_s,
            backend_state="gone",
            in_command=False,
        )

    def verify(self) -> None:
        """Have the tests run."""
        seconds = self._plan.verify_s.draw(self._chance)
        self.move(Stage.VERIFY, self.now_s + seconds)
        passed = self._chance.random() < self._seat.pass_rate
        self.say(
            "reward_assigned",
            value=float(passed),
            verifier="simulated-tests",
            tests_passed=12 if passed else 7,
            tests_failed=0 if passed else 5,
            verify_s=seconds,
            isolated=False,
            sandbox_id=self.sandbox_id,
        )
        self._lived.scored = True

    def finish(self, stop: StopReason, error: str | None) -> Lived:
        """The last fact."""
        self._lived.end_s = self.now_s
        self.say(
            "trajectory_finished",
            stop_reason=stop,
            stage=self._stage,
            turns_completed=self._turns,
            turns_failed=self._failed,
            tool_calls=self._calls,
            reward_due=self._lived.scored,
            policy_clock_s=self._policy_s,
            error_type=error,
        )
        return self._lived
