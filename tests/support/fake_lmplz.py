"""A stand-in for KenLM's lmplz, for tests of benches that run it."""

import sys

# It is called with the same flags, and makes the model with this engine.
FAKE_LMPLZ = f"""#!{sys.executable}
import sys
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.estimate import run as job
given, rest = dict(zip(sys.argv[1:11:2], sys.argv[2:11:2])), sys.argv[11:]
assert rest[-1] == "--discount_fallback" and given["-S"] in ("50%", "1G", "6G"), sys.argv
prune = []
if rest[0] == "--prune":
    prune = [int(count) for count in rest[1:-1]]
config = job.EstimateConfig(
    [given["--text"]], order=int(given["-o"]), prune=prune, format="arpa", discount_fallback=[]
)
job.run(config, RunContext(LocalExecutor("cpu", 1), given["--arpa"], single_file=True, overwrite=True))
"""
