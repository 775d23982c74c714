#!/usr/bin/env bash
# The peers' own environment, .venv-bench: their pins must not touch ours.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv-bench/.ready
[ "$stamp" -nt benchmarks/requirements.txt ] && exit 0
test -x .venv-bench/bin/python || "${PYTHON:-python3.11}" -m venv .venv-bench
.venv-bench/bin/python -m pip install --quiet --upgrade pip
.venv-bench/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt
touch "$stamp"
