"""Without a GPU the kernels run in Triton's interpreter, which has to be asked for before they are imported."""

import os

import hypothesis
import pytest
import torch
from scheduling import long_first

pytest.register_assert_rewrite("promises")

# A machine that does something else meanwhile is no failure.
hypothesis.settings.register_profile("tritonmm", deadline=None)
hypothesis.settings.load_profile("tritonmm")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Triton 3.9 warns unless the default is chosen, and warnings are errors here.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# What somebody has tuned on this machine is not what is tested.
os.environ["TRITONMM_TABLES"] = os.path.join(os.path.dirname(__file__), "no-tables")
if not HAS_GPU:
    from interpreting import speed_up

    speed_up()


@pytest.hookimpl(trylast=True)  # when it is known what is run
def pytest_collection_modifyitems(items):
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    items[:] = long_first(items, lambda item: item.get_closest_marker("long"), workers)
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run in this session: the GPU, or the CPU through the interpreter."""
    return torch.device("cuda", torch.cuda.current_device()) if HAS_GPU else torch.device("cpu")


@pytest.fixture(scope="session")
def override(device):
    """The override of the kernels of this session's device: a process has one, since they stay registered."""
    from torchs_groups import register

    from tritonmm.torch_ops import override

    if not HAS_GPU:
        register()
    return override._CUDA if HAS_GPU else override.Override("CPU")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The file of the user's table for an H200, which is missing; none ships."""
    from tritonmm import tuned

    monkeypatch.setenv("TRITONMM_TABLES", str(tmp_path / "tables"))
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "shipped")
    tuned._TABLES.clear()
    yield tmp_path / "tables" / "h200.json"
    tuned._TABLES.clear()
