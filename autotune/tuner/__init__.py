"""The tuner: a search over configs on the workers of a Dask cluster, into a store."""
