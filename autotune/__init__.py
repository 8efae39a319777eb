"""Measuring and searching: every trial is checked before it is timed, and every outcome is a row.

space.py        which configs are tried
search.py       in which order, with how much effort, and which of them go on
verify.py       whether a config computes the product
measure.py      how long it takes, beside torch, in one process
card.py         the GPU's clock, temperature and power meanwhile, and who else uses it
sources.py      where a trial's numbers come from: a GPU, or the model and the interpreter
sweep.py        one trial after the other, into the store
store.py        SQLite in, CSV and Parquet out
claims.py       who runs which trial of a store
engine.py       searches on the workers of a Dask cluster, into a store
cluster.py      that cluster: one of this machine, or the user's
worker.py       what its workers do
disposable.py   the child that does it for them, which may hang or die
precompile.py   compiles for a GPU without one, into Triton's cache
counters.py     what the hardware counts of a trial, by NVIDIA's profiler
once.py         the process that it profiles
suite.py        which products a bench measures; suites/ ships some
bench.py        tritonmm's choice beside torch, product by product, into CSV
random_suite.py products that nobody has tuned anything to
exhaustive.py   times all that `select` chooses from, on every product of a suite
contest.py      times configs of a problem against each other
regret.py       how much of an exhaustive search's best `select` reaches
heuristics.py   what NVIDIA's heuristics choose, beside what `select` does, by their times
nvidia_heuristics.py  those choices, and the configs that are nearest to them
fit_l2.py       fits the model of L2 to counters, and checks it on other shapes
pipeline.py     a study of stages, block_k and epilogues
transpose.py    a study of bank conflicts
host_time.py    what a call costs the host, beside torch's
errors.py       a study of how far products are from exact ones
study.py        the files of studies
environment.py  what a measurement depends on besides the problem and the config
checkup.py      whether this machine is fit: versions, GPUs, permissions, places, known traps
selftest.py     small products of every kernel family, in a process of their own
"""
