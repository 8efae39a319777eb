"""Measuring and tuning. Every config is checked before it is timed, and every outcome is recorded.

bench/      tritonmm compared with torch on suites of GEMMs (`tritonmm bench`)
doctor/     checks of this machine and a self-test (`tritonmm doctor`)
fitting/    fits of the models' constants to measurements (`tritonmm tune --quick`)
measuring/  one trial: operands, check, time, counters, environment, results files
studies/    experiments with committed results files; run each with `python -m tritonmm.autotune.studies.NAME`
tuner/      sweeps and searches over configs, into a store (`tritonmm sweep`, `tritonmm tune`)
suites/     lists of GEMMs to measure
results/    committed results files (in a checkout only)
"""
