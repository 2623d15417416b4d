# Every verb sets up what it needs first; a verb whose set-up is done starts at once.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
ARGS ?=
# Many tests wait more than they work, so there are half as many workers again as processors.
WORKERS := $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

.venv/.setup-run: requirements/run.lock system-packages.txt pyproject.toml scripts/setup
	@scripts/setup run

.venv/.setup-dev: requirements/dev.lock system-packages.txt pyproject.toml scripts/setup
	@scripts/setup dev

.PHONY: setup
setup: .venv/.setup-dev ## Install all that running and working on Skerry needs

.PHONY: up
up: .venv/.setup-run ## Start Skerry on this machine; flags with ARGS="--http 127.0.0.1:8080"
	@exec $(BIN)/skerry up $(ARGS)

.PHONY: test
test: .venv/.setup-dev ## Run the tests; choose some with ARGS="-k store"
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

.PHONY: check
check: .venv/.setup-dev ## Format, lint, types, layers, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/generate.py --check

.PHONY: fix
fix: .venv/.setup-dev ## Mend what can be mended: format, lint, generated files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/generate.py

.PHONY: bench
bench: .venv/.setup-dev ## Measure each promise as a ratio and say which hold
	$(BIN)/python -m bench $(ARGS)

.PHONY: soak
soak: .venv/.setup-dev ## Make and end ten thousand cells and look for leftovers; fewer with ARGS="1000"
	$(BIN)/python -m bench.soak $(ARGS)

.PHONY: docs
docs: .venv/.setup-dev ## Write the generated references and check every link in the docs
	$(BIN)/python scripts/generate.py
	$(BIN)/python -m pytest -q tests/test_docs.py
