"""A model's chat template, used so that the tokens of a conversation only ever grow.

Invariant: what the policy sampled is never tokenised again. Behind a completion go the tokens of
what the template writes between the policy's answer and its next one, and nothing else.

Some templates write earlier messages anew when one is added: Qwen3's drops the thoughts of former
answers. `Extension.whole` says so, and the caller begins a new segment. How it is told: the
template writes the conversation once with the answer and once with a mark in its place. If what
stands before the mark is what was written last time, and the answer stands whole in the mark's
place, only the text behind the mark is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from producers.tasks.task import TasksRefused

Message = dict[str, str]
MARK = "\ue000ANSWER\ue001"
"""Stands for an answer; in private use, so no text has it."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What follows a completion."""

    token_ids: tuple[int, ...]
    """Behind the completion; or, if `whole`, the whole new prompt."""
    whole: bool
    """Whether the template wrote earlier messages anew."""


class ChatTemplate:
    """A tokenizer that has a chat template."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        """`tokenizer` as transformers has it. Raises TasksRefused if it can't write a chat."""
        self.name = name
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise TasksRefused(f"the tokenizer must have a chat template, and has none ({name})")
        try:
            end = self._write([{"role": "user", "content": "-"}, _answer(MARK)], more=False)
            self._write([{"role": "system", "content": "-"}, {"role": "user", "content": "-"}])
        except Exception as error:
            raise TasksRefused(
                f"the chat template must take system, user and assistant: {error} ({name})"
            ) from error
        behind = self.encode(end.partition(MARK)[2])
        if not behind:
            raise TasksRefused(f"the chat template must end an answer by a token ({name})")
        eos = getattr(tokenizer, "eos_token_id", None)
        self.stop_token_ids: tuple[int, ...] = tuple(
            dict.fromkeys((behind[0], *([] if eos is None else [eos])))
        )
        """The token that the template ends an answer by, first, and the tokenizer's own."""

    @classmethod
    def load(cls, name: str) -> ChatTemplate:
        """The template of a model's folder or name. Raises TasksRefused."""
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise TasksRefused(
                f"a chat template needs transformers and jinja2: install them ({name})"
            ) from None
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except (OSError, ValueError, KeyError) as error:
            raise TasksRefused(f"no tokenizer could be loaded: {error} ({name})") from error
        return cls(tokenizer, name)

    def encode(self, text: str) -> list[int]:
        """Token ids of text that the template wrote."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The answer in a completion, without the token that ended it."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _write(self, messages: Sequence[Message], *, more: bool = True) -> str:
        return self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=more
        )


class Conversation:
    """The messages of one attempt, and what the template wrote of them last."""

    def __init__(self, template: ChatTemplate, messages: Sequence[Message]) -> None:
        self._template = template
        self._messages = list(messages)
        self._written = template._write(messages)  # pyright: ignore[reportPrivateUsage]

    def prompt(self) -> list[int]:
        """The tokens of what was written last."""
        return self._template.encode(self._written)

    def extend(self, completion: Sequence[int], answer: str, reply: str) -> Extension:
        """Take in a completion, the answer that `ChatTemplate.decode` reads in it, the reply."""
        write = self._template._write  # pyright: ignore[reportPrivateUsage]
        user: Message = {"role": "user", "content": reply}
        marked = write([*self._messages, _answer(MARK), user])
        before, _, behind = marked.partition(MARK)
        earlier = self._written
        self._messages += [_answer(answer), user]
        self._written = write(self._messages)
        stands = self._written[len(before) : len(self._written) - len(behind)]
        if (
            before == earlier
            and self._written == before + stands + behind
            and stands.strip() == answer.strip()  # blanks around it a template may take away
        ):
            between = self._template.encode(behind)
            if not completion or completion[-1] not in self._template.stop_token_ids:
                return Extension(tuple(between), whole=False)
            if between[0] == completion[-1]:
                return Extension(tuple(between[1:]), whole=False)
        return Extension(tuple(self._template.encode(self._written)), whole=True)


def _answer(content: str) -> Message:
    return {"role": "assistant", "content": content}
