"""Public functions and classes document each argument, and their examples run."""

import doctest
import inspect
import re

import pytest
import torch

import tritonmm
from tritonmm import public

CALLABLE = [name for name in public.__all__ if callable(getattr(tritonmm, name))]
SHARED = {"out", "config", "precision", "accumulation"}
"""Arguments that the docstrings of `dense` and `quantized` explain for all functions."""


def documented(name):
    found = getattr(tritonmm, name)
    yield name, found
    if inspect.isclass(found):
        methods = inspect.getmembers(found, lambda x: inspect.isfunction(x) or inspect.ismethod(x))
        yield from ((f"{name}.{each}", method) for each, method in methods if not each.startswith("_"))


@pytest.mark.parametrize("name", CALLABLE)
def test_examples_run(name, device):
    """With their GPU replaced by the CPU where there is none."""
    ran = 0
    for where, found in documented(name):
        text = inspect.getdoc(found).replace('device="cuda"', f'device="{device.type}"')
        names = {"torch": torch, "tritonmm": tritonmm}
        test = doctest.DocTestParser().get_doctest(text, names, where, None, None)
        said = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        ran += runner.run(test, out=said.append).attempted or len(test.examples)
        assert not runner.failures, "".join(said)
    assert ran, f"{name} has no example"


@pytest.mark.parametrize("name", CALLABLE)
def test_every_argument_is_documented(name):
    found = getattr(tritonmm, name)
    text = inspect.getdoc(found)
    shared = inspect.getmodule(found).__doc__
    for argument in inspect.signature(found).parameters:
        in_text = re.search(rf"\b{argument}\b", text)
        in_shared = argument in SHARED and re.search(rf"^{argument}: ", shared, re.M)
        as_another = re.search(r"as in `mm`|as `addmm`|as torch\.", text, re.I)
        assert in_text or in_shared or as_another, f"{name}: {argument} is not documented"
