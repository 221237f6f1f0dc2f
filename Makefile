# Needs Python 3.11 or newer and make; everything else goes into .venv.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
STARTED := .venv/.started
# Test processes, one thread each: on few cores faster than one process with many threads. No more
# than cores: each imports torch and compiles the tests, which takes it half a minute.
TEST_PROCESSES ?= logical
PYTEST_FLAGS ?=
# For each kind of input, with atheris.
FUZZ_SECONDS ?= 30
# Prints what builds the package, what it needs, and what the built-in corpus reads beside that.
NEEDED := 'import tomllib; file = tomllib.load(open("pyproject.toml", "rb")); \
	print("hatchling", "editables", *file["project"]["dependencies"], *file["dependency-groups"]["corpus"])'
# What `test-quick` covers; commands, tasks, exports and whole runs are left to `test`.
QUICK := base data model objectives training study analysis

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes; without stored bytecode each would compile all of the package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install quickstart test test-quick test-slurm test-engines soak fuzz mutations snapshots numerics lint format types docs check release bench lock clean

help:  ## Show this list.
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20

install: $(INSTALLED)  ## Make .venv with the exact versions of requirements.lock.

$(STARTED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "biphasic needs Python 3.11 or newer, and $(PYTHON) is older or missing." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(or $(MAKECMDGOALS),install)" >&2; exit 1; }
	@echo "Installing into .venv: once, some minutes, 2 GB (6 GB where torch brings CUDA)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -c $(NEEDED) | xargs $(BIN)/python -m pip install --quiet -c requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(INSTALLED): $(STARTED)
	@echo "Installing what tests, checks and documentation need"
	@$(BIN)/python -m pip install --quiet -r requirements.lock
	@touch $@

quickstart: $(STARTED)  ## Run the small study of the README and write its report.
	@$(BIN)/biphasic study run studies/quickstart.yaml

test: $(INSTALLED)  ## Run the tests.
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_PROCESSES) --maxprocesses 8 --dist worksteal $(PYTEST_FLAGS)

test-quick: $(INSTALLED)  ## Run the quick unit tests, in a minute: for every save.
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_PROCESSES) --maxprocesses 8 --dist worksteal -m "not slow" \
		$(addprefix tests/unit/,$(QUICK)) $(PYTEST_FLAGS)

test-slurm: $(INSTALLED)  ## Run the tests that need Slurm, on daemons from Debian's packages.
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 -rs -m slurm tests/slurm $(PYTEST_FLAGS)

fuzz: $(INSTALLED)  ## Read damaged and hostile inputs of every kind: half an hour.
	$(BIN)/python -m pip install --quiet --upgrade pip  # older ones know no groups
	$(BIN)/python -m pip install --quiet --group fuzz
	BIPHASIC_FUZZ=400 OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_PROCESSES) tests/fault/test_fuzz.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/fault/fuzz_coverage.py $(FUZZ_SECONDS)

soak: $(INSTALLED)  ## Inject faults into runs for 20 minutes, and count them in docs/recovery.md.
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m soak.run

test-engines: $(INSTALLED)  ## Serve exports by other engines, and compare vectors: an hour.
	OMP_NUM_THREADS=1 $(BIN)/python tests/engines/run.py

mutations: $(INSTALLED)  ## Break the source in ways that tests must notice, one at a time.
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutations/run.py

snapshots: $(INSTALLED)  ## Write anew what commands print; read the difference.
	BIPHASIC_SNAPSHOTS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 tests/unit/cli tests/unit/export/test_card.py \
		$(addprefix tests/unit/analysis/test_,pages.py sentences.py claims_on_studies.py)

numerics: $(INSTALLED)  ## Reproduce the golden numbers with edited code, and list its hash.
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_PROCESSES) --maxprocesses 8 tests/golden/test_golden.py
	$(BIN)/python tests/golden/record_code.py

lint: $(INSTALLED)  ## Check style and import contracts.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

format: $(INSTALLED)  ## Correct what ruff can correct.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(INSTALLED)  ## Check types.
	$(BIN)/pyright

docs: $(INSTALLED)  ## Run the tutorials and build the site into build/docs/; warnings are errors.
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

check:  ## All of the above checks, as CI runs them.
	@$(MAKE) --no-print-directory --jobs 4 lint types docs test

release: $(INSTALLED)  ## Build sdist and wheel into dist/ with hashes and licences, and run the wheel.
	$(BIN)/python .ci/release.py
	BIPHASIC_WHEEL=dist $(BIN)/pytest -n 0 tests/e2e/test_wheel.py
	@ls dist/*

# Fine-tuning needs data and is run by hand: see benchmarks/README.md.
bench: $(INSTALLED)  ## Measure speed and memory against peers and limits: an hour.
	$(BIN)/python benchmarks/pretrain.py
	$(BIN)/python benchmarks/lean_loop.py
	$(BIN)/python benchmarks/cpu_kernels.py
	$(BIN)/python benchmarks/contrastive.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/scheduling.py
	$(BIN)/python benchmarks/simulation.py
	$(BIN)/python benchmarks/family_error.py
	$(BIN)/python benchmarks/where_time_goes.py
	$(BIN)/python benchmarks/pipeline.py
	$(BIN)/python benchmarks/corpus.py
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python benchmarks/report.py

# From newest allowed versions: build with the oldest supported Python, so that every pin has a
# release for it. Left out: the package itself, and what torch's own metadata pins per platform.
lock:  ## Renew requirements.lock (PYTHON should be 3.11).
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip install --quiet --upgrade pip setuptools
	build/lock/bin/python -m pip install --quiet . torch==2.13.0 hatchling editables \
		--group bench --group corpus --group dev --group docs
	{ echo "# Exact versions for 'make install'. Renew with 'make lock'."; \
	  build/lock/bin/python -m pip freeze --all --exclude pip --exclude biphasic \
	  | sed -E 's/\+[a-z0-9.]+$$//' | grep -Ev '^(cuda|nvidia|triton)'; } > build/requirements.lock
	mv build/requirements.lock requirements.lock
	rm -rf build/lock

clean:  ## Remove .venv, caches and built files; runs/ stays.
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
