"""Commands as they are sent into a sandbox: in a real bash, without a backend."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.sandboxes.command import (
    CALL,
    MAX_ARGUMENT_BYTES,
    Output,
    killer,
    new_marker,
    script,
    split_time,
    unrunnable,
)
from tests.builders import ANY_SPEED
from tests.recorded import eventually

MARKER = "<rollbook 00>"


def bash(text: str, **envs: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-l", "-c", text],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | envs,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("command", "exit_code", "stdout", "stderr"),
    [
        ("echo hi; echo err >&2", 0, "hi\n", "err\n"),
        ("printf 'no newline'", 0, "no newline", ""),
        ("echo before; exit 3; echo behind", 3, "before\n", ""),
        ("exec echo replaced", 0, "replaced\n", ""),
        ("exec 2>&-; echo still", 0, "still\n", ""),
        ("exec >&-; exit 4", 4, "", ""),
        ("kill -9 $BASHPID", 137, "", ""),
        ("false", 1, "", ""),
        ("trap 'echo bye' EXIT; exit 5", 5, "bye\n", ""),
        ("cat", 0, "", ""),
        ("cat <<'X'\nit's $HOME\nX", 0, "it's $HOME\n", ""),
        ('echo "$A"; f() { return 6; }; f', 6, "b\n", ""),
        ("echo 3 >&3", 1, "", "3: Bad file descriptor"),
        ("nosuch", 127, "", "nosuch: command not found"),
        ("echo (", 2, "", "syntax error"),
    ],
)
def test_a_command_does_what_it_does_in_plain_bash_and_its_time_is_told(
    command: str, exit_code: int, stdout: str, stderr: str
) -> None:
    done = bash(script(command, None, MARKER), A="b")
    said, seconds = split_time(done.stdout, MARKER)
    assert (done.returncode, said) == (exit_code, stdout)
    assert done.stderr == stderr if stderr in ("", "err\n") else stderr in done.stderr
    assert seconds is not None
    assert 0 <= seconds < 30


def test_time_is_that_of_the_command_alone() -> None:
    done = bash("sleep 0.3\n" + script("sleep 0.2", None, MARKER))
    _, seconds = split_time(done.stdout, MARKER)
    assert seconds is not None
    assert 0.2 <= seconds < 10


def test_time_is_unknown_when_the_script_itself_was_killed() -> None:
    done = bash(script("echo a; kill -9 $$", None, MARKER))
    assert (done.returncode, *split_time(done.stdout, MARKER)) == (-9, "a\n", None)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (f"x{MARKER} 10.5 12.0 {MARKER}", 1.5),
        (f"x{MARKER} 10,5 12,0 {MARKER}", 1.5),  # the point of another locale
        (f"x{MARKER}   {MARKER}", None),  # bash before 5.0 has no such clock
        (f"x{MARKER} 12.0 10.5 {MARKER}", None),  # its clock was set back
        ("x", None),
    ],
)
def test_what_the_script_tells_is_taken_out_of_the_output(told: str, seconds: float | None) -> None:
    assert split_time(told, MARKER) == ("x", seconds)


def test_a_folder_that_is_gone_is_the_commands_failure() -> None:
    done = bash(script("echo never", "/no/such folder", MARKER))
    assert done.returncode == 1
    assert "cd: /no/such folder: No such file or directory" in done.stderr
    assert split_time(done.stdout, MARKER)[0] == ""


def test_markers_differ() -> None:
    assert new_marker() != new_marker()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo \0", "NUL"),
        ("echo \ud800", "not text"),
        ("echo " + "x" * MAX_ARGUMENT_BYTES, "Argument list too long"),
        ("echo hello", None),
    ],
)
def test_commands_that_no_process_can_be_given(command: str, why: str | None) -> None:
    said = unrunnable(script(command, None, MARKER))
    assert said is None if why is None else why in (said or "")


def test_the_longest_command_that_is_sent_does_run() -> None:
    room = MAX_ARGUMENT_BYTES - len(script("echo ", None, new_marker()))
    longest = "echo " + "x" * room
    assert unrunnable(script(longest, None, new_marker())) is None
    assert unrunnable(script(longest + "x", None, new_marker())) is not None
    done = bash(script(longest, None, new_marker()))
    assert done.stdout.startswith("xxx")


# Output


@ANY_SPEED
@given(st.lists(st.text(max_size=60), max_size=60), st.integers(200, 400))
def test_output_is_whole_or_both_its_ends_and_its_size_is_known(
    chunks: list[str], limit: int
) -> None:
    whole = "".join(chunks)
    output = Output(limit)
    for chunk in chunks:
        output.add(chunk)
    text, size, seconds = output.text(MARKER)
    assert (size, seconds) == (len(whole), None)
    if len(whole) <= limit:
        assert text == whole
    else:
        left_out = len(whole) - limit
        head, tail = limit // 2, limit - limit // 2
        note = f"\n[... {left_out} characters left out ...]\n"
        assert text == whole[:head] + note + whole[-tail:]


def test_a_time_behind_a_long_output_is_told_and_not_counted() -> None:
    output = Output(1000)
    for chunk in ["y\n" * 5000, MARKER[:5], f"{MARKER[5:]} 1.0 3.5 ", MARKER]:
        output.add(chunk)
    text, size, seconds = output.text(MARKER)
    assert (size, seconds) == (10_000, 2.5)
    assert MARKER not in text


# Killing


def alive(mark: str) -> list[str]:
    """Command lines of living processes that have `mark` in them."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in line and state not in "ZX":
            found.append(line)
    return found


def test_the_killer_finds_every_process_of_a_call_and_none_of_another() -> None:
    # Durations name the processes of this test; each hides in another way.
    ours, other = f"71{os.getpid()}", f"72{os.getpid()}"
    hiding = (
        f"trap '' TERM; sleep {ours}.1 & setsid sleep {ours}.2 & env -i sleep {ours}.3 &"
        f" (setsid sleep {ours}.4 &) ; wait"
    )
    first = subprocess.Popen(["bash", "-c", hiding], env=os.environ | {CALL: "box.1"})
    second = subprocess.Popen(["sleep", other], env=os.environ | {CALL: "box.11"})
    try:
        eventually(lambda: len([line for line in alive(ours) if line.startswith("sleep")]) == 4)
        done = bash(killer("box.1"))
        assert (done.returncode, done.stdout) == (0, "")
        eventually(lambda: first.poll() is not None)
        assert alive(f"sleep {ours}") == []
        assert second.poll() is None
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_a_killer_says_so_where_a_process_outlives_it() -> None:
    sleeper = subprocess.Popen(["sleep", "300"], env=os.environ | {CALL: "box.9"})
    try:
        assert bash(f"kill() {{ :; }}\n{killer('box.9')}").returncode == 1
        assert bash(killer("box.9")).returncode == 0
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_killer_with_nothing_to_kill_ends_soon() -> None:
    began = time.monotonic()
    assert bash(killer("box.404")).returncode == 0
    assert time.monotonic() - began < 20


def test_scripts_of_ours_need_no_program_but_bash() -> None:
    words = set(re.findall(r"[\w-]+", killer("box.1")))
    assert words.isdisjoint({"ps", "grep", "awk", "sed", "cat", "pkill", "xargs", "tr"})
