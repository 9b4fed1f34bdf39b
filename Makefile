# `make help` lists the targets. Every target works from a fresh clone and installs what it needs first.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
INSTALL ?= $(VENV)/bin/python -m pip install
CONFIG ?= recipes/configs/demo.yaml
DATA ?= $(DAIR_DATA)
PYTEST_ARGS ?= --numprocesses 2 --dist loadfile

BIN := $(VENV)/bin
BENCH := results/benchmarks
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))

# After the installation no target needs a network. Run recipes that download a model from the Hub by hand, without make.
OFFLINE := HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1

.DEFAULT_GOAL := help
.PHONY: help install demo results bench test lint docs format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\n  Variables: PYTHON=%s VENV=%s EXTRAS=%s PYTEST_ARGS=%s\n' '$(PYTHON)' '$(VENV)' '$(EXTRAS)' '$(PYTEST_ARGS)'

install: $(STAMP) ## Create the virtual environment and install the library, once

# The stamp records the last installation, which is repeated only when the requirements change.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: ## Train and compare the methods on generated dialogues; writes outputs/demo
	@$(MAKE) --silent install EXTRAS=$(if $(wildcard $(STAMP)),$(EXTRAS),demo)
	$(OFFLINE) $(BIN)/accelerate launch --quiet recipes/multiwoz_simpletod.py --config "$(CONFIG)"

results: $(STAMP) ## Run the unfinished experiments of results/experiments.yaml (DATA=folder); write results/RESULTS.md
	$(OFFLINE) $(BIN)/python -m reproduction.results --data "$(DATA)"

# The benchmarks run one after the other; the docstring of each says how long it takes.
bench: $(STAMP) ## Run the benchmarks of results/PERFORMANCE.md on a CPU (DATA=folder, TRACKER=trained model); several hours
	for command in "pair_cost --data_dir '$(DATA)/multiwoz21'" \
	  "pair_cost --data_dir '$(DATA)/multiwoz21' --dialogs 20 --ratios step --rounds 21 --output $(BENCH)/pair_cost_step.json" \
	  "batching --data_dir '$(DATA)/multiwoz21'" \
	  "batching --data_dir '$(DATA)/multiwoz21' --source_tokens 256 --output $(BENCH)/batching_256.json" \
	  "generation --data_dir '$(DATA)/multiwoz21' $(if $(TRACKER),--model_dir '$(TRACKER)')" chunked_loss gradient_cache \
	  "prefix_trees --data_dir '$(DATA)/multiwoz21'" "prefix_tree_answers --data_dir '$(DATA)/multiwoz21'" \
	  prefix_tree_shapes processes long_run "image_step --mnist '$(DATA)/mnist'" augmenter_cost auto_lambda performance; do \
	  eval "set -- $$command"; script=$$1; shift; \
	  $(OFFLINE) $(BIN)/python benchmarks/$$script.py "$$@" || exit 1; \
	done

test: $(STAMP) ## Run the test suite (PYTEST_ARGS="-k hub" for a part)
	$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP) ## Check style and types: ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

docs: $(STAMP) ## Build the documentation site in docs/_build/html, without warnings; a minute
	OMP_NUM_THREADS=1 $(OFFLINE) $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d docs/_build/doctrees docs docs/_build/html

format: $(STAMP) ## Fix and format the code with ruff
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean: ## Remove the environment, caches and build files; keep outputs
	rm -rf .venv build dist *.egg-info docs/_build docs/jupyter_execute .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
