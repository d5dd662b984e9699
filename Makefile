# Every target does its own set-up. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Most tests share the machine; vLLM and the drills, which load it, have it to themselves.
TWO_AT_ONCE := -n 2 --dist loadfile --no-loadscope-reorder
ALONE := vllm or drill
LONG := pool or long

# Tests start processes by the hundred, and each that compiles its modules anew takes longer.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup engines up test test-long test-fast lint audit compat bench bench-loop bench-routing lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## create .venv with Sluice and its development tools

$(STAMP): pyproject.toml setup.py $(wildcard src/sluice/router/*/*.pyx src/sluice/router/*/*.pxd) \
		requirements/runtime.txt requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements/dev.txt -c requirements/runtime.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -e . -c requirements/runtime.txt
	@touch $@

engines: $(STAMP) ## install the real upstreams of the tests: vLLM for CPUs, llm-katan
	PYTHON="$(PYTHON)" bash tests/engines/install.sh

up: setup ## run everything on this machine: gateway, billing, Postgres, Valkey
	exec $(BIN)/sluice up $(ARGS)

test: setup ## all tests, the real vLLM included; the longest drills are test-long's
	$(MAKE) -j 2 lint engines
	$(BIN)/pytest $(TWO_AT_ONCE) -m "not ($(ALONE) or $(LONG))"
	$(BIN)/pytest -m "($(ALONE)) and not ($(LONG))"

test-long: setup engines ## pools of several real vLLM engines: kills, hangs, drains, cache hits
	$(BIN)/pytest -m "$(LONG)"

test-fast: setup ## the tests that need no engine and little time
	$(BIN)/pytest $(TWO_AT_ONCE) -m "not ($(ALONE) or $(LONG) or katan or slow)"

lint: setup ## formatting, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: setup ## known vulnerabilities in the pinned run-time dependencies
	$(BIN)/python requirements/audit.py

compat: setup ## third-party clients, unmodified, against a gateway (COMPAT_DIR holds the checks)
	$(BIN)/python -m tests.compat.run_clients $(ARGS)

bench: setup ## the paired benchmark against the peers; writes bench/results.md
	$(BIN)/python -m bench $(ARGS)

bench-loop: setup ## whether `auto` learns what it promises (ROUTING_DATA holds the prompts)
	$(BIN)/python -m bench.auto_loop $(ARGS)

bench-routing: setup ## what the scorer of `auto` is worth; ROUTING_DATA holds the outcomes
	$(BIN)/python -m bench.routing $(ARGS)

lock: ## refresh the pinned versions in requirements/
	bash requirements/lock.sh "$(PYTHON)"

clean: ## remove what the other targets made (data in .sluice stays)
	rm -rf $(VENV) .venv-vllm .venv-katan .venv-bench .cache
