"""Completions to commands, and what they printed to tokens.

Invariant: one answer is one command. The policy submits by a command that succeeds and prints the
line for it first; whatever else is in an answer is not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from producers.tasks.swe.chat import ChatTemplate, Conversation
from producers.tasks.swe.instances import Instance
from producers.tasks.swe.prompts import (
    SYSTEM,
    commands_in,
    format_message,
    is_submission,
    result_message,
    task_message,
)
from producers.tasks.task import Action, Nothing, Observation, Submit, ToolCall

if TYPE_CHECKING:
    from producers.sandbox import CommandResult

VERSION = "1"
"""Of the messages and their reading."""
COMMAND_TIMEOUT_S = 60.0
"""Of one command."""
REWRITTEN = "the chat template writes earlier messages anew"
"""Why a new segment begins."""


class BashScaffold:
    """One attempt: the conversation so far."""

    def __init__(self, instance: Instance, template: ChatTemplate) -> None:
        task = task_message(instance.statement, instance.workdir, COMMAND_TIMEOUT_S)
        self._workdir = instance.workdir
        self._template = template
        self._conversation = Conversation(
            template, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
        )
        self._completion: Sequence[int] = ()
        self._answer = ""
        self._commands = 0

    def prompt(self) -> list[int]:
        """The system's and the task's message."""
        return self._conversation.prompt()

    def read(self, completion: Sequence[int]) -> Action:
        """The one command in an answer."""
        self._completion = completion
        self._answer = self._template.decode(completion)
        commands = commands_in(self._answer)
        self._commands = len(commands)
        if len(commands) != 1:
            return Nothing(f"an answer must have one ```bash block, got {len(commands)}")
        (command,) = commands
        return ToolCall(
            "bash", command, f"cd {self._workdir} || exit 1\n{command}", COMMAND_TIMEOUT_S
        )

    def observe(self, action: Action, result: CommandResult | None) -> Observation:
        """The reply to the answer that was read last."""
        if isinstance(action, Submit):
            return Observation((), done=True)
        if not isinstance(action, ToolCall) or result is None:
            return self._reply(format_message(self._commands))
        if is_submission(result.exit_code, result.stdout):
            return Observation((), done=True)
        output = result.stdout + result.stderr
        return self._reply(result_message(result.exit_code, output, result.timed_out))

    def _reply(self, text: str) -> Observation:
        extension = self._conversation.extend(self._completion, self._answer, text)
        if extension.whole:
            return Observation((), False, extension.token_ids, REWRITTEN)
        return Observation(extension.token_ids, done=False)
