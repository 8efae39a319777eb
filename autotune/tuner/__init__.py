"""The tuner: sweeps and searches over configs, the latter on the workers of a Dask cluster, into a store."""
