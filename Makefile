# make help           lists these
# make run            sets up and does the main job: notebook 01, headless, or NOTEBOOK=02_any_function and the like
# make cancel         stops a job: JOB=its name, and WHERE and STORE as it was run with
# make clean          removes the executed notebooks and logs in build/
# make test           sets up and passes the tests that need no cluster, less the long proofs
# make test-all       those and the long proofs: many seeds, 20 of 20, every engine
# make test-wheel     the wheel in fresh environments, with the oldest and the newest versions that it allows
# make faults         hundreds of trainings, killed or stopped anywhere: each ends as if nothing had happened; resumable
# make elastic        elastic trainings, resized, killed, stopped and moved, each as one undisturbed worker; TIMES, LIMITS=1; resumable
# make recovery       seconds to the first step, to the next one after a rank or a worker was killed, and memory; has limits
# make causes         injects every kind of fault and writes docs/causes.md: cause told against cause injected; WHERE=Cluster, TIMES=5
# make bench          trains by turns as recipes, a tuned Trainer, Fabric and train_func do, and prints the costs; QUICK=1
# make checkpoint-cost  what a checkpoint of a BERT-base costs its training, beside the save of transformers' Trainer
# make check          the quick checks: style, types, arrows, shell, and that the docs make a site: build/site/start.html
# make image          builds the worker and notebook image: IMAGE=registry/name:tag REQUIREMENTS=requirements.txt
# make test-cluster   passes the tests on the cluster that KUBECONFIG names: IMAGE=what it can pull
# make test-cluster-all  those and the long proofs
# make lock           resolves pyproject.toml anew into requirements.lock
SHELL := bash
.SHELLFLAGS := -Eeuo pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help run cancel clean known setup test test-all faults elastic recovery causes bench checkpoint-cost test-wheel check image test-cluster test-cluster-all lock

BIN := .venv/bin
# Three processes, which often wait, share the files of tests, in their order: the long ones come first. The time-out is only for what hangs.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 1800 --durations 25

# The variables on make's own command line: those that the shell has exported, such as SEED or STORE, are for other programs.
GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))

help:
	sed -n 's/^# make /make /p' $(firstword $(MAKEFILE_LIST))

run: known setup
	exec $(BIN)/python infra/run_notebook.py run $(GIVEN)

# With the environment that is there, if there is one: another one is refused while jobs train from it.
cancel: known $(if $(wildcard .venv/bin/python),,setup)
	exec $(BIN)/python infra/run_notebook.py cancel $(GIVEN)

clean:
	rm -f build/*.ipynb build/*.log

# Before the set-up: a misspelt parameter would otherwise train something else without a word.
known:
	for python in "$${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
		exec "$$python" infra/run_notebook.py check $(firstword $(filter run cancel,$(MAKECMDGOALS)) make) $(GIVEN)
	done
	echo "no Python 3.11 or newer found; install one, or name it: PYTHON=/path/to/python3.12" >&2
	exit 1

# Without the two hundred lines that name each package.
setup:
	infra/environment.sh 2> >(grep --line-buffered -v '^ [+~-] ' >&2)

# Where it is set, each process of the tests and each worker of their jobs would compile the package and the tests anew.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: setup
	$(PYTEST) -m "not slow" $(TESTS)

test-all: setup
	$(PYTEST) $(TESTS)

TIMES ?= 20

# All parts run, whatever one of them has found; the target fails at the end.
faults: setup
	trap 'echo "make faults took $$SECONDS s"' EXIT
	failed=()
	try() { $(BIN)/python -m "tests.faults.$$1" build/faults "$${@:2}" || failed+=("$$*"); }
	for training in with_trainer to_the_best with_own_loop; do
		try kills --training $$training --seeds 0:100
	done
	try kills --training saving_the_best --seeds 0:10
	try kills --training on_minio --seeds 0:16
	for training in with_trainer with_own_loop; do
		try kills --training $$training --how stop --seeds 0:50
	done
	try signals --seeds 0:16
	for part in "$${failed[@]}"; do echo "FAILED: $$part" >&2; done
	((! $${#failed[@]}))

# Its pauses are promised for a machine that does nothing else: LIMITS=1 there.
elastic: setup
	$(BIN)/python -m tests.faults.elastic build/elastic --times $(TIMES) $(if $(LIMITS),--limits)

recovery: setup
	$(BIN)/python -m tests.faults.recovery build/recovery --times $(TIMES)

causes: setup
	$(BIN)/python -m tests.faults.causes build/causes --on $(or $(WHERE),Local) --times $(TIMES) --table docs/causes.md

# On a machine that does nothing else. Hours; QUICK=1: within five minutes, two small comparisons.
bench: setup
	$(BIN)/python -m benchmarks.suite $(if $(QUICK),--quick)

checkpoint-cost: setup
	$(BIN)/python -m benchmarks.checkpoint_cost

test-wheel: setup
	$(BIN)/python -m pytest tests/wheel

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy infra/run_notebook.py
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x install.sh infra/*.sh infra/*/*.sh .ci/run
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet -f docs/mkdocs.yml
	$(BIN)/python -m pytest -q tests/contracts

image: known
	infra/image.sh

test-cluster: known setup
	infra/test_cluster.sh $(TESTS)

test-cluster-all: known setup
	infra/test_cluster.sh --all $(TESTS)

lock: setup
	$(BIN)/uv pip compile pyproject.toml --python-version 3.11 --universal --all-extras \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -q -o requirements.lock
