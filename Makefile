# Both commands work from a clean clone with Python >= 3.11, make and pip alone.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where there is no NVIDIA GPU, PyTorch's CPU build: it saves gigabytes of CUDA packages. Where its
# index is out of reach, pip takes torch from the usual one.
TORCH_CPU ?= torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c GPU)

.PHONY: demo test gpu-test lint format clean

demo: $(VENV)/installed
	$(BIN)/tritonmm demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n auto -m "not gpu"

gpu-test: $(VENV)/installed
	$(BIN)/python -m pytest -m gpu

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(HAS_GPU),0)
	$(BIN)/python -m pip install -q $(TORCH_CPU)
endif
	$(BIN)/python -m pip install -q -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo-out
