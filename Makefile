# `make run` and `make test` do all the set-up on a fresh machine. They need Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
RUN_TESTS := $(BIN)/python tools/run_tests.py --junitxml build/tests
NO_ENGINE := not (torch or kubernetes or slurm or ray or browser or machine or installed)

# The first of these that is new enough; `make run PYTHON=/path/to/python` takes another.
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# Many tests wait for processes: one more than there are cores keeps these busy.
PARALLEL := --numprocesses $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)') --dist worksteal

unexport PYTHONDONTWRITEBYTECODE  # every process would compile all that it imports

KERNELS := $(BIN)/python setup.py --quiet build_ext --inplace  # compiles those that have changed

.PHONY: run compare kernels check test test-seeds test-long test-aarch64 test-install test-train engines-kubernetes test-kubernetes engines-slurm test-slurm test-ray test-web test-machine ci upgrade lint measures duplicates mutate demo demo-failures docs man bench clean
.DEFAULT_GOAL := run

run: $(VENV)/installed.run  ## start the scheduler daemon of this machine; Ctrl-C stops it
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/refold serve

compare: $(VENV)/installed.run  ## compare the default policies on the workload that ships with the package, and write a report
	@$(BIN)/refold compare

kernels: $(VENV)/installed.test  ## compile the kernels that have changed; `make check` and `make test` do it, too
	@$(KERNELS)

check: kernels  ## before a commit: lint, check types, run the fast tests of what has changed
	@$(BIN)/python tools/check.py -- $(PARALLEL) -m '$(NO_ENGINE)'

# With an empty cache, mypy takes a minute; pytest compiles the tests and begins meanwhile. They are compiled before,
# because each of its workers would do that.
test: kernels  ## lint, check types, run all tests that need no engine; prints the time of each part
	@failed=0; \
	part() { \
		started=$$(date +%s); "$$@" || failed=1; \
		echo "$$(( $$(date +%s) - started )) s: $$*"; \
	}; \
	mkdir -p build/tests; \
	{ part $(BIN)/mypy; exit $$failed; } >build/tests/types.txt 2>&1 & types=$$!; \
	part $(BIN)/ruff check .; \
	part $(BIN)/ruff format --check .; \
	$(BIN)/pytest --collect-only --quiet >/dev/null 2>&1 || true; \
	part $(RUN_TESTS)/test.xml $(PARALLEL) --durations 25 -m '$(NO_ENGINE)'; \
	wait $$types || failed=1; \
	cat build/tests/types.txt; \
	exit $$failed

test-long: kernels  ## run the property-based tests with ten times as many examples, of a random seed, and tests on further seeds
	@$(RUN_TESTS)/test-long.xml --long $(PARALLEL) --durations 25 -m '$(NO_ENGINE)'

test-seeds: kernels  ## repeat tests of policies and live changes on further seeds and combinations
	@$(RUN_TESTS)/test-seeds.xml $(PARALLEL) --durations 10 -m 'long and $(NO_ENGINE)'

test-install: $(VENV)/installed.test  ## build the package, install it into an empty environment, and use it there
	@$(RUN_TESTS)/test-install.xml -m installed tests/end_to_end

test-train: $(VENV)/installed.test  ## test training jobs with PyTorch, which is installed if there is space; REFOLD_NO_TORCH=1 skips it
	@if $(BIN)/python tools/install_torch.py; then \
		echo "engines: PyTorch $$($(BIN)/python -c 'import torch; print(torch.__version__)')"; \
		$(RUN_TESTS)/test-train.xml $(PARALLEL) --durations 10 -m 'torch and not kubernetes' tests/train tests/planning/plans; \
	else [ $$? -eq 3 ]; fi  # 3: not wanted or no space, which it has printed

engines-kubernetes:  ## find or build the Kubernetes servers, KWOK and Kueue; takes half an hour once, and needs Go
	@$(PYTHON) tools/build_kubernetes.py --all

test-kubernetes: $(VENV)/installed.test  ## test against a real Kubernetes API server, which is built if needed
	@if assets=$$($(PYTHON) tools/build_kubernetes.py); then \
		echo "engines: $$("$$assets/kube-apiserver" --version), etcd, kube-controller-manager in $$assets"; \
		KUBEBUILDER_ASSETS=$$assets $(RUN_TESTS)/test-kubernetes.xml --durations 10 -m kubernetes tests/engines/kubernetes; \
	else \
		echo "engines: none; not tested against Kubernetes"; fi

engines-slurm:  ## find Slurm for test-slurm, or install Debian's packages, which needs root
	@$(PYTHON) tools/install_slurm.py

test-slurm: $(VENV)/installed.test  ## test against a real Slurm, which is installed if allowed
	@if found=$$($(PYTHON) tools/install_slurm.py); then \
		echo "engines: $$found"; \
		REFOLD_TEST_SLURM=1 $(RUN_TESTS)/test-slurm.xml --durations 10 -m slurm tests/engines/slurm; \
	else \
		echo "engines: none; not tested against Slurm"; fi

test-ray: $(VENV)/installed.test  ## test on a real Ray cluster of four nodes on this machine, if Ray can be installed
	@if $(INSTALL) test-ray && found=$$($(BIN)/python -c 'import ray; print(ray.__version__)'); then \
		echo "engines: Ray $$found"; \
		REFOLD_TEST_RAY=1 $(RUN_TESTS)/test-ray.xml --durations 10 -m ray tests/engines/ray; \
	else \
		echo "engines: none; not tested on Ray"; fi

test-web: $(VENV)/installed.test  ## test the web UI in a real browser, which is installed if allowed
	@if found=$$($(PYTHON) tools/install_chromium.py) && $(INSTALL) test-web; then \
		echo "browser: $$found"; \
		$(RUN_TESTS)/test-web.xml --durations 10 -m browser tests/server/web tests/simulator/results; \
	else \
		echo "browser: none; the web UI is not tested in one"; fi

test-machine: kernels  ## test the systemd unit with cgroups of version 2 in a virtual machine, which is built if allowed; 15 minutes
	@if found=$$($(BIN)/python tools/build_machine.py); then \
		echo "machine: $$found"; \
		$(RUN_TESTS)/test-machine.xml -m machine tests/end_to_end; \
	else \
		echo "machine: none; not tested in a booted machine"; fi

test-aarch64: kernels  ## test kernels and golden runs on aarch64, emulated by qemu on x86-64; needs root, half an hour
	@$(BIN)/python tools/test_aarch64.py

ci:  ## make test and the suites of all engines, and a table of their times, tests, and skipped tests with reasons
	@$(PYTHON) tools/ci.py

upgrade: $(BIN)/python  ## renew requirements.lock with the latest versions that pyproject.toml allows, and run the tests
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/python tools/upgrade.py
	@$(MAKE) --no-print-directory test

lint: $(VENV)/installed.test  ## fix what can be fixed automatically, and report the rest
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/mypy

measures:  ## vocabulary, façades, repeated names, import cycles, sizes, tests per line of code
	@$(PYTHON) tools/code_measures.py

duplicates: $(VENV)/installed.test  ## code that stands in two places: eight or more equal lines
	@$(INSTALL) test quality
	@$(BIN)/pylint src tests benchmarks tools examples

mutate: kernels  ## sample mutants of each folder and list those that no test notices; ARGS="--seed 2 --paths src/refold/server --tests tests/server"
	@$(INSTALL) test quality
	@$(BIN)/python tools/mutate.py $(ARGS)

demo: $(VENV)/installed.test  ## train three jobs on four CPU slots, which shrink, grow and change plan; needs PyTorch
	@$(BIN)/python examples/train/demo.py

demo-failures: $(VENV)/installed.test  ## train on four hosts (network namespaces) that are killed and come back; needs PyTorch and root
	@$(BIN)/python -m benchmarks.failures --demo

docs: $(VENV)/installed.docs  ## build the documentation site in build/site; its pages open without a server
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

man: $(VENV)/installed.run  ## write the manual page of all commands: man -l build/man/refold.1
	@mkdir -p build/man
	@$(BIN)/python tools/man_page.py >build/man/refold.1
	@echo "build/man/refold.1"

bench: $(VENV)/installed.bench  ## measure speed, against other simulators in the same run; takes a while
	@$(BIN)/python -m benchmarks.speed

clean:  ## remove everything that these commands have made
	rm -rf $(VENV) build dist refold-compare refold-report .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
	find src benchmarks -name '*.so' -delete

# A stamp per set of dependencies: the second `make` installs nothing unless these files have changed.
LOCKED := pyproject.toml requirements.lock setup.py tools/install.py

$(VENV)/installed.run: $(LOCKED) | $(BIN)/python
	@echo "installing Refold into $(VENV)"
	@$(INSTALL) report serve
	@touch $@

$(VENV)/installed.test: $(LOCKED) | $(BIN)/python
	@echo "installing Refold and its test dependencies into $(VENV)"
	@$(INSTALL) test
	@touch $@ $(VENV)/installed.run

$(VENV)/installed.docs: $(LOCKED) | $(BIN)/python
	@echo "installing the documentation generator into $(VENV)"
	@$(INSTALL) docs
	@touch $@

$(VENV)/installed.bench: $(LOCKED) | $(BIN)/python
	@echo "installing Refold and its benchmark dependencies into $(VENV)"
	@$(INSTALL) bench
	@touch $@ $(VENV)/installed.run

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Refold needs Python 3.11 or newer, and none was found. Install one, or name it:"; \
		echo "  make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; fi
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
