# `make test` sets everything up on a fresh machine; see README.md.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: setup demo docs test test-fast test-long lint render kafka bench clean

setup: $(VENV)/.ready-dev

# What the demo needs.
$(VENV)/.ready: pyproject.toml constraints.txt deploy/setup.sh $(wildcard deploy/engine/*.txt)
	bash deploy/setup.sh java=openjdk-17-jre-headless mvn=maven bwrap=bubblewrap
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[trainer]'
	$(BIN)/rollbook engine install
	touch $@

# What tests and lint need beside it.
$(VENV)/.ready-dev: $(VENV)/.ready
	bash deploy/setup.sh chromium=chromium
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,trainer]'
	touch $@

# A tiny policy learns to repair code, everything real: `make demo LOG=kafka`, ARGS="--json".
demo: $(VENV)/.ready
	$(BIN)/rollbook demo $(if $(LOG),--log $(LOG)) $(ARGS)

# All tests but the exhaustive rounds. Two at a time: most of them wait for a process most of the time.
# In the order of their names: else files of one test come last, and the longest tests are such.
test: setup lint
	$(PYTEST) -v -n 2 --dist loadfile --no-loadscope-reorder -m "not long"

# What needs no broker, no engine and no Megatron, kills nothing and is quick: under 2 minutes.
test-fast: setup
	$(PYTEST) -n 2 --dist loadfile -m "not slow and not long and not kafka and not fault and not engine and not trainer and not sandboxes"

# The exhaustive rounds as well.
test-long: setup
	$(PYTEST) -v -n 2 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m ledger.rendering --check

# Writes every file that is rendered from the fact classes.
render: setup
	$(BIN)/python -m ledger.rendering

# docs/DEMO.md and the README's tables from a real run, and pictures of the live page.
docs: setup
	rm -rf build/demo
	mkdir -p build
	$(BIN)/rollbook demo --dir build/demo --json > build/demo.json
	mv build/demo.json docs/demo.json
	$(BIN)/python -m api.demo.page docs/demo.json
	$(BIN)/python -m tests.page_screenshots --log sqlite:///build/demo/log.db

# Apache Kafka on this machine, in .kafka/; prints host:port. `rollbook broker stop` ends it.
kafka: setup
	$(BIN)/rollbook broker start

# Throughput against peers; benchmarks/README.md says what is measured.
bench: setup
	$(BIN)/python -m pip install --quiet --requirement benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.ledger

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
