# On a fresh machine, `make run` and `make test` do everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One process per core, at most four: more would wait for the longest file, and need 2 GB each.
WORKERS := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Tests start hundreds of processes: let the first one write bytecode for all, even if the
# environment forbids it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test types collected test-fast test-matrix ops-test release-check docs bench fuzz-serve clean

run: $(VENV)/.installed
	$(BIN)/firstlight run quick

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@# Both use one core only, so they run side by side.
	@$(MAKE) --no-print-directory -j 2 types collected
	@command -v chromium chromium-browser google-chrome >/dev/null || sh tools/install-chromium.sh
	@command -v promtool >/dev/null || sh tools/install-prometheus.sh
	$(BIN)/python -m pytest $(WORKERS)

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

# Imports all tests, which leaves bytecode of them and of all libraries for the test processes.
collected: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --collect-only -qq >/dev/null

# The inner loop, about two minutes: everything that is not marked slow (see CONTRIBUTING.md).
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

# Causes failures, with the real Prometheus and Alertmanager: each is alerted, named, cured and resolved.
ops-test: $(VENV)/.installed-dev
	@command -v promtool >/dev/null || sh tools/install-prometheus.sh
	FIRSTLIGHT_OPS_TEST=1 $(BIN)/python -m pytest -v tests/ops

# Builds dist/ for an upload, after tests of the installed package, its metadata and changelog.
release-check: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q tests/packaging
	rm -rf dist
	$(BIN)/python -m hatchling build
	@grep -q '^## .* (unreleased)' CHANGELOG.md && echo "Before tagging: date the section in CHANGELOG.md, which says (unreleased)." || true

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/docs/index.html"

# The figures in README and docs, except those of a GPU (benchmarks/*_gpu.py) and of the gate
# (benchmarks/gate.py, hours); takes about three quarters of an hour on a quiet machine.
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

# Sends ten thousand wrong requests to a running server; a few minutes.
fuzz-serve: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/fuzz_serve.py

INSTALL := sh tools/install.sh $(BIN)/python

# Depends on src/*.pth, which Python reads at its start: installing copies them.
$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard src/*.pth)
	@echo "Installing JAX, PyTorch and the rest into $(VENV): this takes a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[all]'
	touch $@

# Does not depend on .installed: one installation resolves and builds everything once.
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
