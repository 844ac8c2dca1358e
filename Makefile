# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: run test check bench clean

run: $(VENV)/.installed
	$(BIN)/firstlight run quick

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/lint-imports
	@command -v chromium chromium-browser google-chrome >/dev/null || sh tools/install-chromium.sh
	@# Hundreds of processes are started: where Python may not write bytecode, once for all of them.
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Every figure that README and docs quote, but for those of a GPU (benchmarks/*_gpu.py) and of the
# gate (benchmarks/gate.py, hours); takes about three quarters of an hour on a quiet machine.
bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/instrument.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/snapshots.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]'
	$(BIN)/python benchmarks/histfactory.py
	$(BIN)/python benchmarks/losses.py

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing JAX, PyTorch and the rest into $(VENV): this takes a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
