"""Benchmarks: kernels and whole stages, beside measured ceilings and peers. `mgpu-ngram bench` runs them."""

RESULTS, PAPER_RESULTS = "benchmarks/results", "benchmarks/papers"
# The name of each bench, also of its CSV file, and its module, which is imported when it is needed.
BENCHES = {
    name: f"{__name__}.{module}"
    for name, module in {
        "count": "count.bench",
        "cluster": "cluster.bench",
        "score": "score.bench",
        "distribution": "distribution.bench",
        "estimate": "estimate.bench",
        "lda": "lda.bench",
        "decode": "decode.bench",
        "fusion": "fusion.bench",
        "filter": "filter",
        "scale": "scale",
        "startup": "startup",
        "tools": "tools",
    }.items()
}
# The name of each paper, also of its folder, and the module that has its `PAPER`.
PAPERS = {
    name: f"{__name__}.reproduce.{module}"
    for name, module in {
        "glm": "glm",
        "gilm": "gilm",
        "ngrams-cuda": "ngrams_cuda",
        "culda": "culda",
        "amun": "amun",
    }.items()
}
