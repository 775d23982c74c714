"""What is run in a sandbox for an instance, apart from what the policy runs.

Invariant: the state that an attempt starts from is `refs/rollbook/base`, also in the sandbox that
the tests run in; a diff is taken against it there and applied to it here. Files that we exchange
with a sandbox lie in its home folder, outside the repository.
"""

from __future__ import annotations

import shlex

from producers.tasks.swe.instances import Instance
from producers.tasks.swe.protection import protected_patterns, test_files
from producers.tasks.swe.results import STATUSES

ARCHIVE = ".rollbook.tar"
DIFF = ".rollbook.diff"
TEST_PATCH = ".rollbook.tests.diff"
GOLD = ".rollbook.gold.diff"
LOG = ".rollbook.log"
RESULTS = ".rollbook.results"
REPOSITORY = ".rollbook.git"

BASE = "refs/rollbook/base"
MAX_DIFF_BYTES = 16 << 20
MAX_RESULTS_BYTES = 32 << 20
DIFF_TOO_LARGE = 40
DIFF_NOT_APPLIED = 41
"""Exit codes of ours, beside those that git has."""

_MAKE_BASE = (
    f'git update-ref {BASE} "$(git -c user.name=rollbook -c user.email=rollbook@localhost'
    ' commit-tree -m Base "$(git write-tree)")"'
)
"""Of what is in the index, without a parent."""
_FORGET_HISTORY = f"""git init --quiet --bare ~/{REPOSITORY}
git --git-dir ~/{REPOSITORY} fetch --quiet "file://$PWD" {BASE}:{BASE}
rm -rf .git
mv ~/{REPOSITORY} .git
git config core.bare false
git update-ref HEAD {BASE}
git reset --quiet"""
"""Of all commits and objects only the base stays."""


def setup_command(instance: Instance, *, history: bool = False) -> str:
    """Makes the base: the uploaded archive, or the commit in the image with what the image has
    beside it, so that neither is taken for the policy's work. An image's history stays only with
    `history`, where no policy is: it may hold the commit that made the bug, or the repair."""
    workdir = instance.workdir
    if instance.image is None:
        steps = [
            f"mkdir -p {workdir}",
            f"cd {workdir}",
            f"tar -xf ~/{ARCHIVE}",
            f"rm ~/{ARCHIVE}",
            "git init --quiet",
            "git add --all --force",
            _MAKE_BASE,
            f"git update-ref HEAD {BASE}",
        ]
    else:
        commit = shlex.quote(instance.base_commit or "HEAD")
        here = f"git checkout --quiet --force --detach {commit} 2> /dev/null"
        fetched = f"git fetch --quiet origin {commit}"
        steps = [
            f"cd {workdir}",
            f"{{ {here} || {{ {fetched} && git checkout --quiet --force FETCH_HEAD; }}; }}",
            "git add --all",
            _MAKE_BASE,
            *([] if history else _FORGET_HISTORY.splitlines()),
        ]
    return " && ".join(["git config --global --replace-all safe.directory '*'", *steps])


def diff_command(instance: Instance) -> str:
    """Writes all changes since the base, committed or not, to DIFF."""
    return f"""rm -rf ~/{DIFF}
cd {instance.workdir} && git add --all || exit 1
set -o pipefail
git diff --cached --binary --no-color --no-ext-diff --no-textconv --no-renames \\
    --src-prefix=a/ --dst-prefix=b/ {BASE} | head -c {MAX_DIFF_BYTES + 1} > ~/{DIFF}
code=$?
[ $(wc -c < ~/{DIFF}) -le {MAX_DIFF_BYTES} ] || exit {DIFF_TOO_LARGE}
exit $code"""


def gold_command(instance: Instance) -> str:
    """Applies GOLD."""
    back = "--reverse " if instance.reversed_patch else ""
    return f"cd {instance.workdir} && git apply --whitespace=nowarn {back}~/{GOLD}"


def apply_command(instance: Instance) -> str:
    """Brings the tests, those that the base's last commit removed and TEST_PATCH, and only then
    applies DIFF, without the protected files: so the policy's work is at fault if it doesn't
    apply, and can't keep the tests from being brought."""
    patterns = protected_patterns(instance.tests, instance.test_patch)
    excluded = " ".join(shlex.quote(f"--exclude={pattern}") for pattern in patterns)
    removed = " ".join(shlex.quote(file) for file in test_files(instance.tests))
    restore = f"git checkout --quiet HEAD~1 -- {removed}" if instance.tests_removed else "true"
    return f"""cd {instance.workdir} && {restore} || exit 1
if [ -s ~/{TEST_PATCH} ]; then
    git apply --whitespace=nowarn ~/{TEST_PATCH} || exit 1
fi
if [ -s ~/{DIFF} ]; then
    git apply --whitespace=nowarn {excluded} ~/{DIFF} || exit {DIFF_NOT_APPLIED}
fi"""


def test_command(instance: Instance) -> str:
    """Runs the tests. Their output goes to LOG: there may be more of it than a stream carries."""
    files = " ".join(shlex.quote(file) for file in test_files(instance.tests))
    command = instance.test_command.replace("{files}", files)
    return f"cd {instance.workdir} && {{ {command}\n}} > ~/{LOG} 2>&1 < /dev/null"


def results_command() -> str:
    """Writes the lines that have results to RESULTS, and prints the end of LOG."""
    wanted = "|".join(STATUSES)
    return (
        f"grep -aE '^({wanted}) ' ~/{LOG} | head -c {MAX_RESULTS_BYTES} > ~/{RESULTS};"
        f" tail -c 2000 ~/{LOG}"
    )
