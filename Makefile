# `make run` and `make test` do all the set-up on a fresh machine. They need Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The first of these that is new enough; `make run PYTHON=/path/to/python` takes another.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.PHONY: run compare test engines-kubernetes test-kubernetes engines-slurm test-slurm test-ray test-web lint measures duplicates mutate demo docs bench clean
.DEFAULT_GOAL := run

run: $(VENV)/installed.run  ## start the scheduler daemon of this machine; Ctrl-C stops it
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/refold serve

compare: $(VENV)/installed.run  ## compare the default policies on the workload that ships with the package, and write a report
	@$(BIN)/refold compare --stop-cost 18s --restart-cost 1m

test: $(VENV)/installed.test  ## lint, check types, run all tests; prints the time of each part
	@failed=0; \
	part() { \
		started=$$(date +%s); "$$@" || failed=1; \
		echo "$$(( $$(date +%s) - started )) s: $$*"; \
	}; \
	part $(BIN)/ruff check .; \
	part $(BIN)/ruff format --check .; \
	part $(BIN)/mypy; \
	part $(BIN)/python tools/run_tests.py --numprocesses auto --dist worksteal --durations 25; \
	exit $$failed

engines-kubernetes:  ## find or build the Kubernetes servers, KWOK and Kueue; takes half an hour once, and needs Go
	@$(PYTHON) tools/build_kubernetes.py --all

test-kubernetes: $(VENV)/installed.test  ## test against a real Kubernetes API server, which is built if needed
	@if assets=$$($(PYTHON) tools/build_kubernetes.py); then \
		echo "engines: $$("$$assets/kube-apiserver" --version), etcd, kube-controller-manager in $$assets"; \
		KUBEBUILDER_ASSETS=$$assets $(BIN)/python tools/run_tests.py --durations 10 tests/backends/kubernetes; \
	else \
		echo "engines: none; not tested against Kubernetes"; fi

engines-slurm:  ## find Slurm for test-slurm, or install Debian's packages, which needs root
	@$(PYTHON) tools/install_slurm.py

test-slurm: $(VENV)/installed.test  ## test against a real Slurm, which is installed if allowed
	@if found=$$($(PYTHON) tools/install_slurm.py); then \
		echo "engines: $$found"; \
		REFOLD_TEST_SLURM=1 $(BIN)/python tools/run_tests.py --durations 10 tests/backends/slurm; \
	else \
		echo "engines: none; not tested against Slurm"; fi

test-ray: $(VENV)/installed.test  ## test on a real Ray cluster of four nodes on this machine, if Ray can be installed
	@if $(PIP) --editable '.[ray]' 2>/dev/null && found=$$($(BIN)/python -c 'import ray; print(ray.__version__)'); then \
		echo "engines: Ray $$found"; \
		REFOLD_TEST_RAY=1 $(BIN)/python tools/run_tests.py --durations 10 tests/backends/ray; \
	else \
		echo "engines: none; not tested on Ray"; fi

test-web: $(VENV)/installed.test  ## test the web UI in a real browser, which is installed if allowed
	@if found=$$($(PYTHON) tools/install_chromium.py) && $(PIP) --editable '.[test-web]' 2>/dev/null; then \
		echo "browser: $$found"; \
		$(BIN)/python tools/run_tests.py --durations 10 tests/web; \
	else \
		echo "browser: none; the web UI is not tested in one"; fi

lint: $(VENV)/installed.test  ## fix what can be fixed automatically, and report the rest
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/mypy

measures:  ## vocabulary, façades, repeated names, import cycles, sizes, tests per line of code
	@$(PYTHON) tools/code_measures.py

duplicates: $(VENV)/installed.test  ## code that stands in two places: eight or more equal lines
	@$(PIP) 'pylint>=3.3'
	@$(BIN)/pylint src tests benchmarks tools examples

mutate: $(VENV)/installed.test  ## sample mutants of each folder and list those that no test notices; ARGS="--seed 2 --paths src/refold/server --tests tests/server"
	@$(PIP) 'coverage>=7.6'
	@$(BIN)/python tools/mutate.py $(ARGS)

demo: $(VENV)/installed.test  ## train three jobs on four CPU slots, which shrink, grow and change plan; needs PyTorch
	@$(BIN)/python examples/train/demo.py

docs: $(VENV)/installed.docs  ## build the documentation site in build/site; its pages open without a server
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

bench: $(VENV)/installed.bench  ## measure speed, against other simulators in the same run; takes a while
	@$(BIN)/python -m benchmarks.speed

clean:  ## remove everything that these commands have made
	rm -rf $(VENV) build dist refold-compare refold-report .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per set of dependencies: the second `make` installs nothing unless pyproject.toml has changed.
$(VENV)/installed.run: pyproject.toml | $(BIN)/python
	@echo "installing Refold into $(VENV)"
	@$(PIP) --editable '.[report,serve]'
	@touch $@

$(VENV)/installed.test: pyproject.toml tools/install_torch.py | $(BIN)/python
	@echo "installing Refold and its test dependencies into $(VENV)"
	@$(PIP) --editable '.[test]'
	@$(BIN)/python tools/install_torch.py
	@touch $@ $(VENV)/installed.run

$(VENV)/installed.docs: pyproject.toml | $(BIN)/python
	@echo "installing the documentation generator into $(VENV)"
	@$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/installed.bench: pyproject.toml | $(BIN)/python
	@echo "installing Refold and its benchmark dependencies into $(VENV)"
	@$(PIP) --editable '.[bench]'
	@touch $@ $(VENV)/installed.run

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Refold needs Python 3.11 or newer, and none was found. Install one, or name it:"; \
		echo "  make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; fi
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
