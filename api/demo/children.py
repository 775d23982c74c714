"""The parts of a demo as child processes: command lines, and how to see that each is ready.

    log ─ projector, assembler, trainer, rollout ─ engine, sandboxes

Each is a command that a user could type; `rollbook.toml` in the demo's folder says the rest.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from api.demo import services
from api.demo.plan import Demo, Evaluation
from api.demo.services import BROKER, ENGINE, SANDBOXES
from deploy.kafka.broker import Broker
from deploy.ports import HOST, free_port
from deploy.supervisor import Child

PROJECTOR, ASSEMBLER, TRAINER, ROLLOUT = "projector", "assembler", "trainer", "rollout"
EVALUATION, JUDGE = "evaluation", "evaluation_assembler"
PREFIX, PARTITIONS = "demo", 3
"""Of the topics in a Kafka of the demo's own."""
TRAINER_SETTINGS = {
    "learning_rate": 3e-3,
    "beta2": 0.95,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "old_policy": "recomputed",
    "truncate_at": 2.0,
    "ppo_epochs": 2,
}
"""With which this policy learns; GRPO's advantages, a mean over tokens, no KL. Sampling takes nine
tenths of a step here, so a batch is learned from twice."""
LEASE_S = 20.0
"""A part that was killed is known to be dead after so long, and its attempts are abandoned."""
PAUSE_S = 5.0
"""Of the projector: nobody looks into the book before the end, and two cores are few."""
EVIDENCE_S = 2.0
"""A group with an error waits so long for what its peers say of the same."""


@dataclass(slots=True)
class Parts:
    """All children of one life of a demo; ports are chosen anew in each."""

    demo: Demo
    engine_port: int = field(default_factory=free_port)
    sandboxes_port: int = field(default_factory=free_port)
    broker: Broker | None = None
    """The log, where it is a Kafka of the demo's own."""

    def __post_init__(self) -> None:
        if self.demo.plan.log == "kafka":
            self.broker = Broker(self.demo.path("kafka"))

    @property
    def engine_url(self) -> str:
        return f"http://{HOST}:{self.engine_port}"

    @property
    def sandboxes_url(self) -> str:
        return f"http://{HOST}:{self.sandboxes_port}"

    @property
    def log_url(self) -> str:
        """Of the log. A broker's port is known once it was prepared."""
        if self.broker is not None:
            return f"kafka://{self.broker.status().bootstrap}/{PREFIX}?partitions={PARTITIONS}"
        if self.demo.plan.log == "sqlite":
            return f"sqlite:///{self.demo.path('log.db')}"
        return self.demo.plan.log

    def write_config(self) -> None:
        """`rollbook.toml`, for the children and for whoever looks further."""
        plan = self.demo.plan
        assembler = {
            "mode": "sync" if plan.sync else "async",
            "groups_per_batch": plan.groups_per_batch,
            "vocabulary_size": 32,
            "lease_s": LEASE_S,
            "evidence_wait_s": EVIDENCE_S,
        }
        tables = {
            "log": {"url": self.log_url},
            "book": {"path": str(self.demo.book)},
            "engines": {"urls": [self.engine_url]},
            "sandboxes": {"url": self.sandboxes_url},
            "assembler": assembler,
            "trainer": TRAINER_SETTINGS,
        }
        # JSON's strings, numbers and lists are TOML's.
        lines = [
            line
            for name, table in tables.items()
            for line in (
                f"[{name}]",
                *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
            )
        ]
        self.demo.config.write_text("\n".join(lines) + "\n")

    def kafka(self) -> Child:
        """The broker of the demo's own log."""
        assert self.broker is not None
        return services.kafka(self.broker)

    def engine(self) -> Child:
        """SGLang."""
        return services.engine(self.demo, self.engine_port)

    def sandboxes(self) -> Child:
        """The E2B-compatible server."""
        return services.sandboxes(self.demo, self.sandboxes_port)

    def projector(self) -> Child:
        return self._rollbook(PROJECTOR, lambda: ["project", "--follow", "--pause", str(PAUSE_S)])

    def assembler(self, run_id: str, name: str = ASSEMBLER) -> Child:
        return self._rollbook(name, lambda: ["assemble", "--run", run_id, "--follow"])

    def trainer(self) -> Child:
        demo = self.demo
        line = ["train", "--run", demo.run_id, "--model", str(demo.policy)]
        line += ["--checkpoints", str(demo.path("checkpoints")), "--versions", str(demo.versions)]
        line += ["--steps", str(demo.plan.steps), "--engine", self.engine_url]
        line += ["--spool", str(demo.path("spool"))]
        return self._rollbook(TRAINER, lambda: line, ends=True)

    def rollout(self) -> Child:
        """Training's. In each of its lives the tasks come in another order."""
        plan = self.demo.plan
        orders = itertools.count(1000 * plan.seed)
        line = ["--run-id", self.demo.run_id, "--name", "micro_repair"]
        line += ["--tasks", f"micro_repair:train?seed={plan.seed}&verbose={plan.verbose}"]
        line += ["--group-size", str(plan.group_size), "--until-step", str(plan.steps)]
        ahead = plan.groups_per_batch * (1 if plan.sync else 3)
        line += ["--ahead", str(ahead), *(["--sync"] if plan.sync else [])]
        return self._rollout(ROLLOUT, lambda: [*line, "--shuffle", str(next(orders))])

    def evaluation(self, when: str, evaluation: Evaluation, version: int) -> Child:
        """Rollouts on the held-out tasks. They end when all groups are decided."""
        plan = self.demo.plan
        line = ["--run-id", evaluation.run_id, "--name", f"micro_repair {when} training"]
        line += ["--kind", "eval", "--parent", self.demo.run_id, "--parent-version", str(version)]
        tasks = f"micro_repair:held_out?seed={plan.seed}&limit={plan.held_out}"
        line += ["--tasks", tasks, "--group-size", str(plan.attempts), "--until-decided"]
        return replace(self._rollout(EVALUATION, lambda: line), again=False)

    def _rollout(self, name: str, options: Callable[[], list[str]]) -> Child:
        plan = self.demo.plan
        usual = ["--concurrency", str(plan.concurrency), "--sandbox-slots", str(plan.concurrency)]
        usual += ["--spool", str(self.demo.path("spool"))]
        return self._rollbook(
            name, lambda: ["rollout", *usual, *options()], needs=(ENGINE, SANDBOXES), ends=True
        )

    def _rollbook(
        self,
        name: str,
        options: Callable[[], list[str]],
        needs: tuple[str, ...] = (),
        *,
        ends: bool = False,
    ) -> Child:
        """A command of this command line."""
        config = ["--config", str(self.demo.config)]
        return Child(
            name,
            lambda: [sys.executable, "-m", "api.cli", *options(), *config],
            needs=((BROKER,) if self.broker is not None else ()) + needs,
            ends=ends,
            environment={"OMP_NUM_THREADS": "1", "E2B_API_KEY": "e2b_demo"},
        )
