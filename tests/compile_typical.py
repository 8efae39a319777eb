"""What is compiled in every run of the tests, where the compile gate compiles more."""

from collections.abc import Iterable, Iterator


def typical(cases: Iterable[tuple]) -> Iterator[tuple]:
    """Of (gpu, problem, config): each kernel on each target and in each dtype, each layout, and each kind of order."""
    met = set()
    for gpu, problem, config in cases:
        kernel = config.kernel
        new = {(gpu.arch, kernel), (kernel, problem.dtype), problem.layout, type(config.order)} - met
        if new:
            yield gpu, problem, config
        met |= new
