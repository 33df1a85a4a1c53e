#!/usr/bin/env bash
# Run the test suites of pyctcdecode, Transformers' Wav2Vec2ProcessorWithLM and flashlight-text on mgpu_ngram.kenlm, and
# compare the search over CTC's outputs with pyctcdecode's:
#   tests/peers/run.sh FOLDER
# FOLDER must not exist. It receives a virtual environment, the packages, the repositories with their tests, and the
# caches (0.9 GB). The packages come from PyPI, the tests from GitHub, or from the mirror that $GITHUB names.
# Python is $PYTHON, else python3. The last lines of each suite say how many tests passed.
#
# Left out, because they download feature extractors, speech or neural models: two tests of feature extractors, the
# slow test, and Transformers' tests of wav2vec2 and of pipelines with a language model. The decoders in the other tests
# are also from Hugging Face; hugging_face.py makes equal ones.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir "${1:?a folder that does not exist}"
folder=$(cd "$1" && pwd)
github=${GITHUB:-https://github.com}

"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --only-binary flashlight-text --editable "$root" pytest hypothesis parameterized \
  nbconvert ipykernel pygtrie datasets==4.4.1 huggingface_hub==0.36.0 transformers==4.57.1 flashlight-text==0.0.7
# pyctcdecode 0.5.0 declares numpy<2, and runs with numpy 2.
"$python" -m pip install --quiet --no-deps pyctcdecode==0.5.0

clone() {  # repository, tag, options of git clone
  git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$2" "${@:3}" "$github/$1" "$folder/${1#*/}"
}
clone kensho-technologies/pyctcdecode v0.5.0
clone flashlight/text v0.0.7
clone huggingface/transformers v4.57.1 --filter=blob:none --sparse
git -C "$folder/transformers" sparse-checkout set --no-cone '/tests/*.py' /tests/models/__init__.py \
  /tests/models/wav2vec2/ /tests/models/wav2vec2_with_lm/

mkdir "$folder/path" "$folder/home"
echo 'from mgpu_ngram.kenlm import *' >"$folder/path/kenlm.py"
decoder=$("$python" -c 'import flashlight.lib.text.decoder as decoder; print(decoder.__path__[0])')
cp "$root/examples/flashlight_kenlm.py" "$decoder/kenlm.py"
export PYTHONPATH=$folder/path HOME=$folder/home USE_KENLM=1
export HF_HUB_OFFLINE=1 HF_HOME=$HOME/.cache/huggingface HF_HUB_CACHE=$HOME/.cache/huggingface/hub
"$python" "$here/hugging_face.py" "$folder/pyctcdecode/pyctcdecode/tests/sample_data/bugs_bunny_kenlm.arpa"

failed=0
suite() {  # repository, options of pytest
  echo "== $1"
  cd "$folder/$1"
  "$python" -m pytest -c /dev/null --rootdir . -p no:cacheprovider -q -rs "${@:2}" || failed=1
}
suite pyctcdecode pyctcdecode/tests
suite transformers tests/models/wav2vec2_with_lm \
  -k 'not test_another_feature_extractor and not test_wrong_feature_extractor_raises_error'
suite text bindings/python/test
echo "== the search over CTC's outputs"
"$python" "$here/ctc.py" 0 400 || failed=1
exit $failed
