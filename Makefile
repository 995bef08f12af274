# make run            sets up and does the main job: notebook 01, headless
# make test           sets up and passes the tests that need no cluster
# make check          the quick checks: style, types, arrows, shell
# make image          builds the worker and notebook image: IMAGE=registry/name:tag REQUIREMENTS=requirements.txt
# make test-cluster   passes the tests on the cluster that KUBECONFIG names: IMAGE=what it can pull
# make lock           resolves pyproject.toml anew into requirements.lock
SHELL := bash
.SHELLFLAGS := -Eeuo pipefail -c
.ONESHELL:
.SILENT:
.PHONY: run known setup test check image test-cluster lock

BIN := .venv/bin
NOTEBOOK := 01_finetune
EXECUTED := build/$(NOTEBOOK).ipynb
LOG := build/$(NOTEBOOK).log

# Where this checkout keeps jobs, cache and, unless STORE says otherwise, the store.
export TRAIN_FUNC_HOME ?= $(CURDIR)/.train_func
ifdef STORE
export TRAIN_FUNC_STORE := $(STORE)
endif

# A file named from here is found by the notebook too, whose folder is notebooks/.
found = $(if $(wildcard $(1)),$(abspath $(1)),$(1))
parameter = $(if $(2),-p $(1) '$(2)')
PARAMETERS = $(call parameter,where,$(WHERE)) \
	$(call parameter,model,$(call found,$(MODEL))) $(call parameter,dataset,$(call found,$(DATASET))) \
	$(call parameter,text,$(TEXT)) $(call parameter,label,$(LABEL)) $(call parameter,labels,$(LABELS)) \
	$(call parameter,held_out,$(HELD_OUT)) $(call parameter,samples,$(SAMPLES)) \
	$(call parameter,workers,$(WORKERS)) $(call parameter,epochs,$(EPOCHS)) \
	$(call parameter,batch_size,$(BATCH_SIZE)) $(call parameter,learning_rate,$(LEARNING_RATE)) \
	$(call parameter,seed,$(SEED)) $(if $(FRESH),-p fresh True)

KNOWN := WHERE MODEL DATASET TEXT LABEL LABELS HELD_OUT SAMPLES WORKERS EPOCHS BATCH_SIZE LEARNING_RATE SEED STORE \
	FRESH PYTHON TESTS TRAIN_FUNC_HOME IMAGE REQUIREMENTS BUILDER KUBECONFIG \
	TRAIN_FUNC_TEST_MINIO_IMAGE
GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))

# What the cells print goes to the screen; what papermill says, to a file, whose end explains a failure.
run: known setup
	mkdir -p build
	echo "notebook $(NOTEBOOK) runs; training begins about 30 s after its first lines"
	if ! $(BIN)/papermill notebooks/$(NOTEBOOK).ipynb $(EXECUTED) --cwd notebooks --kernel python3 \
		--no-progress-bar --stdout-file /dev/stdout $(PARAMETERS) 2>$(LOG); then
		awk '/^(InvalidInput|SourceRefused|StorageFailed|JobFailed|JobNotFound): / { told = 1 } told' $(LOG) >&2
		grep -qE '^(InvalidInput|SourceRefused|StorageFailed|JobFailed|JobNotFound): ' $(LOG) \
			|| sed -n '/^Exception encountered/,$$p' $(LOG) >&2
		echo "the notebook as far as it came: $(EXECUTED)" >&2
		exit 1
	fi
	echo "the executed notebook: $(EXECUTED)"

# A misspelt parameter would otherwise train something else without a word.
known:
	$(foreach name,$(GIVEN),$(if $(filter $(name),$(KNOWN)),,$(error $(name) is no parameter; there are $(KNOWN))))
	$(if $(filter-out Local Cluster,$(WHERE)),$(error WHERE=$(WHERE): Local or Cluster is wanted))

setup:
	infra/environment.sh

test: setup
	$(BIN)/python -m pytest $(TESTS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck infra/environment.sh infra/image.sh infra/test_cluster.sh .ci/run
	$(BIN)/python -m pytest -q tests/contracts

image: known
	infra/image.sh

test-cluster: known setup
	infra/test_cluster.sh $(TESTS)

lock: setup
	$(BIN)/uv pip compile pyproject.toml --python-version 3.11 --universal --all-extras \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -q -o requirements.lock
