# Each target makes .venv first if it is missing or older than what it was installed from.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Test processes. Each gets one torch thread: two processes with a thread pool each fight over the same cores.
# A file goes to one process: its fixtures, trained models and the like, are then made once.
# Bytecode is kept, whatever the shell says: without it every process rewrites the asserts of all test files, 15 s each time.
JOBS   ?= 2
ARGS   ?=
PYTEST  = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile
# Ray brings 500 MB, so it has an environment of its own; so have the oldest versions that pyproject.toml allows.
RAY    ?= .venv-ray
OLDEST ?= .venv-oldest

.PHONY: help install test test-all test-ray test-oldest lint format quickstart docs bench

help:
	@echo 'make test        the default tests (ARGS="-k name" narrows them)'
	@echo 'make test-all    the slow ones too'
	@echo 'make test-ray    two replicas of the service on Ray Serve, in $(RAY)'
	@echo 'make test-oldest the default tests with the oldest versions that are allowed, in $(OLDEST)'
	@echo 'make lint        ruff and mypy'
	@echo 'make format      let ruff rewrite what it can'
	@echo 'make quickstart  train and compare the normalisers on the built-in digits, page in runs/quickstart/report.html'
	@echo 'make docs        the documentation site, build/site/html/index.html'
	@echo 'make bench       measure the normalisers against LayerNorm, result in runs/bench'

install: $(VENV)/.installed

test: $(VENV)/.installed
	$(PYTEST) -m 'not slow' $(ARGS)

test-all: $(VENV)/.installed
	$(PYTEST) $(ARGS)

test-ray: $(VENV)/.installed
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet -c constraints.txt 'ray[serve]' httptools numpy onnxruntime pillow prometheus_client python-multipart pytest
	$(RAY)/bin/python -m pip install --quiet --no-deps -e .
	test -d $(RAY)/run-onnx || { $(BIN)/dynavit train --config digits_dvt --epochs 4 --out $(RAY)/run --overwrite --quiet && \
	  $(BIN)/dynavit calibrate $(RAY)/run --p 20 --quiet && $(BIN)/dynavit export $(RAY)/run --quiet; }
	DYNAVIT_RAY_BUNDLE=$(RAY)/run-onnx $(RAY)/bin/python -m pytest -q -s -o addopts= -W ignore tests/deploy/serve/ray_check.py

# Old libraries warn about the newer torch beside them: here that is no error.
test-oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[dev,detect,docs,examples,export,gpu,robust,serve]'
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' \
	  -W default::DeprecationWarning -W default::PendingDeprecationWarning -W default::FutureWarning $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quickstart: $(VENV)/.installed
	$(BIN)/dynavit compare --config quickstart --out runs/quickstart

docs: $(VENV)/.installed
	$(BIN)/python docsite/build.py

bench: $(VENV)/.installed
	$(BIN)/dynavit bench norms --repeats 40 --out runs/bench/norms.json

# The extras are those the tests use. An existing environment is kept and brought up to date.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,detect,docs,examples,export,gpu,robust,serve]'
	@touch $@
