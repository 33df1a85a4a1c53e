#!/usr/bin/env bash
# Tests or measurements on a machine with GPUs and without network, from the repository root:
#   benchmarks/on_gpu.sh tests [pytest options]
#   benchmarks/on_gpu.sh BENCH [options of `mgpu-ngram bench BENCH`], such as count, score or paper glm --only T3
# Wheels in .wheels/, if any, are put beside the packages of the machine. Files go to $OUT, else to
# benchmarks/results, those of papers to benchmarks/papers. Stops after 520 seconds. Rows carry the commit that
# $MGPU_NGRAM_COMMIT names, else that of the checkout: set it for a copy without history, to
# `git describe --always --dirty --exclude='*' --abbrev=10`.
set -uo pipefail

what=${1:?tests, or a bench such as count}
shift
[ "$what" = paper ] && results=benchmarks/papers || results=benchmarks/results
results=${OUT:-$results}
mkdir -p "$results"

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
if compgen -G ".wheels/*.whl" >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$packages" .wheels/*.whl
fi
export PYTHONPATH="$packages:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

if [ "$what" = tests ]; then
  timeout 520 python3 -m pytest -m "gpu or multigpu" -q -p no:cacheprovider "$@" 2>&1 | tee "$results/tests.log"
else
  timeout 520 python3 -m mgpu_ngram bench "$what" "$@" --device gpu --results "$results" 2>&1 | tee "$results/$what.log"
fi
exit "${PIPESTATUS[0]}"
