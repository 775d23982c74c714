#!/usr/bin/env bash
# The peers' own environment, .venv-bench: their pins must not touch ours.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv-bench/.ready
[ "$stamp" -nt benchmarks/requirements.txt ] && [ "$stamp" -nt benchmarks/requirements-trainer.txt ] && exit 0
test -x .venv-bench/bin/python || "${PYTHON:-python3.11}" -m venv .venv-bench
.venv-bench/bin/python -m pip install --quiet --upgrade pip
.venv-bench/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt
# TRL on our own torch: a second one would be gigabytes, and another version.
.venv-bench/bin/python -m pip install --quiet --no-deps --upgrade --target .venv-bench/trainer-peers \
    --requirement benchmarks/requirements-trainer.txt
touch "$stamp"
