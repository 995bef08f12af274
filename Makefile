# make help           lists these
# make run            sets up and does the main job: notebook 01, headless, or NOTEBOOK=02_any_function and the like
# make cancel         stops a job: JOB=its name, and WHERE and STORE as it was run with
# make clean          removes the executed notebooks and logs in build/
# make test           sets up and passes the tests that need no cluster, less the long proofs
# make test-all       those and the long proofs: many seeds, 20 of 20, every engine
# make test-wheel     the wheel in fresh environments, with the oldest and the newest versions that it allows
# make faults         hundreds of trainings, killed or stopped anywhere: each ends as if nothing had happened; resumable
# make recovery       seconds to the first step, to the next one after a rank or a worker was killed, and memory; has limits
# make checkpoint-cost  what a checkpoint of a BERT-base costs its training, beside the save of transformers' Trainer
# make check          the quick checks: style, types, arrows, shell
# make image          builds the worker and notebook image: IMAGE=registry/name:tag REQUIREMENTS=requirements.txt
# make test-cluster   passes the tests on the cluster that KUBECONFIG names: IMAGE=what it can pull
# make test-cluster-all  those and the long proofs
# make lock           resolves pyproject.toml anew into requirements.lock
SHELL := bash
.SHELLFLAGS := -Eeuo pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help run cancel clean known setup test test-all faults recovery checkpoint-cost test-wheel check image test-cluster test-cluster-all lock

BIN := .venv/bin
# Three processes, which often wait, share the files of tests, in their order: the long ones come first. The time-out is only for what hangs.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 1800 --durations 25

# What a run is of stands on make's command line: a shell may have exported SEED, HOST or STORE for another program.
ifneq ($(filter run cancel,$(MAKECMDGOALS)),)
$(foreach name,NOTEBOOK WHERE STORE JOB IMAGE,$(eval undefine $(name)))
endif

# Jobs, cache and the default store lie where every notebook and program of this person has them: a notebook opened
# beside make run finds its jobs. TRAIN_FUNC_HOME, or a STORE, names another place.
ifdef STORE
export TRAIN_FUNC_STORE := $(STORE)
endif

# What the workers of make run WHERE=Cluster are made of, and what make image builds.
ifdef IMAGE
export TRAIN_FUNC_IMAGE := $(IMAGE)
endif

KNOWN := NOTEBOOK WHERE STORE JOB PYTHON TESTS TIMES TRAIN_FUNC_HOME IMAGE REQUIREMENTS BUILDER KUBECONFIG \
	TRAIN_FUNC_TEST_MINIO_IMAGE TRAIN_FUNC_TEST_CHARTS TRAIN_FUNC_TESTBED
NOTEBOOK := $(or $(NOTEBOOK),01_finetune)
FOUND_PYTHON = $(firstword $(foreach name,$(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11),\
	$(shell command -v $(name))))
# Beside them, the parameters of the notebook, in capitals; make cancel takes what make run was given.
ifneq ($(filter run cancel,$(MAKECMDGOALS)),)
ifeq ($(FOUND_PYTHON),)
$(error no Python found: install 3.11 or newer, or name it, as in make run PYTHON=/path/to/python3.12)
endif
PARAMETERS := $(shell $(FOUND_PYTHON) infra/notebook_parameters.py '$(NOTEBOOK)' 2>&1)
ifneq ($(.SHELLSTATUS),0)
$(error $(PARAMETERS))
endif
$(foreach name,$(PARAMETERS),$(eval undefine $(name)))
endif
ALLOWED = $(KNOWN) $(filter-out $(KNOWN),$(PARAMETERS))
UNKNOWN = $(filter-out $(ALLOWED),$(GIVEN))
THERE_ARE = $(if $(PARAMETERS),$(NOTEBOOK) has $(PARAMETERS); make has,There are) $(KNOWN)
# The known parameter that a misspelt one is nearest to, as a question; nothing where none is near.
NEAREST = $(shell $(FOUND_PYTHON) -c 'import difflib, sys; near = difflib.get_close_matches(sys.argv[1].upper(), \
	sys.argv[2:], 1); print(f": did you mean {near[0]}?" if near else ".")' '$(1)' $(ALLOWED) 2>/dev/null)
GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))

help:
	sed -n 's/^# make /make /p' $(firstword $(MAKEFILE_LIST))

run: known setup
	infra/notebook.sh "$(NOTEBOOK)"

cancel: known setup
	$(BIN)/python -m train_func cancel --on "$(or $(WHERE),Local)" -- "$$JOB"

clean:
	rm -f build/*.ipynb build/*.log

# A misspelt parameter would otherwise train something else without a word.
known:
	$(if $(UNKNOWN),$(error $(foreach name,$(UNKNOWN),$(name) is no parameter$(call NEAREST,$(name))) $(THERE_ARE)))
	$(if $(filter cancel,$(MAKECMDGOALS)),$(if $(JOB),,$(error JOB is missing: make cancel JOB=its-name; the names are \
		listed by $(BIN)/python -m train_func runs)))
	$(if $(filter-out Local Cluster,$(WHERE)),$(error WHERE=$(WHERE): Local or Cluster is expected))

# Without the two hundred lines that name each package.
setup:
	infra/environment.sh 2> >(grep --line-buffered -v '^ [+~-] ' >&2)

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

recovery: setup
	$(BIN)/python -m tests.faults.recovery build/recovery --times $(TIMES)

checkpoint-cost: setup
	$(BIN)/python -m benchmarks.checkpoint_cost

test-wheel: setup
	$(BIN)/python -m pytest tests/wheel

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x install.sh infra/*.sh infra/*/*.sh .ci/run
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
