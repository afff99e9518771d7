# make help lists the targets. Set PYTHON=python3.12 to build the environment with another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait more than they compute, so there are four workers more than cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4)
PYTEST := -m pytest -q
SOURCES := $(shell find src -type f -not -path '*.egg-info/*' -not -name '*.pyc' -not -name '*.so') pyproject.toml setup.py MANIFEST.in
TESTS := $(shell find tests -name '*.py')
# bash for pipefail
SHELL := /bin/bash

# Thousands of files are imported again and again: compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup install test test-pure test-installed test-long test-busy test-timings timings check format \
	bench instructions siege simulate real soak churn build site demo demo-cluster fuzz figures pictures interop constraints audit clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# A step says what it does and how long it took; what it prints goes to build/steps/.
STEP = $(PYTHON) .ci/step.py
# Nothing is installed but files whose hashes are in constraints.txt. Packages that come as source are
# built with what was installed so, too: pip checks no hashes of what it fetches for a build. Bytecode is
# made by who imports a module first: most of them nobody does, and pip would take longer for that
# than for the rest.
PIP = $(BIN)/python -m pip --disable-pip-version-check install --require-hashes --no-build-isolation --no-compile

# Packages of the broker, Spark's and the demo's: all that `make demo` needs.
$(VENV)/.demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(STEP) "demo 1/2" environment "A Python environment in $(VENV)" \
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python .ci/requirements.py build > $(VENV)/build.txt
	@$(BIN)/python .ci/requirements.py demo > $(VENV)/demo.txt
	@$(STEP) "demo 2/2" packages "Packages of the broker, of Spark and of the demo's clients" \
	sh -c '$(PIP) -r $(VENV)/build.txt && $(PIP) -r $(VENV)/demo.txt'
	@touch $@

# And those that build, check and test it.
$(VENV)/.dependencies: $(VENV)/.demo
	@$(BIN)/python .ci/requirements.py dev > $(VENV)/requirements.txt
	@$(BIN)/python .ci/requirements.py peers > $(VENV)/peers.txt
	@$(STEP) "tests 1/2" tools "The compiler mypyc, linters, test tools and clients to test with" \
	$(PIP) -r $(VENV)/requirements.txt
	@$(STEP) "tests 2/2" peers "Clients to test with that are built from source" \
	$(PIP) -r $(VENV)/peers.txt || \
	echo "python-qpid-proton could not be built: the tests with it will be skipped"
	@touch $@

# What only the site and the long tests need.
$(VENV)/.site: $(VENV)/.dependencies
	@$(BIN)/python .ci/requirements.py site > $(VENV)/site.txt
	@$(STEP) "site" site "mkdocs" $(PIP) -r $(VENV)/site.txt
	@touch $@

$(VENV)/.long: $(VENV)/.dependencies
	@$(BIN)/python .ci/requirements.py long > $(VENV)/long.txt
	@$(STEP) "tests" long "Tools and clients of the long tests" $(PIP) -r $(VENV)/long.txt
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dependencies
	@$(BIN)/python .ci/requirements.py fuzz > $(VENV)/fuzz.txt
	@$(STEP) "fuzz" fuzz "The fuzzer" $(PIP) -r $(VENV)/fuzz.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	@rm -rf build/lib* build/bdist* src/tallymark.egg-info
	@$(STEP) "build 1/1" build "Translate the listed modules to C, compile and install tallymark" \
	$(BIN)/python -m pip -v install --no-deps --no-build-isolation --force-reinstall .
	$(BIN)/tallymark --version
	@touch $@

setup: $(VENV)/.dependencies  ## make .venv with all dependencies
install: $(VENV)/.installed  ## build and install tallymark into .venv (compiled where possible)

# As installed, where that is of these sources; otherwise from src at once, interpreted.
demo: $(VENV)/.demo  ## the play: publish, consume, crash, land through Spark, reconcile (INPUT=file)
	@if test -e $(VENV)/.installed && test -z "$$(find $(SOURCES) -newer $(VENV)/.installed)"; \
	then run="$(BIN)/tallymark"; else run="env PYTHONPATH=src $(BIN)/python -m tallymark"; \
	echo "tallymark runs interpreted, from src ('make install' compiles it)"; fi; \
	$(STEP) --shown play $$run demo $(if $(INPUT),--input "$(INPUT)")

# PostgreSQL is the machine's: apt-get install postgresql.
demo-cluster: setup  ## leader and PostgreSQL primary killed in mid traffic, and the account after it
	@PYTHONPATH=src $(STEP) --shown play $(BIN)/python -m tests.cluster.demo

# Rows are named by what was there: "warm" is pip's cache as it is, PIP_NO_CACHE_DIR=1 leaves it out.
CACHE = $(if $(PIP_NO_CACHE_DIR),cold,warm)
FRESH = $(STEP) --shown "$(CACHE): make $(1)" $(MAKE) -C build/fresh
CLONE = rm -rf build/fresh && git clone -q . build/fresh
# What the steps within took goes to the table as well, before others of the same name follow.
TAKE = sed "s/\t/\t$(CACHE): $(1)/" build/fresh/build/timings.tsv >> build/timings.tsv && \
	rm build/fresh/build/timings.tsv

timings:  ## how long set-up, build, demo and test take on a fresh clone (docs/contributing.md)
	mkdir -p build && $(CLONE)
	$(call FRESH,demo) demo
	$(call FRESH,install) install
	@$(call TAKE,)
	printf '\n\ndef changed() -> int:\n    return 1\n' >> build/fresh/src/tallymark/engine/queue.py
	$(call FRESH,install after a change) install
	@$(call TAKE,after a change: )
	$(call FRESH,test on a tree that is set up) test
	$(CLONE)
	$(call FRESH,test on a fresh clone) test
	@$(call TAKE,test on a fresh clone: )
	rm -rf build/fresh
	@$(PYTHON) .ci/step.py --table

# All at once: the tests wait more than they compute, and those that run interpreted need no compiler.
# LONG=rest: as installed without what `make test-long LONG=ci`, which CI runs next, has more of.
test: setup  ## everything brief: checks, what can differ interpreted, all tests as installed
	$(MAKE) --no-print-directory -j3 check test-pure test-installed

test-pure: $(VENV)/.dependencies
	@PYTHONPATH=src $(STEP) "tests" interpreted "Tests of what can differ when interpreted" \
	$(BIN)/python $(PYTEST) $$(sed 's/#.*//' tests/interpreted.txt)
	@tail -n 1 build/steps/interpreted.log

# Once, while the compiler works: each of the workers would compile all of the tests for itself.
$(VENV)/.collected: $(VENV)/.dependencies $(TESTS)
	@PYTHONPATH=src $(STEP) "tests" collected "Compile the tests to bytecode" \
	$(BIN)/python $(PYTEST) --collect-only tests
	@touch $@

test-installed: install $(VENV)/.collected
	TALLYMARK_LONG=$(LONG) $(BIN)/python $(PYTEST) -n $(WORKERS) tests

# LONG=ci: what fits CI's frame. Three workers: a kill is more interesting on a machine with room.
test-long: install $(VENV)/.long  ## what is too long for `make test`, and more of its models, kills and fuzzing
	TALLYMARK_LONG=$(or $(LONG),all) $(BIN)/python $(PYTEST) -n 3 \
	--timeout $(if $(filter ci,$(LONG)),1800,36000) tests

# What is skipped where something is missing says so on the page.
.PHONY: nightly
nightly: install $(VENV)/.long  ## test-long whole, and Spark on clusters; the result goes to docs/nightly.md
	$(BIN)/python tools/nightly.py $(ARGS)

test-busy: install  ## all tests on a machine without free ports, whose cores stand still for moments
	TALLYMARK_LONG=$(LONG) $(BIN)/python tools/busy_machine.py $(BIN)/python $(PYTEST) -n $(WORKERS) tests

test-timings: install  ## where `make test` spends its CPU, file by file
	rm -f $(VENV)/timings.jsonl
	TALLYMARK_TIMINGS=$(CURDIR)/$(VENV)/timings.jsonl $(BIN)/python $(PYTEST) -p tests.support.timings \
	-n $(WORKERS) tests
	$(BIN)/python -m tests.support.timings $(VENV)/timings.jsonl

# From src: worlds are played interpreted, whatever is installed.
simulate: setup  ## whole brokers in one process, a seed each: docs/simulation.md (SEEDS=n TIME=s)
	PYTHONPATH=src $(BIN)/python -m tallymark.simulation --seeds $(or $(SEEDS),1000) \
	$(if $(TIME),--time $(TIME))

real: install  ## the worlds' clients against a broker as a process, its disk, its clock: rounds for half an hour (MINUTES=n)
	$(BIN)/python -m tests.real --minutes $(or $(MINUTES),30)

soak: install  ## an hour of all protocols, kill -9 each minute, Spark landing (MINUTES=n)
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60)

churn: install  ## short connections, 100,000 of each protocol: memory stays (CONNECTIONS=n)
	$(BIN)/python -m tests.soak.churn --connections $(or $(CONNECTIONS),100000)

check: $(VENV)/.dependencies  ## format, lint, types, the arrows between layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict --cache-dir $(VENV)/mypy  # not that of mypyc, which may run beside it
	PYTHONPATH=src $(BIN)/lint-imports

format: $(VENV)/.dependencies  ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

interop: install  ## other clients' own test suites, fetched into build/interop (SUITES="kombu ...")
	$(BIN)/python -m tests.interop.suites $(SUITES)

bench: install  ## rows a to r beside other brokers: figures and a page (ARGS="--quick --rows a-f,l")
	$(BIN)/python bench/run.py $(ARGS)

instructions: install  ## instructions per message beside their budget, by callgrind (ARGS='--renew "why"')
	$(BIN)/python bench/instructions.py $(ARGS)

figures: $(VENV)/.dependencies  ## files, lines, largest class, import circles, files a publish crosses
	$(BIN)/python tools/figures.py

pictures: $(VENV)/.dependencies  ## the pictures of docs/page.md, by Debian's Chromium
	PYTHONPATH=src $(BIN)/python tools/pictures.py

siege: install  ## hostile behaviours beside another client: docs/siege.md is written (ARGS=--both)
	$(BIN)/python bench/siege.py --out docs/siege.md $(ARGS)

build: $(VENV)/.dependencies  ## sdist, compiled and pure wheel, tallymark-spark in dist/ (KIND="pure spark")
	@$(STEP) --shown dist $(BIN)/python .ci/wheels.py dist $(KIND)

site: $(VENV)/.site  ## the documentation as a site in build/site, with no dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Guided ones first: interpreted, since compiled modules show no coverage.
fuzz: install $(VENV)/.fuzz  ## fuzzing of all that reads what others wrote: SECONDS=n each, guided by coverage; a million cases of traffic and more (CASES=n)
	PYTHONPATH=src $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),120)
	TALLYMARK_FUZZ_CASES=$(or $(CASES),1000000) $(BIN)/python $(PYTEST) --timeout 36000 \
	tests/wire -k fuzz

constraints:  ## renew constraints.txt from the newest versions that go together (KEEP=1: add only)
	rm -rf $(VENV)-renew && $(PYTHON) -m venv $(VENV)-renew
	$(VENV)-renew/bin/python -m pip install -q -U uv
	$(VENV)-renew/bin/python .ci/lock.py $(VENV)-renew/bin/uv $(if $(KEEP),--keep)
	rm -rf $(VENV)-renew

audit:  ## whether weaknesses of the packages in constraints.txt are known ("Error 3": it cannot be told)
	@test -x $(VENV)-audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)-audit && \
	$(VENV)-audit/bin/python -m pip install -q pip-audit; }
	@$(VENV)-audit/bin/python .ci/audit.py $(VENV)-audit/bin/pip-audit

clean:  ## remove everything that make made
	rm -rf $(VENV) $(VENV)-renew $(VENV)-audit build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
