"""Groups in tuned tables: what `tune` publishes is what `grouped_mm` looks up, for every total of its class."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tables import H200, forget

from tritonmm import selection
from tritonmm.autotune.bench import suite
from tritonmm.autotune.measuring.trial import Trial
from tritonmm.autotune.tuner.search import SEARCHES, Search
from tritonmm.cli import main
from tritonmm.cli import tune as command
from tritonmm.config import Config
from tritonmm.model.groups import size_class
from tritonmm.orders import Grouped, SwizzleMerge
from tritonmm.problem import Problem
from tritonmm.torch_ops.grouped_product import chosen

pytestmark = pytest.mark.usefixtures("user")

WINNER = Config("tile", 32, 64, 32, 2, 4, persistent=True, order=Grouped(SwizzleMerge(3), joined=True))
OF_K = replace(WINNER, order=Grouped(SwizzleMerge(3)))
"""Legal, and not what the estimates choose."""


def problems(*args):
    """What `tritonmm tune` tunes with these options."""
    context = main.commands["tune"].make_context("tune", [str(arg) for arg in args])
    with context:
        names = ("suite", "ms", "n", "k", "dtype", "layout", "groups", "ragged")
        return command._problems(*(context.params[name] for name in names))


def publish(asked, winner):
    """Publishes as `tritonmm tune` does at its end, `winner` as the fastest of each problem."""
    searches = [Search(problem, [winner], SEARCHES["model"]) for problem in asked]
    for search in searches:
        search.best = Trial(search.problem, winner, "gpu", "burst", "ok", "", time_us=10.0, torch_us=12.0)
        search.over = True
    assert command._publish(searches, SimpleNamespace(source="gpu", gpu=H200))
    forget()


def layer(tokens, groups=16, dtype=torch.bfloat16, n=256, k=128):
    """The problem of a call of `grouped_mm`: weights are stored as torch.nn.Linear stores them."""
    meta = torch.device("meta")
    a, weights = torch.empty(tokens, k, dtype=dtype, device=meta), torch.empty(groups, n, k, dtype=dtype, device=meta)
    return Problem.of(a, weights.mT, torch.empty(tokens, n, dtype=dtype, device=meta), ragged="m")


def gradient(tokens, groups=16):
    """The problem of the gradient of those weights."""
    meta = torch.device("meta")
    a, b = (torch.empty(tokens, size, dtype=torch.bfloat16, device=meta) for size in (256, 128))
    out = torch.empty(groups, 256, 128, dtype=torch.bfloat16, device=meta)
    return Problem.of(a.mT, b, out, ragged="k")


def test_a_tuned_config_is_found_for_every_number_of_tokens_of_its_class():
    publish(problems("--m", 5001, "--n", 256, "--k", 128, "--layout", "nt", "--groups", 16), WINNER)
    assert size_class(5001) == 5120
    for tokens in (4609, 4610, 5001, 5119, 5120):
        assert chosen(layer(tokens), H200) == WINNER, tokens
    assert chosen(layer(5001, dtype=torch.float16), H200) == WINNER


@pytest.mark.parametrize(
    "other", [layer(5121), layer(4608), layer(5001, groups=17), layer(5001, n=264), layer(5001, k=136)], ids=str
)
def test_other_layers_are_measured_themselves(other):
    publish(problems("--m", 5001, "--n", 256, "--k", 128, "--layout", "nt", "--groups", 16), WINNER)
    total = replace(other, m=size_class(other.m))
    assert not selection.best(total, H200).is_measured


def test_a_tuned_gradient_of_weights_is_found():
    args = ("--m", 256, "--n", 128, "--k", 5001, "--layout", "tn", "--groups", 16, "--ragged", "k")
    publish(problems(*args), OF_K)
    for tokens in (4609, 5001, 5120):
        assert chosen(gradient(tokens), H200) == OF_K, tokens
    assert chosen(gradient(5121), H200) != OF_K
    assert chosen(layer(5001), H200) != OF_K


def test_a_config_that_does_not_fit_the_call_is_not_used():
    """Tokens of the class have all alignments where they lie in the lines of an operand."""
    aligned = Problem.dense(256, 128, 5120, layout="nt", ragged="k", groups=16)
    publish([aligned], replace(OF_K, block_m=64))
    odd = Problem.dense(256, 128, 5001, layout="nt", ragged="k", groups=16)
    assert chosen(aligned, H200) == replace(OF_K, block_m=64)
    assert chosen(odd, H200).fits(odd, H200)


def test_the_suite_of_groups_is_tuned_once_for_each_config():
    asked = problems("--suite", "grouped-mm")
    entries = suite.load("grouped-mm")
    assert len(asked) == len(set(asked)) < len(entries)
    publish(asked, OF_K)
    for entry in entries:
        assert chosen(entry.problem(), H200) == OF_K, entry
