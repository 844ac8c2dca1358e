# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A process per core; more than four would mostly wait for the longest file, and need 2 GB each.
WORKERS := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Hundreds of processes are started: each module is compiled once, by the first, also where the
# environment forbids it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test types collected test-fast test-matrix ops-test release-check docs bench fuzz-serve clean

run: $(VENV)/.installed
	$(BIN)/firstlight run quick

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@# Each keeps one core busy, and neither can use two.
	@$(MAKE) --no-print-directory -j 2 types collected
	@command -v chromium chromium-browser google-chrome >/dev/null || sh tools/install-chromium.sh
	@command -v promtool >/dev/null || sh tools/install-prometheus.sh
	$(BIN)/python -m pytest $(WORKERS)

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

# Imports all tests, so that those who run them find them, and all libraries, as bytecode.
collected: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --collect-only -qq >/dev/null

# The inner loop, about two minutes: everything but what is marked slow (CONTRIBUTING.md says what that is).
test-fast: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(WORKERS) -m 'not slow'

# The tests that use JAX, with the versions listed; a missing Python is an error. For other versions:
# make test-matrix MATRIX="python3.12:0.8.3".
MATRIX ?= python3.11:0.8.3 python3.13:0.12.0.1
test-matrix:
	@for pair in $(MATRIX); do sh tools/test-with-versions.sh "$${pair%%:*}" "$${pair##*:}" || exit 1; done

# Failures on purpose, with the real Prometheus and Alertmanager: fired, named, mended, resolved.
ops-test: $(VENV)/.installed-dev
	@command -v promtool >/dev/null || sh tools/install-prometheus.sh
	FIRSTLIGHT_OPS_TEST=1 $(BIN)/python -m pytest -v tests/ops

# What would be uploaded, in dist/, after it was installed and tried, its metadata and changelog checked.
release-check: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q tests/packaging
	rm -rf dist
	$(BIN)/python -m hatchling build
	@grep -q '^## .* (unreleased)' CHANGELOG.md && echo "Before tagging: date the section in CHANGELOG.md, which says (unreleased)." || true

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/docs/index.html"

# Every figure that README and docs quote, but for those of a GPU (benchmarks/*_gpu.py) and of the
# gate (benchmarks/gate.py, hours); takes about three quarters of an hour on a quiet machine.
bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/instrument.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/snapshots.py
	$(BIN)/python benchmarks/histfactory.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/first_results.py frozen
	$(BIN)/python benchmarks/first_results.py tiers
	$(BIN)/python benchmarks/first_results.py penalty
	$(BIN)/python benchmarks/first_results.py hits
	$(BIN)/python benchmarks/warmstart.py
	$(BIN)/python benchmarks/compile_cache.py
	$(BIN)/python benchmarks/serve.py # needs wrk

# Ten thousand requests that nobody should send to a running server; a few minutes.
fuzz-serve: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/fuzz_serve.py

INSTALL := sh tools/install.sh $(BIN)/python

# What Python reads at its start is copied when the package is installed.
$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard src/*.pth)
	@echo "Installing JAX, PyTorch and the rest into $(VENV): this takes a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[all]'
	touch $@

# Not after .installed: everything at once is resolved, and the package built, once instead of twice.
$(VENV)/.installed-dev: pyproject.toml constraints.txt $(wildcard src/*.pth)
	@echo "Installing JAX, PyTorch and the tools of the tests into $(VENV): this takes a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
