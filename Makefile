# Verbs of the project. `make help` lists them. Each sets up what it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
PROMPT ?= Write a haiku about KV caches.
# Folder or page with torch's CPU wheels, for `make lock`.
TORCH_CPU ?= .wheels
MODEL ?= huggingfacetb/smollm2-135m-instruct

.DEFAULT_GOAL := help
.PHONY: help chat serve test test-kv quick check format lock clean

help:  ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

$(VENV)/pip:
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing; on Debian: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/runtime: $(VENV)/pip requirements/runtime.txt pyproject.toml
	@echo "installing the runtime's packages ..."
	@$(PIP) install --require-hashes -r requirements/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev: $(VENV)/runtime requirements/dev.txt
	@echo "installing the packages for tests and checks ..."
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

chat: $(VENV)/runtime  ## ask a real model on this machine: make chat PROMPT="..."
	@$(BIN)/prime inference chat --serve --stream --stats '$(MODEL)' "$(PROMPT)"

serve: $(VENV)/runtime  ## the endpoint on this machine: gateway and local engine
	@$(BIN)/prime inference serve

test: $(VENV)/dev  ## every test that needs no GPU
	$(BIN)/python -m pytest

.envs/kv/ready: requirements/kv-torch.txt
	@echo "setting up .envs/kv with torch and Triton ..."
	@$(PYTHON) -m venv .envs/kv
	@.envs/kv/bin/pip --disable-pip-version-check --quiet install --require-hashes -r requirements/kv-torch.txt
	@touch $@

test-kv: .envs/kv/ready  ## the tests of the NVFP4 kernels: torch, Triton's interpreter, nvcc
	OMP_NUM_THREADS=1 PYTHONPATH=src .envs/kv/bin/python -m pytest tests/kvcache

quick: $(VENV)/dev  ## the fast tests
	$(BIN)/python -m pytest -m "not slow"

check: $(VENV)/dev  ## lint, format, types, import rules, commands in the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/docs_commands.py check $(wildcard *.md docs/*.md docs/*/*.md)

format: $(VENV)/dev  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(VENV)/pip  ## write requirements/*.txt anew from pyproject.toml
	@$(PIP) install -r requirements/lock.in
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --group build pyproject.toml -o requirements/runtime.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --group build --group test --group check -c requirements/runtime.txt pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --extra kv -c requirements/runtime.txt pyproject.toml -o requirements/kv.txt
	$(BIN)/uv pip compile -q --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --find-links '$(TORCH_CPU)' --group build --group test --extra kv-torch -c requirements/dev.txt pyproject.toml -o requirements/kv-torch.txt

clean:  ## remove what the verbs above made
	rm -rf $(VENV) .envs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
