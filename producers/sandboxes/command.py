"""A command as it is sent into a sandbox, and what comes back. Pure.

The command runs in a subshell of a small script of ours, which says on standard output, behind a
random marker, when it began and ended. What ends the subshell (`exit`, `exec`, a closed output, a
kill) doesn't end the script; what ends the script too only loses the time. The exit code comes from
the backend, never from the marker, which a command could forge.

Every process of a command carries `CALL` in its environment, by which `killer` finds them all, also
those that left their process group.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections import deque
from dataclasses import dataclass

CALL = "ROLLBOOK_CALL"
"""Environment variable that names the call, unique over all sandboxes of a host."""

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""Linux refuses a longer argument of a process, whatever the limit of their sum."""

NOT_EXECUTABLE = 126
"""The shell's exit code for what was found and can't be run."""

_SCRIPT = """\
{{ __t=$EPOCHREALTIME
( exec 3>&-{cd}
eval {command}
) 2>&3
__c=$?; printf %s "{marker} $__t $EPOCHREALTIME {marker}"; }} 3>&2 2>/dev/null; exit "$__c"
"""
# Standard error of the script itself is shut, or bash reports there a subshell that was killed,
# with the whole text of the command.

_KILLER = """\
declare -A doomed
for ((round = 0; round < 40; round++)); do
  declare -A parent=(); found=
  for folder in /proc/[0-9]*; do
    pid=${{folder#/proc/}} stat=
    IFS= read -r -d '' stat 2>/dev/null <"$folder/stat" || [[ $stat ]] || continue
    set -- ${{stat##*) }}; [[ $1 == [ZX] ]] && continue; parent[$pid]=$2
    while IFS= read -r -d '' entry; do
      [[ $entry == {call} ]] && {{ doomed[$pid]=1; break; }}
    done 2>/dev/null <"$folder/environ"
  done
  again=1
  while [[ $again ]]; do again=
    for pid in "${{!parent[@]}}"; do
      [[ ${{doomed[${{parent[$pid]}}]}} && ! ${{doomed[$pid]}} ]] && doomed[$pid]=1 again=1
    done
  done
  for pid in "${{!doomed[@]}}"; do
    [[ ${{parent[$pid]}} ]] && found=1 && kill -KILL "$pid" 2>/dev/null
  done
  [[ $found ]] || exit 0
done
exit 1
"""
# Children are doomed by their parents too: a child may have cleared its environment. Rounds, since
# a process may fork between being seen and being killed, and on a busy machine is there for a while
# after it was killed.


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of a command."""

    exit_code: int | None
    """None: it has none, since its time limit ended it. A signal's number plus 128."""
    stdout: str
    """What it printed; of more than the limit, both ends with a note between them."""
    stderr: str
    """As stdout."""
    wall_s: float
    """Seconds by the client, from the request to the end."""
    sandbox_s: float | None
    """Seconds inside the sandbox, by its own clock; None: can't be told."""
    timed_out: bool
    """Whether its time limit ended it. What it had started is dead then."""
    stdout_size: int = 0
    """Characters that it printed in all."""
    stderr_size: int = 0
    """As stdout_size."""


def unrunnable(script: str) -> str | None:
    """Why no shell could ever be given this script; None when one can."""
    if "\0" in script:
        return "bash: the command has a NUL character\n"
    try:
        size = len(script.encode())
    except UnicodeEncodeError as error:
        return f"bash: the command is not text: {error.reason}\n"
    if size > MAX_ARGUMENT_BYTES:
        return f"bash: Argument list too long: {size} bytes, at most {MAX_ARGUMENT_BYTES}\n"
    return None


def new_marker() -> str:
    """What no command prints by chance."""
    return f"<rollbook {secrets.token_hex(16)}>"


def script(command: str, cwd: str | None, marker: str) -> str:
    """What bash is given, in `/`, to run `command` in `cwd`, seen from the home folder. That either
    is gone is the command's failure: a policy can remove folders, and must not get out by that."""
    cd = "; cd || exit" if cwd is None else f"; cd && cd -- {shlex.quote(cwd)} || exit"
    return _SCRIPT.format(cd=cd, command=shlex.quote(command), marker=marker)


def killer(call: str) -> str:
    """What bash is given to kill every process of a call. It needs bash 4 and /proc, no tools; it
    fails where some are there to the end."""
    return _KILLER.format(call=shlex.quote(f"{CALL}={call}"))


def split_time(stdout: str, marker: str) -> tuple[str, float | None]:
    """What the command printed, and its seconds by the sandbox's clock."""
    number = r"(\d+[.,]\d+)"  # the decimal point is the locale's
    found = re.search(rf"{re.escape(marker)} {number} {number} {re.escape(marker)}", stdout)
    if found is None:
        # An old bash has no clock, and leaves the numbers empty.
        empty = f"{marker}   {marker}"
        return stdout.replace(empty, ""), None
    began, ended = (float(text.replace(",", ".")) for text in found.groups())
    seconds = ended - began
    return stdout[: found.start()] + stdout[found.end() :], seconds if seconds >= 0 else None


class Output:
    """Both ends of a text of any size, in bounded memory."""

    def __init__(self, limit: int) -> None:
        """Keeps up to `limit` characters."""
        self.size = 0
        self._head: list[str] = []
        self._head_room = limit // 2
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._tail_room = limit - limit // 2

    def add(self, text: str) -> None:
        self.size += len(text)
        if self._head_room:
            self._head.append(text[: self._head_room])
            text = text[self._head_room :]
            self._head_room -= len(self._head[-1])
        if not text:
            return
        self._tail.append(text)
        self._tail_size += len(text)
        while self._tail_size - len(self._tail[0]) >= self._tail_room:
            self._tail_size -= len(self._tail.popleft())

    def text(self, marker: str) -> tuple[str, int, float | None]:
        """The text without the script's own words, its whole size, and the seconds they told."""
        head, tail = "".join(self._head), "".join(self._tail)[-self._tail_room :]
        left_out = self.size - len(head) - len(tail)
        if not left_out:
            text, seconds = split_time(head + tail, marker)
            return text, len(text), seconds
        told, seconds = split_time(tail, marker)
        note = f"\n[... {left_out} characters left out ...]\n"
        return head + note + told, self.size - (len(tail) - len(told)), seconds
