# Each target does all its own set-up in .venv; Python 3.11 or later is all that is needed.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV = .venv
BIN = $(VENV)/bin
# Python compiles the modules that it imports, some 15%; pip would compile all.
INSTALL = install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
NATIVE = $(wildcard mgpu_ngram/native/*.cpp mgpu_ngram/native/*.h)
# Without build isolation, pip does not install setuptools anew for each build.
PIP = PYTHONWARNINGS=ignore $(BIN)/python -m pip $(INSTALL) --no-build-isolation

# The tests start hundreds of processes; without files of byte code, each takes 1 s to compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart inputs test test-slow test-all test-dask lint docs clients bench venv clean

# The text needs Python alone, so it is written while pip installs, and once.
quickstart: ## set up, then count real English text and make a language model of it
	@$(MAKE) --no-print-directory --jobs 2 inputs
	@$(BIN)/python examples/compile_kernels.py >/dev/null 2>&1 &
	$(BIN)/mgpu-ngram run configs/quickstart.yaml --overwrite
	$(BIN)/python examples/generate.py runs/quickstart/estimate/model.safetensors

inputs: runs/python_docs.txt $(VENV)/.base
	@:

runs/python_docs.txt: examples/python_docs.py | $(BIN)/python
	$(BIN)/python examples/python_docs.py $@

# Tests of clusters wait much of their time, so there is a process more than cores. Two slow files almost only wait.
processes = $(shell $(BIN)/python -c 'import os; print(min(4, (os.cpu_count() or 1) + $1))')

# $(call run_tests,MARK,MORE,RUNNER): run the tests of a mark that this machine can run, those of GPUs one at a time.
# RUNNER starts the others, in MORE processes than there are cores. Without a GPU the first line would only collect
# tests, for 10 s.
define run_tests
@if nvidia-smi >/dev/null 2>&1; then $(BIN)/python -m pytest -m "(gpu or multigpu) and ($1)"; \
  else echo "nvidia-smi finds no GPU: tests marked gpu and multigpu are left out"; fi
$(BIN)/python $3 -m pytest -m "not gpu and not multigpu and ($1)" --numprocesses $(call processes,$2) \
  --dist loadfile --no-loadscope-reorder
endef

test: $(VENV)/.test ## set up, then run the tests that a change may break: each stage, 3 to 4 minutes on 2 quiet cores
	$(call run_tests,not slow,1)

test-slow: $(VENV)/.test ## run the other tests, which are slow
	$(call run_tests,slow,2)

# The lines that are measured are those that need no GPU. To measure them takes 1.7 times the CPU time.
test-all: $(VENV)/.test ## run all tests that this machine can run, and print the share of lines that they run
	rm -rf build/coverage
	$(call run_tests,slow or not slow,2,-m coverage run)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered

# "dask>=A,<=B" in pyproject.toml -> A B
DASK_RELEASES = $(shell sed -n 's/.*"dask>=\(.*\),<=\(.*\)".*/\1 \2/p' pyproject.toml)
test-dask: $(VENV)/.test ## test executors on the oldest and the newest release of Dask that is accepted
	for release in $(DASK_RELEASES); do \
	  $(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target build/dask-$$release \
	    dask==$$release distributed==$$release && \
	  PYTHONPATH=$(CURDIR)/build/dask-$$release $(BIN)/python -m pytest --quiet tests/cluster/test_executors.py \
	    tests/cluster/test_faults.py tests/cluster/test_connect.py tests/jobs/count/test_division.py \
	    --numprocesses 2 --dist loadfile || exit 1; \
	done

lint: $(VENV)/.lint ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy mgpu_ngram

docs: $(VENV)/.docs ## check the links of all pages, and build the site in docs/_build; a warning is an error
	$(BIN)/python docs/check_links.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build

# No part of the tests: it downloads 0.5 GB. $GITHUB may name a mirror.
clients: | $(BIN)/python ## run programs that use KenLM on mgpu_ngram in its place, and write the table in docs/kenlm.md
	PYTHON=$(PYTHON) $(BIN)/python tests/peers/clients.py build/clients

bench: $(VENV)/.test ## measure the count stage on this machine; other benches: mgpu-ngram bench NAME
	$(BIN)/mgpu-ngram bench count

venv: $(VENV)/.all ## everything a developer needs

clean:
	rm -rf $(VENV) runs build dist docs/_build docs/reference *.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; use make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)
	@# ensurepip takes 3 s longer than another pip; not every Python has one, and before 22.3 it has no --python.
	$(PYTHON) -m pip --python $@ $(INSTALL) pip setuptools 2>/dev/null || \
	  { $@ -m ensurepip && $@ -m pip $(INSTALL) --upgrade pip setuptools; } || { rm -rf $(VENV); exit 1; }

# The compilation of C++ takes as long as all other packages: with --jobs, both run at once.
$(VENV)/.base: $(VENV)/.dependencies $(VENV)/.package
	@touch $@

$(VENV)/.dependencies: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], \
	  sep='\n')" >$@.txt
	$(PIP) --requirement $@.txt
	@touch $@

$(VENV)/.package: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(PIP) --no-deps --editable .
	@touch $@

# Each process of the tests would else compile these, all at once.
BYTE_CODE = cd $(VENV)/lib/python3*/site-packages && ../../../bin/python -m compileall -q -j 0 -x /tests/ dask distributed \
  hypothesis matplotlib numba numpy pandas polars scipy sklearn zarr

$(VENV)/.test: $(VENV)/.base
	$(PIP) --editable '.[test,bench]'
	$(BYTE_CODE)
	@touch $@

$(VENV)/.lint: $(VENV)/.base
	$(PIP) --editable '.[lint]'
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) --editable '.[docs]'
	@touch $@

# One run of pip builds the metadata once, not once for each of the above.
$(VENV)/.all: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(PIP) --editable '.[test,bench,lint,docs]'
	$(BYTE_CODE)
	@touch $(VENV)/.dependencies $(VENV)/.package $(VENV)/.base $(VENV)/.test $(VENV)/.lint $(VENV)/.docs $@
