# fplab: one environment in .venv, and the commands that use it. `make` lists them.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
# Options for installing torch alone, such as --index-url for another build of it.
TORCH_FLAGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run figures gallery test lint browser lab pages bench bench-first prove withstand cpus nightly clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-11s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py
	@test -n "$(PYTHON)" || { echo "fplab needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Building $(VENV) with $$($(PYTHON) --version) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_FLAGS) torch
	$(PIP) -e '.[lab,test]'
	@touch $@

$(VENV)/.ready: $(VENV)/.installed $(wildcard fplab/words/*.po)
	@$(BIN)/python -m fplab.words >/dev/null
	@touch $@

install: $(VENV)/.ready ## build .venv only

run: $(VENV)/.ready ## every experiment at its quick size: the table of claims, and figures in runs/quick
	@$(BIN)/python -m fplab run

figures: $(VENV)/.ready ## every experiment at its full size, into runs/full
	@$(BIN)/python -m fplab figures --full

gallery: $(VENV)/.ready ## draw figures/ anew, the pictures that are kept; in the pinned environment
	@FPLAB_LANG=en $(BIN)/python -m fplab figures --out figures --pictures svg zh.svg
	@FPLAB_LANG=en $(BIN)/python -m fplab figures --full recipes fp8_training --out figures --pictures svg zh.svg
	@$(BIN)/python -m tests.screenshots

lint: $(VENV)/.ready ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## ruff, mypy and the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

browser: ## Chromium and a Chinese font for the browser tests, from Debian's or Ubuntu's packages
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium fonts-noto-cjk >/dev/null

lab: $(VENV)/.ready ## the course in JupyterLab, copied into fplab-course
	@$(BIN)/python -m fplab lab

pages: $(VENV)/.ready ## the course, a cookbook and a reference as one site that is read offline, into pages
	@$(BIN)/python -m fplab pages

bench: $(VENV)/.ready ## speed, as ratios measured in one run
	@$(BIN)/python -m benchmarks

bench-first: $(VENV)/.ready ## what first calls take where no kernel is compiled yet
	@$(BIN)/python -m benchmarks first

prove: $(VENV)/.ready ## the exhaustive proofs (16 minutes on two free cores, resumable)
	@$(BIN)/python -m tests.prove

withstand: $(VENV)/.ready ## kills, damaged files, races and misuse, from a seed (minutes)
	@$(BIN)/python -m tests.withstand

cpus: $(VENV)/.ready ## what a CPU's vector units could change, tested with three other CPUs imitated (minutes)
	@$(BIN)/python -m tests.cpus -n 2 --dist load

# The oldest and the newest torch of pyproject.toml, each in an environment of its own under .nightly; TORCH_FLAGS chooses
# the build. torch brings versions of its own of what else is CUDA's, so the constraints are taken without them.
TORCHES ?= 2.10.0 2.15.0
NIGHTLY := tests/test_nn_*.py tests/test_watch*.py tests/test_int8_layers.py tests/test_quantised_models.py \
	tests/test_fake_quantize.py tests/test_optimizer*.py tests/test_parallel*.py tests/test_distributed.py \
	tests/test_model_families.py tests/test_families_answered.py
.PHONY: $(TORCHES:%=nightly-%)
.nightly/%/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .nightly/$*
	grep -vE '^(torch|nvidia)' constraints.txt >.nightly/$*/constraints.txt
	.nightly/$*/bin/python -m pip install -q -c .nightly/$*/constraints.txt $(TORCH_FLAGS) torch==$* torchvision
	.nightly/$*/bin/python -m pip install -q -c .nightly/$*/constraints.txt -e '.[lab,test,families]'
	.nightly/$*/bin/python -m fplab.words >/dev/null
	@touch $@

$(TORCHES:%=nightly-%): nightly-%: .nightly/%/.ready
	.nightly/$*/bin/python -m pytest -p no:cacheprovider $(NIGHTLY)

nightly: $(TORCHES:%=nightly-%) ## the tests of torch's part on the oldest and the newest torch supported

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .nightly .prove .pytest_cache .mypy_cache .ruff_cache pages runs figures/*.png figures/*.dark.svg
