# Two commands do all the set-up on a fresh machine: `make run` and `make test`. They need Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The newest of these that is new enough; `make run PYTHON=/path/to/python` takes another.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: run compare test lint bench clean
.DEFAULT_GOAL := run

run: $(VENV)/installed.run  ## start the scheduler of this machine; Ctrl-C ends it
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/refold serve

compare: $(VENV)/installed.run  ## compare all policies on the workload that ships with the package, and make a report
	@$(BIN)/refold compare --stop-cost 18s --restart-cost 1m

test: $(VENV)/installed.test  ## lint, check types, run every test; ends in pytest's summary
	@failed=0; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/ruff format --check . || failed=1; \
	$(BIN)/mypy || failed=1; \
	$(BIN)/python -m pytest || failed=1; \
	exit $$failed

lint: $(VENV)/installed.test  ## mend what can be mended, and say what cannot
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/mypy

bench: $(VENV)/installed.bench  ## measure speed, against others in the same run; takes a while
	@$(BIN)/python -m benchmarks.speed

clean:  ## remove everything that these commands have made
	rm -rf $(VENV) build dist refold-report .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per set of dependencies: the second `make` installs nothing unless pyproject.toml has changed.
$(VENV)/installed.run: pyproject.toml | $(BIN)/python
	@echo "installing Refold into $(VENV)"
	@$(PIP) --editable '.[report,serve]'
	@touch $@

$(VENV)/installed.test: pyproject.toml | $(BIN)/python
	@echo "installing Refold and what its tests need into $(VENV)"
	@$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/installed.run

$(VENV)/installed.bench: pyproject.toml | $(BIN)/python
	@echo "installing Refold and what its benchmarks need into $(VENV)"
	@$(PIP) --editable '.[bench]'
	@touch $@ $(VENV)/installed.run

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Refold needs Python 3.11 or newer, and none was found. Install one, or say where it is:"; \
		echo "  make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; fi
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
