# Every target works alone in a fresh clone; the first run sets up what it needs.
#
#   make demo           train a small transformer (examples/gpt.py), under two minutes
#   make test           format, lint, types and tests; installs nothing heavy
#   make test-oracles   compare with PyTorch and JAX (installs both, over a gigabyte)
#   make bench          measure import, tracing and call overhead
#   make clean          remove the environments and caches that these targets made

PYTHON ?= python3
VENV := .venv
ORACLES := .venv-oracles
PIP_FLAGS := --quiet --disable-pip-version-check

# Small matrices gain nothing from the threads of BLAS, and its idle threads spin: on a busy machine
# the demo ran 4 times slower with two of them.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

.PHONY: demo test test-oracles bench clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed
	@$(ONE_THREAD) $(VENV)/bin/python examples/gpt.py

test: $(VENV)/.installed-test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(ONE_THREAD) $(VENV)/bin/python -m pytest -n 2 -m "not oracle and not gpu"

test-oracles: $(ORACLES)/.installed
	@$(ORACLES)/bin/python -c "import torch, jax"  # tests without them would be skipped
	$(ONE_THREAD) $(ORACLES)/bin/python -m pytest -m oracle

bench: $(VENV)/.installed-test
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(VENV)/bin/python $$script; done

clean:
	rm -rf $(VENV) $(ORACLES) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# Environments.  A stamp is newer than pyproject.toml when what it names is installed.

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Tessera in $(VENV)"
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Tessera and its test tools in $(VENV)"
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[test]'
	@touch $@ $(VENV)/.installed

$(ORACLES)/.installed: pyproject.toml | $(ORACLES)/bin/python
	@echo "Installing Tessera, its test tools, PyTorch and JAX in $(ORACLES)"
	@$(ORACLES)/bin/python -m pip install $(PIP_FLAGS) -e '.[test,oracles]'
	@touch $@

%/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Tessera needs Python 3.11 or newer, and there is no '$(PYTHON)' here." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Tessera needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name a newer one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $* || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu install python3-venv." >&2; \
	  rm -rf $*; exit 1; }
