"""Running tasks, here or on a Dask cluster. Knows nothing of n-grams; the only package that imports Dask."""
