# make help lists the targets. Set PYTHON=python3.12 to build the environment with another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait now and then, so there is one worker more than cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := -m pytest -q --dist loadgroup
SOURCES := $(shell find src -name '*.py' -o -name 'py.typed') pyproject.toml setup.py
# bash for pipefail
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help setup install test test-pure test-installed test-long timings check format bench build \
	demo fuzz constraints clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/.dependencies: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	print(*p['dependencies'], *(r for n, e in p['optional-dependencies'].items() for r in e \
	if n != 'peers' and not r.startswith('tallymark')), sep='\n')" > $(VENV)/requirements.txt
	$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	print(*p['optional-dependencies']['peers'], sep='\n')" > $(VENV)/peers.txt
	$(BIN)/python -m pip install -qq -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install -qq -c constraints.txt -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install -qq -c constraints.txt -r $(VENV)/peers.txt || \
	echo "python-qpid-proton could not be built: the tests with it will be skipped"
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	rm -rf build/lib* build/bdist* src/tallymark.egg-info
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation --force-reinstall .
	$(BIN)/tallymark --version
	touch $@

setup: $(VENV)/.dependencies  ## make .venv with all dependencies
install: $(VENV)/.installed  ## build and install tallymark into .venv (compiled where possible)

demo: install  ## the play: publish, consume, crash, land through Spark, reconcile (INPUT=file)
	$(BIN)/tallymark demo $(if $(INPUT),--input "$(INPUT)")

test: setup  ## everything brief: checks, what can differ interpreted, all tests as installed
	$(MAKE) --no-print-directory -j3 check test-pure install
	$(MAKE) --no-print-directory test-installed

# It needs nothing compiled: it runs while the compiler does.
test-pure: $(VENV)/.dependencies
	PYTHONPATH=src $(BIN)/python $(PYTEST) $$(sed 's/#.*//' tests/interpreted.txt)

test-installed: install
	$(BIN)/python $(PYTEST) -n $(WORKERS) tests

# LONG=ci: what fits CI's frame. Two workers: a kill is more interesting on a machine with room.
test-long: install  ## what is too long for `make test`, and more of its models, kills and fuzzing
	TALLYMARK_LONG=$(or $(LONG),all) $(BIN)/python $(PYTEST) -n 2 \
	--timeout $(if $(filter ci,$(LONG)),1200,36000) tests

timings: install  ## where `make test` spends its CPU, file by file
	rm -f $(VENV)/timings.jsonl
	TALLYMARK_TIMINGS=$(VENV)/timings.jsonl $(BIN)/python $(PYTEST) -p tests.support.timings \
	-n $(WORKERS) tests
	$(BIN)/python -m tests.support.timings $(VENV)/timings.jsonl

check: $(VENV)/.dependencies  ## format, lint, types, the arrows between layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict --cache-dir $(VENV)/mypy  # not that of mypyc, which may run beside it
	PYTHONPATH=src $(BIN)/lint-imports

format: $(VENV)/.dependencies  ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## the benchmark scenarios against a broker started for them (ARGS=...)
	$(BIN)/python bench/run.py $(ARGS)

build: $(VENV)/.dependencies  ## wheel and sdist in dist/
	rm -rf build/lib* build/bdist*
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .

fuzz: install  ## wire fuzzing, a million cases and more (CASES=n)
	TALLYMARK_FUZZ_CASES=$(or $(CASES),1000000) $(BIN)/python $(PYTEST) --timeout 36000 \
	tests/wire -k fuzz

constraints:  ## renew constraints.txt from the newest versions that pass pip's resolver
	rm -rf $(VENV)/renew && $(PYTHON) -m venv $(VENV)/renew
	$(VENV)/renew/bin/python -m pip install -q -U setuptools wheel -r $(VENV)/requirements.txt \
	-r $(VENV)/peers.txt
	{ sed -n '/^#/p' constraints.txt; $(VENV)/renew/bin/python -m pip list --format=freeze \
	--exclude pip | sort -f; } > $(VENV)/constraints.txt && mv $(VENV)/constraints.txt constraints.txt
	rm -rf $(VENV)/renew

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
