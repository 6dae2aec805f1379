# Every target works alone in a fresh clone; the first run sets up what it needs.
#
#   make demo           train a small transformer (examples/gpt.py), under two minutes
#   make test           format, lint, types and tests; installs nothing heavy
#   make test-deep      the breadth that make test leaves out: more seeds, sizes and examples (an hour)
#   make test-oracles   compare with PyTorch, JAX and Perfetto (installs them, over a gigabyte)
#   make test-oracles-deep  the comparisons that make test-oracles leaves out
#   make docs           build the documentation as a site in build/site
#   make bench          measure import, tracing and call overhead
#   make clean          remove the environments and caches that these targets made

PYTHON ?= python3
VENV := .venv
ORACLES := .venv-oracles
DOCS := .venv-docs
PIP_FLAGS := --quiet --disable-pip-version-check
# By a path: otherwise a script that lies beside a clone called tessera imports the folder, which is no package.
EDITABLE := --config-settings editable_mode=compat -e

# Small matrices gain nothing from the threads of BLAS, and its idle threads spin: on a busy machine
# the demo ran 4 times slower with two of them.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# Tests start processes; where byte code is not kept, each compiles the whole package again (an import takes
# 1.35 s of the processor instead of 0.55).
BYTE_CODE := PYTHONDONTWRITEBYTECODE=
# A file runs in one process: what its tests share is made once, and they run in their order.  Files come in
# the order of tests/support/longest.py, not by their numbers of tests: at the end both processes are busy.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-deep test-oracles test-oracles-deep docs bench clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed
	@$(ONE_THREAD) $(VENV)/bin/python examples/gpt.py

test: $(VENV)/.installed-test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy --num-workers 2
	$(ONE_THREAD) $(BYTE_CODE) $(VENV)/bin/python -m pytest $(WORKERS) -m "not oracle and not gpu and not deep"

test-deep: $(VENV)/.installed-test
	$(ONE_THREAD) $(BYTE_CODE) $(VENV)/bin/python -m pytest $(WORKERS) -m "deep and not oracle and not gpu"
	$(ONE_THREAD) $(BYTE_CODE) $(VENV)/bin/python -m pytest $(WORKERS) -m "hypothesis and not deep and not oracle and not gpu" --hypothesis-profile=wide

test-oracles: $(ORACLES)/.installed
	@$(ORACLES)/bin/python -c "import torch, jax, perfetto"  # tests without them would be skipped
	@[ "$$(uname)" != Linux ] || $(ORACLES)/bin/python -c "import triton"
	$(ONE_THREAD) $(BYTE_CODE) $(ORACLES)/bin/python -m pytest $(WORKERS) -m "oracle and not deep"

test-oracles-deep: $(ORACLES)/.installed
	$(ONE_THREAD) $(BYTE_CODE) $(ORACLES)/bin/python -m pytest $(WORKERS) -m "oracle and deep"

docs: $(DOCS)/.installed
	@$(ONE_THREAD) NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "build/site/index.html"

bench: $(VENV)/.installed-test
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(VENV)/bin/python $$script; done

clean:
	rm -rf $(VENV) $(ORACLES) $(DOCS) build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# Environments.  A stamp is newer than pyproject.toml when what it names is installed.

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Tessera in $(VENV)"
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) $(EDITABLE) .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	@echo "Installing Tessera and its test tools in $(VENV)"
	@$(VENV)/bin/python -m pip install $(PIP_FLAGS) $(EDITABLE) '.[test]'
	@touch $@ $(VENV)/.installed

$(ORACLES)/.installed: pyproject.toml | $(ORACLES)/bin/python
	@echo "Installing Tessera, its test tools, PyTorch and JAX in $(ORACLES)"
	@$(ORACLES)/bin/python -m pip install $(PIP_FLAGS) $(EDITABLE) '.[test,oracles]'
	@touch $@

$(DOCS)/.installed: pyproject.toml | $(DOCS)/bin/python
	@echo "Installing Tessera and MkDocs in $(DOCS)"
	@$(DOCS)/bin/python -m pip install $(PIP_FLAGS) $(EDITABLE) '.[docs]'
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
