# Everything runs in a virtual environment that make creates and fills from the lock files;
# only make and Python 3.11 to 3.14 are needed. `make help` lists the targets.

VENV ?= .venv

# The interpreter that creates $(VENV): the first of these that is 3.11-3.14 and has the venv module.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
		2>/dev/null && { echo $$p; break; }; done)

# CUDA=1 makes `make install` and `make train` install jax's CUDA packages too, CUDA= leaves them out;
# by default they are installed where nvidia-smi lists a GPU.
CUDA ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo 1)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The locks are complete. Left to resolve dependencies, pip 23 takes the newest release for one with extras, and stops.
INSTALL_LOCK := $(PIP) install -qq --require-hashes --no-deps -r

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install installed train test test-all faults lint format lock clean docs

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: installed ## Make the environment, without training
	@echo "Installed; \`source $(VENV)/bin/activate\` puts cleanba on the path."

installed: $(VENV)/.installed $(if $(CUDA),$(VENV)/.installed-cuda)

train: installed ## Train PPO; options go in ARGS="..."
	$(BIN)/python cleanba/cleanba_ppo_fit.py $(ARGS)

# Two at a time; WORKERS= runs them in one process. A worker that dies ends the run: with another one in its place
# pytest-xdist waits for it without end.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest $(if $(WORKERS),--numprocesses $(WORKERS) --dist loadgroup --max-worker-restart 0)

# Most of what a small run costs is compiling. `make test-all` has the programs that users run.
test: $(VENV)/.installed-dev ## Run the tests, without the slow ones
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev ## Run all the tests
	$(PYTEST) $(ARGS)

faults: $(VENV)/.installed-dev ## Play the fault suite: sixty real runs, each harmed at a random moment; options go in ARGS="..."
	$(BIN)/python tests/faults/fault_suite.py $(ARGS)

lint: $(VENV)/.installed-dev ## Check style, formatting, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## Fix style where it can be fixed, and format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lock: ## Regenerate the lock files (needs poetry >= 2 with poetry-plugin-export)
	poetry lock
	sed -i 's,^description = .*://.*,description = "",' poetry.lock  # the locks name no address, not even in a blurb
	poetry export --without-urls -E plot -o requirements.lock
	poetry export --without-urls -E plot -E cuda -o requirements-cuda.lock
	poetry export --without-urls -E track -E hub -E video -E plot -E dev -E docs -o requirements-dev.lock

clean: ## Remove the virtual environment and the tools' caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache site

docs: $(VENV)/.installed-dev ## Build the documentation as a site, site/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . site

# The stamps: installed once, and again when the project file or a lock file changes.
$(VENV)/.installed: pyproject.toml requirements.lock | $(BIN)/python
	@echo "Installing the packages of requirements.lock into $(VENV) (one or two minutes) ..."
	@$(INSTALL_LOCK) requirements.lock
	@$(PIP) install -qq --no-deps -e .
	@touch $@

# requirements-dev.lock is requirements.lock and what the tests, the documentation and the other extras need.
$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	@echo "Installing the packages of requirements-dev.lock into $(VENV) (one or two minutes) ..."
	@$(INSTALL_LOCK) requirements-dev.lock
	@touch $@

# requirements-cuda.lock is requirements.lock and jax's CUDA packages.
$(VENV)/.installed-cuda: requirements-cuda.lock $(VENV)/.installed
	@echo "Installing the CUDA packages of requirements-cuda.lock into $(VENV) (over 3 GB to download) ..."
	@$(INSTALL_LOCK) requirements-cuda.lock
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 to 3.14 with the venv module was found." \
		"Install one (on Debian or Ubuntu: apt install python3 python3-venv)," \
		"or name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
		{ echo "error: $(PYTHON) is not a Python 3.11 to 3.14 with the venv module;" \
		"name another: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
