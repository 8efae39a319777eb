"""The fit of the time model estimates configs as `select` does."""

import math

import numpy as np
import pytest

from tritonmm import families
from tritonmm import gpu as gpus
from tritonmm.autotune.fitting import time_fit
from tritonmm.model import constants
from tritonmm.orders import SwizzleMerge
from tritonmm.problem import Problem


def test_estimates_are_those_of_the_family():
    gpu = gpus.spec("h200")
    problem = Problem.dense(2160, 1408, 3904)
    family = families.family("hopper")
    configs = [
        config.ordered(order)
        for config in list(family.candidates(problem, gpu))[:12]
        for order in (SwizzleMerge(1), SwizzleMerge(4))
    ]
    none = np.zeros(len(configs), dtype=int)
    points = time_fit.Points(
        [problem] * len(configs), configs, np.ones(len(configs)), none, none > 0, np.arange(len(configs)) > 0
    )
    found = time_fit.estimates(points, constants.of(gpu), gpu)
    assert found[0] == 0  # not free
    assert found[1:] == pytest.approx([math.log(family.estimate(x, problem, gpu).us) for x in configs[1:]])
