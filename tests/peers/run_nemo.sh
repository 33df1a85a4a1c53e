#!/usr/bin/env bash
# Run NeMo's tests of NGPU-LM on mgpu_ngram.torch.NGramLM, and NeMo's batched decoders with both models:
#   tests/peers/run_nemo.sh FOLDER
# FOLDER must not exist. It receives a virtual environment, the packages and the tests (2.3 GB with PyTorch for CPUs).
# All come from PyPI; building kenlm needs CMake and a C++ compiler. Python is $PYTHON, else python3.
#
# NeMo 3.0.0 runs with the tests of 2.7.3, whose wheel is the last that has them. Left out: three tests of the arrays and
# the file format of NeMo's class, and all tests that download speech or neural models. The n-gram model in the other
# tests is also a download; nemo_model.py makes one of as many tokens.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir "${1:?a folder that does not exist}"
folder=$(cd "$1" && pwd)

"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --editable "$root" "nemo_toolkit[asr]==3.0.0" kenlm pytest
"$python" -m pip download --quiet --no-deps --dest "$folder" nemo_toolkit==2.7.3
"$python" -m zipfile -e "$folder"/nemo_toolkit-2.7.3-*.whl "$folder/wheel"
mkdir "$folder/nemo" "$folder/data"
cp -r "$folder/wheel/tests" "$folder/nemo"
mkdir "$folder/nemo/tests/.data"
archive=$folder/nemo/tests/.data/test_data.tar.gz
"$python" "$here/nemo_model.py" "$archive"
tar -xzf "$archive" -C "$folder/data"
NEMO_ARPA=$(find "$folder/data" -name '*.arpa')
export NEMO_ARPA PYTHONPATH=$here

failed=0
suite() {  # options of pytest
  "$python" -m pytest -c /dev/null -p no:cacheprovider -q -rs -W ignore "$@" || failed=1
}
cd "$folder/nemo"
suite --rootdir . -p nemo_plugin --use_local_test_data --with_downloads tests/collections/asr/test_ngram_lm.py \
  tests/collections/asr/decoding/test_multi_task_decoding.py -k 'not save_load and not triton_vs_pytorch'
suite --noconftest "$here/nemo_decoders.py"
exit $failed
