# Every target makes the environment it needs: Python >= 3.11 and make are all that is asked of a machine.
# `make demo` shows the main job, `make test` runs the tests, `make check` the static checks.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

LOCK   := -q --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url

.DEFAULT_GOAL := help
.PHONY: help demo up test test-heavy test-engine check format bench benchmarks docs lock proto clean

help:           ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

demo: $(VENV)/.demo   ## round robin and kvring side by side through a real Envoy, about 90 s
	$(BIN)/kvring demo $(ARGS)

up: $(VENV)/.demo     ## a gateway on this machine: Envoy + kvring + simulated replicas (ARGS="--upstream HOST:PORT")
	$(BIN)/kvring up $(ARGS)

# Files go to one process each, in the order collected: the long ones, with an Envoy, first.
test: $(VENV)/.dev    ## the test suite, in as many processes as cores, at most 4 (ARGS="-k name")
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-heavy: $(VENV)/.dev   ## the long tests, minutes each
	$(BIN)/python -m pytest -m heavy --timeout 900 $(ARGS)

test-engine: $(VENV)/.dev   ## two real vLLM processes on the CPU behind Envoy (KVRING_ENGINE=where one is installed)
	$(BIN)/python -m pytest -m heavy -s tests/envoy/test_real_engine.py $(ARGS)

bench: $(VENV)/.dev   ## measurements, as ratios within one run
	$(BIN)/python -m pytest -m bench --timeout 900 -s tests/bench $(ARGS)

benchmarks: $(VENV)/.dev   ## measure the tables of docs/benchmarks.md anew, hours
	$(BIN)/python tests/bench/demo_seeds.py --write
	$(BIN)/python tests/bench/simulated_tables.py --write

check: $(VENV)/.dev   ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## rewrite the code in the house layout
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev    ## rewrite the generated tables of docs/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/dashboard.py
	$(BIN)/python docs/drawings.py

lock: $(VENV)/.dev    ## resolve the container's dependencies anew, with hashes
	$(BIN)/python -m pip install --quiet --group image
	$(BIN)/uv pip compile $(LOCK) --extra br --extra zstd --extra valkey --extra otel --extra tls pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile $(LOCK) --group image -o requirements-build.lock

proto: $(VENV)/.dev   ## regenerate extproc/pb from proto/
	$(BIN)/python proto/generate.py

clean:          ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.pip:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvring needs Python >= 3.11, this is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --editable '.[envoy,sim]'
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --group test --group check
	touch $@
