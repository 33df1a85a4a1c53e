#!/usr/bin/env bash
# Tests or measurements on a machine with GPUs and without network, from the repository root:
#   benchmarks/on_gpu.sh tests [pytest options]
#   benchmarks/on_gpu.sh count [options of `mgpu-ngram bench count`]
#   benchmarks/on_gpu.sh cluster [options of `mgpu-ngram bench cluster`]
#   benchmarks/on_gpu.sh score [options of `mgpu-ngram bench score`]
#   benchmarks/on_gpu.sh distribution [options of `mgpu-ngram bench distribution`]
#   benchmarks/on_gpu.sh estimate [options of `mgpu-ngram bench estimate`]
# Wheels in .wheels/, if any, are put beside what the machine has. Files go to $OUT, else to
# benchmarks/results. Stops after 520 seconds.
set -uo pipefail

what=${1:?tests, count, cluster, score, distribution or estimate}
shift
results=${OUT:-benchmarks/results}
mkdir -p "$results"

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
if compgen -G ".wheels/*.whl" >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$packages" .wheels/*.whl
fi
export PYTHONPATH="$packages:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

case $what in
  tests)
    timeout 520 python3 -m pytest -m "gpu or multigpu" -q -p no:cacheprovider "$@" 2>&1 | tee "$results/tests.log"
    ;;
  count | cluster | score | distribution | estimate)
    timeout 520 python3 -m mgpu_ngram bench "$what" --device gpu --results "$results" "$@" 2>&1 | tee "$results/$what.log"
    ;;
  *)
    echo "on_gpu.sh: $what is none of tests, count, cluster, score, distribution and estimate" >&2
    exit 2
    ;;
esac
exit "${PIPESTATUS[0]}"
