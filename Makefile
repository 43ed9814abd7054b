# Every way to set up, run and check the project. `make help` lists them.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

# Test processes; 0 runs the tests in pytest's own process, as a debugger wants it.
WORKERS ?= auto
# Tests of one group run in one process: those on Spark share the one that they start.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadgroup
export PYTHON

# A stamp's name is the content of what was installed, and where: a changed pin or a moved folder has a new name, while a
# touched file or a fresh checkout of the same pins does not. Serving needs a tenth of what the tests need, so each has a
# stamp of its own.
stamp = .venv/.$(1)-$(shell { pwd; cat pyproject.toml $(2); } | cksum | tr ' ' '-')
SERVE_STAMP := $(call stamp,serve,requirements/build.txt requirements/runtime.txt)
SPARK_STAMP := $(call stamp,spark,requirements/build.txt requirements/runtime.txt requirements/spark.txt requirements/java.txt)
STAMP := $(call stamp,setup,requirements/*.txt)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-serve setup-spark serve test check slow bench bench-http bench-live bench-queue bench-spark bench-streams format clean

help: ## Lists these targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Makes .venv with everything the other targets need; does nothing when it is up to date.

setup-serve: $(SERVE_STAMP) ## Makes .venv with what the server and the command line need, and no more.

setup-spark: $(SPARK_STAMP) ## Adds Spark, and Java where there is none, for the pipeline.

# Build isolation is off so that the pinned setuptools builds the package, not the newest one of the day.
$(SERVE_STAMP):
	@requirements/install "what the server needs" -r requirements/build.txt -r requirements/runtime.txt
	@requirements/install "topics itself" --no-deps --no-build-isolation -e .
	@rm -f .venv/.serve-*
	@touch $@

$(SPARK_STAMP): $(SERVE_STAMP)
	@requirements/install "Spark" -r requirements/spark.txt
	@$(BIN)/python -m topics.spark.java >/dev/null 2>&1 || requirements/install "Java" -r requirements/java.txt
	@rm -f .venv/.spark-*
	@touch $@

$(STAMP): $(SPARK_STAMP)
	@requirements/install "what tests and checks need" -r requirements/dev.txt
	@requirements/install "an S3 server for the tests" --upgrade --target .venv/s3 -r requirements/s3.txt
	@rm -f .venv/.setup-*
	@touch $@

serve: setup-serve ## Runs the server with the settings of the environment.
	@$(BIN)/topics serve

test: setup ## Runs all tests but the slow ones.
	@$(PYTEST)

check: setup ## Checks format, lint, types, layers, and runs the unit and property tests.
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --strict --no-error-summary
	@$(BIN)/lint-imports --no-logo
	@$(PYTEST) -q $(wildcard tests/unit tests/property)

slow: setup ## Runs the slow tests only.
	@$(PYTEST) -m slow

bench: setup ## Measures the engine.
	@$(BIN)/python -m bench.engine

bench-spark: setup ## Measures the Spark side and writes the report into docs/benchmarks.md.
	@$(BIN)/python -m bench.spark --write

bench-http: setup ## Measures the server over HTTP beside its peers, and writes the report into docs/benchmarks.md.
	@$(BIN)/python -m bench.http --rounds 3 --write

bench-live: setup ## Measures delivery to watchers and through routers, and writes the report into docs/benchmarks.md.
	@$(BIN)/python -m bench.live --write

bench-streams: setup ## Measures a million streams and writes the report into docs/benchmarks.md.
	@$(BIN)/python -m bench.streams --write

bench-queue: setup ## Measures queues beside BullMQ and NATS, and writes the report into docs/benchmarks.md.
	@$(BIN)/python -m bench.queue --write

format: setup ## Formats the code and mends what the linter can mend.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

clean: ## Removes everything that was made, except data.
	rm -rf .venv .bench .conformance build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
