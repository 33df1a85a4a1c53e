"""Run tasks, in this process or on a Dask cluster. The package knows no n-grams; no other package imports Dask."""
