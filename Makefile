# Two commands do everything: `make serve` and `make test`. `make help` lists the rest.
# Written for macOS's make 3.81 and GNU make 4.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# HOST is taken from the command line only: some shells export a HOST of their own.
HOST := 127.0.0.1
PORT ?= 8080
DATA_DIR ?=
MODEL ?=
ARGS ?=
PYTHON ?=

VENV := .venv
PY := $(VENV)/bin/python
# A stamp carries the checksum of what it was made from, so a changed lock makes a new environment by itself.
RUN_SUM := $(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
TEST_SUM := $(shell cat requirements.lock requirements-test.lock pyproject.toml | cksum | cut -d' ' -f1)
RUN_STAMP := $(VENV)/.run-$(RUN_SUM)
TEST_STAMP := $(VENV)/.test-$(TEST_SUM)

PIP := $(PY) -m pip --disable-pip-version-check --quiet
PIP_INSTALL := $(PIP) install --retries 10 --timeout 60 --prefer-binary
# Dependencies are all locked, so our own package brings none and is built with what the lock holds.
INSTALL_SELF := $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
INSTALL_FAILED := { echo "The dependencies could not be installed: see above, check network and disk, run it again" >&2; exit 1; }

DATA_FLAG := $(if $(DATA_DIR),--data-dir "$(DATA_DIR)")
MODEL_FLAG := $(if $(MODEL),--model "$(MODEL)")

.PHONY: help serve test lint check-long check-all lock bench soak families wheel clean

help: ## Show what can be made
	@awk -F':.*## ' -v there=" $(THERE) " '/^[a-z-]+:.*## / { optional = sub(/^[?] /, "", $$2); \
		if (!optional || index(there, " " $$1 " ")) printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@echo "Overrides: HOST= PORT= DATA_DIR= MODEL=path-or-hub-id PYTHON= ARGS='more flags'"

serve: $(RUN_STAMP) ## Start the daemon on 127.0.0.1:8080 (first time: set up, fetch the default model)
	@$(if $(MODEL),:,$(PY) -m mlxcel.cli model fetch $(DATA_FLAG))
	@exec $(PY) -m mlxcel.cli serve --host "$(HOST)" --port "$(PORT)" $(DATA_FLAG) $(MODEL_FLAG) $(ARGS)

# Two processes share the test files: most tests wait for a daemon to start. TEST_PROCESSES=0 runs them in one.
TEST_PROCESSES := 2

test: $(TEST_STAMP) ## Run the tests (ARGS='-k name' to choose)
	@exec $(PY) -m mlxcel.native $(PY) -m pytest -m "not slow" -n $(TEST_PROCESSES) --dist loadfile $(ARGS)

lint: $(TEST_STAMP) ## Check style, import rules and types
	$(PY) -m ruff check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy

# What a build machine runs beside the tests, in minutes; `make check-all` takes hours.
LONG := tests/packaging tests/storage/test_crash.py tests/faults/test_identity.py tests/isolation tests/soak

check-long: lint ## Run lint, types and those slow tests that fit a build
	@exec $(PY) -m mlxcel.native $(PY) -m pytest -m slow $(LONG) $(ARGS)

check-all: lint ## Run all slow tests (hours)
	@exec $(PY) -m mlxcel.native $(PY) -m pytest -m slow $(ARGS)

# A "?" before the words: `make help` shows the target only where its code is.
ifneq ($(wildcard benchmarks/__main__.py),)
THERE += bench
bench: $(TEST_STAMP) ## ? Run the benchmarks, results as JSON
	@exec $(PY) -m mlxcel.native $(PY) -m benchmarks $(ARGS)
endif

ifneq ($(wildcard benchmarks/soak.py),)
THERE += soak
soak: $(TEST_STAMP) ## ? Run the endurance test
	@exec $(PY) -m mlxcel.native $(PY) -m benchmarks.soak $(ARGS)
endif

ifneq ($(wildcard tests/families/test_*.py),)
THERE += families
families: $(TEST_STAMP) ## ? Run the tests of all model families, slow ones too
	@exec $(PY) -m mlxcel.native $(PY) -m pytest tests/families $(ARGS)
endif

wheel: $(TEST_STAMP) ## Build the wheel into dist/
	$(PY) -m build --wheel --no-isolation

# uv is needed here only, by whoever changes a dependency. UPGRADE=1 takes the newest versions.
LOCK_FLAGS := --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-header --quiet \
	$(if $(UPGRADE),--upgrade)
lock: ## Resolve the dependencies again and write both lock files (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv on the path" >&2; exit 1; }
	uv pip compile pyproject.toml --extra checkout --extra test $(LOCK_FLAGS) --output-file requirements-test.lock
	uv pip compile pyproject.toml --extra checkout $(LOCK_FLAGS) --constraint requirements-test.lock \
		--output-file requirements.lock

clean: ## Remove the environment, caches and builds (never a data directory)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------- environment

$(PY):
	@set -e; python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		for name in python3.11 python3.12 python3.13 python3; do \
			if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
				python=$$name; break; fi; \
		done; \
	fi; \
	[ -n "$$python" ] || { echo "mlxcel needs Python 3.11 or newer: install it, or say PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
		|| { echo "PYTHON=$$python is not a Python 3.11 or newer" >&2; exit 1; }; \
	"$$python" -c 'import venv, ensurepip' >/dev/null 2>&1 \
		|| { echo "$$python has no venv module: install it (Debian: apt install python3-venv)" >&2; exit 1; }; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); "$$python" -m venv $(VENV)

$(RUN_STAMP): | $(PY)
	@echo "Installing the locked dependencies (first time: a few minutes)"
	@$(PIP_INSTALL) --require-hashes --requirement requirements.lock || $(INSTALL_FAILED)
	@$(INSTALL_SELF)
	@rm -f $(VENV)/.run-* $(VENV)/.test-* && touch $@

$(TEST_STAMP): | $(PY)
	@echo "Installing the locked dependencies with the test extras"
	@$(PIP_INSTALL) --require-hashes --requirement requirements-test.lock || $(INSTALL_FAILED)
	@$(INSTALL_SELF)
	@rm -f $(VENV)/.run-* $(VENV)/.test-* && touch $@ $(RUN_STAMP)
