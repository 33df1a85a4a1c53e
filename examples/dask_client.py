"""Count n-grams from a Dask client script.

python examples/dask_client.py TEXT                         start two workers on this host
python examples/dask_client.py TEXT tcp://scheduler:8786    use a running cluster whose workers see TEXT
"""

from __future__ import annotations

import sys

from distributed import Client, LocalCluster

import mgpu_ngram as ng


def print_top_bigrams(client: Client, text: str) -> None:
    """Count on the client's workers and print the ten most frequent bigrams; rows are read from files on demand."""
    counts = ng.count(text, order=2, client=client)
    for ngram, count in counts.order(2).top(10):
        print(f"{count:8,}  {ngram}")


if __name__ == "__main__":  # the workers of a LocalCluster import this file
    if not sys.argv[1:]:
        sys.exit(__doc__)
    text, *scheduler = sys.argv[1:]
    if scheduler:
        with Client(scheduler[0]) as client:
            print_top_bigrams(client, text)
    else:
        here = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
        with LocalCluster(**here) as cluster, Client(cluster) as client:
            print_top_bigrams(client, text)
