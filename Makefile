# Every target works from a clean clone with Python >= 3.11, make and pip alone.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where there is no NVIDIA GPU, PyTorch's CPU build: it saves gigabytes of CUDA packages. Where its
# index is out of reach, pip takes torch from the usual one, and asks only once: what torch needs comes later.
TORCH_CPU ?= torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c GPU)
# Tests to run, and any other arguments of pytest: make test T="tests/test_orders.py -k hilbert"
T ?=
# What neither compiles nor interprets many kernels.
FAST := $(addprefix tests/test_, $(addsuffix .py, architecture bounds card claims cli config cost counters docs doctor edges \
	environment estimates explanation files fit_l2 gpu heuristics import l2 layouts_algebra layouts_banks layouts_show \
	layouts_swizzle layouts_tv licences measure orders plots plots_axes plots_damaged plots_l2 problem regret search seats \
	select space split store suite tuned worker workspace))
# Percent of the host's lines that a test run reaches, at least: what test-fast alone does.
COVERED := 68

.PHONY: demo test test-fast gpu-test coverage lint format dist clean

demo: $(VENV)/installed
	$(BIN)/tritonmm demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu" $(T)

test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu" $(FAST)

gpu-test: $(VENV)/installed
	$(BIN)/python -m pytest -m gpu $(T)

coverage: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu" --cov --cov-report=term:skip-covered $(if $(T),,--cov-fail-under=$(COVERED)) $(T)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/installed
	.ci/dist $(BIN)/python

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(HAS_GPU),0)
	$(BIN)/python -m pip install -q --no-deps $(TORCH_CPU)
endif
	$(BIN)/python -m pip install -q -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo-out dist build .coverage
