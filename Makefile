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
FAST := tests/model tests/plots $(addprefix tests/, $(addsuffix .py, test_accumulation test_architecture test_bounds test_config test_docs \
	test_explanation test_gpu test_import test_licences test_orders test_problem test_scheduling test_select test_triangular \
	autotune/test_results autotune/measuring/test_results_file autotune/bench/test_suite \
	autotune/doctor/test_doctor autotune/measuring/test_counters autotune/measuring/test_environment \
	autotune/measuring/test_measure autotune/measuring/test_nvml autotune/measuring/test_space \
	autotune/studies/test_fit_l2 autotune/studies/test_heuristics autotune/studies/test_regret \
	autotune/tuner/test_leases autotune/tuner/test_search autotune/tuner/test_store autotune/tuner/test_worker \
	cli/test_cli families/test_ragged families/test_split_k families/hopper/test_sm_affinity launch/test_workspace \
	layouts/test_algebra layouts/test_banks layouts/test_show layouts/test_swizzle layouts/test_tv \
	tuned/test_files tuned/test_table))
# Percent of the host's lines that a test run reaches, at least: what test-fast alone does.
COVERED := 68

.PHONY: demo test test-fast gate gpu-test coverage lint format dist clean

demo: $(VENV)/installed
	$(BIN)/tritonmm demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu and not gate" $(T)

test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu" $(FAST)

gate: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m gate $(T)

gpu-test: $(VENV)/installed
	$(BIN)/python -m pytest -m gpu $(T)

coverage: $(VENV)/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu and not gate" --cov --cov-report=term:skip-covered $(if $(T),,--cov-fail-under=$(COVERED)) $(T)

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
