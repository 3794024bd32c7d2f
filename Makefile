# serve: an OpenAI-compatible server on a real engine and a small real model, from nothing.
# test:  everything that the tests need, then all of them but those marked slow or peer.
# Both need Python >= 3.11 with venv and pip, make and a C compiler; nothing else.

PYTHON ?= python3
CACHE ?= .cache
ENGINE := $(CACHE)/engine
ENGINE_PYTHON := $(abspath $(ENGINE))/venv/bin/python

DEFAULT_MODEL := $(CACHE)/models/SmolLM2-135M-Instruct
MODEL ?= $(DEFAULT_MODEL)
HOST ?= 127.0.0.1
PORT ?= 8000
# For one engine on a small CPU machine: a start in seconds, and a steady pace.
ENGINE_ARGS ?= --enforce-eager --dtype bfloat16 --max-model-len 2048 --max-num-seqs 32 \
	--kv-cache-memory-bytes 536870912
# More options of `vllmfront serve`.
ARGS ?=

# One thread: more of them spin against the frontend. One process: it loads once, not three times.
ENGINE_ENV := OMP_NUM_THREADS=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_HOST_IP=127.0.0.1 \
	VLLM_NO_USAGE_STATS=1
TEST_ENV := VLLMFRONT_ENGINE_PYTHON=$(ENGINE_PYTHON) VLLMFRONT_ENGINE_033=$(abspath $(ENGINE))/next \
	VLLMFRONT_PEER=$(abspath $(ENGINE))/next/vllm-rs

ifeq ($(MODEL),$(DEFAULT_MODEL))
MODEL_ENV := HF_HUB_OFFLINE=1
MODEL_NAME := --served-model-name SmolLM2-135M-Instruct
endif

BIN := .venv/bin
SOURCES := vllmfront tests benchmarks tools examples
PYTEST := $(BIN)/python -m pytest
# Two processes; tests/scheduling.py says which tests with real engines stay together.
IN_TWO := -n 2
ASYNC_FILES = $(shell $(BIN)/python -c "import pathlib; print(*(file \
	for folder in '$(SOURCES)'.split() for file in pathlib.Path(folder).rglob('*.py') \
	if any(word in file.read_bytes() for word in (b'async', b'trio'))))")

.PHONY: serve install engine model test test-fast test-slow test-peer chaos lint bench clean

serve: engine $(if $(MODEL_NAME),model)
	@echo "serving $(MODEL) on http://$(HOST):$(PORT), ready when /health answers 200"
	@$(ENGINE_ENV) $(MODEL_ENV) exec $(BIN)/vllmfront serve $(MODEL) --python $(ENGINE_PYTHON) \
		--host $(HOST) --port $(PORT) $(MODEL_NAME) $(ARGS) $(ENGINE_ARGS)

engine: .venv/installed
	@$(BIN)/python tools/setup_engine.py $(ENGINE)

model: engine
	@$(BIN)/python tools/setup_model.py $(ENGINE) $(DEFAULT_MODEL)

install: .venv/installed

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit("vllmfront needs Python 3.11 or later: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "[project] environment in .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --upgrade "pip>=25.1"
	@touch $@

.venv/installed: pyproject.toml | .venv/created
	@echo "[project] installing vllmfront and what it needs: 100 MB"
	@$(BIN)/python -m pip install -qq --editable .
	@# As pip does for what is not editable: without bytecode a start takes a third longer.
	@$(BIN)/python -m compileall -qq vllmfront
	@touch $@

.venv/developing: pyproject.toml | .venv/installed
	@echo "[project] installing what linting and testing need"
	@$(BIN)/python -m pip install -qq --editable ".[grammar]" --group lint --group test
	@touch $@

test: .venv/developing
	@$(BIN)/python tools/setup_engine.py $(ENGINE) --next
	$(TEST_ENV) VLLMFRONT_REQUIRE_ENGINE=1 $(PYTEST) $(IN_TWO) -m "not slow and not peer"

test-fast: .venv/developing
	$(PYTEST) $(IN_TWO) -m "not engine and not slow and not peer"

test-slow: .venv/developing
	@$(BIN)/python tools/setup_engine.py $(ENGINE) --next
	$(TEST_ENV) VLLMFRONT_REQUIRE_ENGINE=1 $(PYTEST) -m "slow and not peer"

test-peer: .venv/developing
	@$(BIN)/python tools/setup_engine.py $(ENGINE) --next
	$(TEST_ENV) VLLMFRONT_REQUIRE_ENGINE=1 $(PYTEST) -m peer

# Soaks in random faults: requests for SECONDS or ROUNDS, then rollouts under so many CYCLES of new
# weights. SEED=N repeats one, KEEP=FOLDER keeps logs, plans and journals.
SECONDS ?= 180
CYCLES ?= 200
chaos: .venv/developing
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(KEEP),--keep $(KEEP))
	$(BIN)/python -m tests.rl_soak --cycles $(CYCLES) $(if $(SEED),--seed $(SEED)) \
		$(if $(KEEP),--keep $(KEEP)/rl)
	$(TEST_ENV) $(PYTEST) -m slow tests/network

lint: .venv/developing
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	@# Left out: 110 and 115, which ruff checks, too; 114, which wants every startable function named
	@# here; 124, since handlers of a protocol are async whether they wait or not; 127, which knows
	@# of a successor of httpx; and the 9xx, which want a checkpoint on every path.
	@# It takes minutes of one processor, hence two at a time, and nothing that cannot concern it.
	@printf '%s\n' $(ASYNC_FILES) | xargs -n 40 -P 2 $(BIN)/flake8-async --enable=ASYNC \
		--disable=ASYNC110,ASYNC114,ASYNC115,ASYNC124,ASYNC127,ASYNC9
	$(BIN)/mypy

bench: .venv/developing
	@for file in benchmarks/bench_*.py; do name=$${file#benchmarks/}; echo "== $$name"; \
		$(BIN)/python -m "benchmarks.$${name%.py}" || exit 1; done

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@echo "the engine and models are kept in $(CACHE); remove that folder to set them up anew"
