"""Measuring and searching: every trial is checked before it is timed, and every outcome is a row.

space.py        which configs are tried
verify.py       whether a config computes the product
measure.py      how long it takes, beside torch, in one process
card.py         the GPU's clock, temperature and power meanwhile, and who else uses it
sources.py      where a trial's numbers come from: a GPU, or the model and the interpreter
sweep.py        one trial after the other, into the store
store.py        SQLite in, CSV out
counters.py     what the hardware counts of a trial, by NVIDIA's profiler
once.py         the process that it profiles
suite.py        which products a bench measures; suites/ ships some
bench.py        tritonmm's choice beside torch, product by product, into CSV
"""
