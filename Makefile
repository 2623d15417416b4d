# Every verb sets up what it needs first; a verb whose set-up is done starts at once.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
ARGS ?=
# Many tests wait more than they work, so there are three times as many workers as processors; one that is done takes
# over what others have not begun.
WORKERS := $(shell echo $$(( $$(nproc) * 3 )))

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

.venv/.setup-run: requirements/run.lock system-packages.txt pyproject.toml scripts/setup scripts/assets requirements/assets.lock
	@scripts/setup run

.venv/.setup-dev: requirements/dev.lock system-packages.txt pyproject.toml scripts/setup scripts/assets requirements/assets.lock
	@scripts/setup dev

.venv/.setup-etcd: requirements/etcd.lock system-packages.txt pyproject.toml scripts/setup scripts/assets requirements/assets.lock
	@scripts/setup etcd

.PHONY: setup
setup: .venv/.setup-dev ## Install all that running and working on Skerry needs

PREFIX ?= /usr/local

.PHONY: install
install: .venv/.setup-run ## Install what running Skerry needs, link the command into /usr/local/bin, write man pages; as root
	@mkdir -p $(PREFIX)/bin
	@ln -sfn "$(CURDIR)/$(BIN)/skerry" $(PREFIX)/bin/skerry
	@$(BIN)/python scripts/man_pages.py $(PREFIX)/share/man/man1
	@echo "$(PREFIX)/bin/skerry is the command; 'man skerry' describes it"

.PHONY: dist
dist: .venv/.setup-dev ## Build the wheel, the Debian package and an image into dist/; its base with BASE=...
	@BASE="$(BASE)" $(BIN)/python -m scripts.dist

.PHONY: etcd
etcd: .venv/.setup-etcd ## Install what running Skerry with its store in etcd needs

.PHONY: up
up: .venv/.setup-run ## Start Skerry on this machine; flags with ARGS="--http 127.0.0.1:8080"
	@exec $(BIN)/skerry up $(ARGS)

.PHONY: demo
demo: .venv/.setup-run ## Show what Skerry does, in a cloud with three edge sites on this machine; as root
	@exec $(BIN)/skerry demo $(ARGS)

.PHONY: test
test: .venv/.setup-dev ## Run the tests; choose some with ARGS="-k store"
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: test-fast
test-fast: .venv/.setup-dev ## Run the tests that need neither root nor servers
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --fast $(ARGS)

.PHONY: coverage
coverage: .venv/.setup-dev ## Run all tests and print what they cover; only the fast ones with ARGS=--fast
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov=skerry --cov-report= $(ARGS)
	@echo "coverage: $$($(BIN)/coverage report --format=total) % of the lines of src/skerry"

.PHONY: check
check: .venv/.setup-dev ## Format, lint, types, layers, declared packages, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/python scripts/generate.py --check

.PHONY: audit
audit: .venv/.setup-dev ## Ask a vulnerability service about every locked package; needs a network
	@$(BIN)/python scripts/audit.py

.PHONY: fix
fix: .venv/.setup-dev ## Mend what can be mended: format, lint, generated files
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/generate.py

.PHONY: bench
bench: .venv/.setup-dev ## Measure each promise as a ratio and say which hold
	$(BIN)/python -m bench $(ARGS)

.PHONY: soak
soak: .venv/.setup-dev ## Try to make it lose, double or leave something; one campaign, shorter, with ARGS="kills --count 20"
	$(BIN)/python -m bench.soak $(ARGS)

.PHONY: pictures
pictures: .venv/.setup-dev ## Draw the pictures of the console in docs/pictures again, by its tests in a browser
	SKERRY_DOCS_PICTURES=docs/pictures $(BIN)/python -m pytest -q tests/console/test_pages_in_browser.py -k pictures $(ARGS)

.PHONY: docs
docs: .venv/.setup-dev ## Write the generated references and check every link in the docs
	$(BIN)/python scripts/generate.py
	$(BIN)/python -m pytest -q tests/test_docs.py
