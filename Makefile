# Rienda. `make run` and `make test` need Python >= 3.11 and make only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 1
WORKERS ?= 2
# Tests that need no servers and belong to `make check`; `make test` does not run them twice.
CHECKED := tests/architecture tests/contract

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long check check-types check-rest format generate bench room clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## virtual environment with everything locked; afterwards .venv/bin/rienda exists

$(STAMP): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@UV_PYTHON_DOWNLOADS=never $(BIN)/uv pip install --quiet --python $(BIN)/python --requirement requirements.lock --editable .
	@touch $@

run: $(STAMP) ## everything on this machine: servers, rooms, samples, a refusal; Ctrl-C ends it
	@$(BIN)/rienda up

test: check ## what CI runs: `make check`, then every test with real NATS and PostgreSQL
	$(BIN)/pytest -m "not long" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(CHECKED:%=--ignore=%)

test-long: $(STAMP) ## crashes, permutations and fuzz at length; SEED=n repeats a run
	RIENDA_SEED=$(SEED) HYPOTHESIS_PROFILE=long $(BIN)/pytest -m long -x

check: $(STAMP) ## format, lint, types, import rules, architecture, generated files; no servers
	@$(MAKE) --no-print-directory --jobs=2 check-types check-rest

check-types: $(STAMP)
	$(BIN)/mypy

check-rest: $(STAMP)
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/contracts.py --check
	$(BIN)/pytest -q $(CHECKED)

format: $(STAMP) ## let the formatter and the linter's safe fixes run
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

generate: $(STAMP) ## schemas, event table, OpenAPI, samples
	$(BIN)/python tools/contracts.py
	$(BIN)/python -m services.gateway openapi
	$(BIN)/python samples/generate.py

bench: $(STAMP) ## figures beside a baseline of the same run; alone on the machine
	$(BIN)/python -m tests.bench

room: $(STAMP) ## make room NAME=x: a new room with every file it must have
	$(BIN)/python tools/new_room.py $(NAME)

clean: ## remove the virtual environment and caches; data stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
