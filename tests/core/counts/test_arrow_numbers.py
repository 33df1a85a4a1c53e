"""Numbers go to Arrow arrays and back as pyarrow's own functions take them, without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from mgpu_ngram.core.counts.arrow_numbers import numbers_from_arrow, numbers_to_arrow


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_numbers_go_there_and_back(dtype):
    numbers = np.arange(11).astype(dtype)
    for some in (numbers, numbers[3:7], numbers[::2], numbers[:0]):
        array = numbers_to_arrow(some)
        array.validate(full=True)
        assert array.equals(pa.array(some))
        assert numbers_from_arrow(array).dtype == some.dtype
        np.testing.assert_array_equal(numbers_from_arrow(array), some)
        np.testing.assert_array_equal(numbers_from_arrow(array[1:]), some[1:])


@pytest.mark.parametrize("size", [0, 1, 8, 13])
def test_booleans_take_a_bit(size):
    flags = np.arange(size) % 3 == 0
    assert numbers_to_arrow(flags).equals(pa.array(flags))


def test_pandas_is_not_imported():
    script = (
        "import sys, numpy as np\n"
        "from mgpu_ngram.core.counts.arrow_numbers import numbers_from_arrow, numbers_to_arrow\n"
        "print(numbers_from_arrow(numbers_to_arrow(np.arange(3))), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[0 1 2] False\n"


@pytest.mark.slow
def test_counts_are_read_without_pandas(tmp_path):
    """Importing pandas takes longer than to adapt a model of a short text, or to print the top n-grams."""
    pytest.importorskip("pandas")
    (tmp_path / "text").write_text("of the people\nby the people\n" * 3)
    code = (
        "import sys; from mgpu_ngram.cli import main; status = main(sys.argv[1].split())\n"
        "sys.exit(status or ('pandas' in sys.modules) * 9)"
    )
    for command in (
        "count text -o counts --order 2 --sentence-markers --columns ids",
        "count text -o texts --order 2",
        "adapt counts text -o adapted --discount-fallback",
        "export texts --order 2 --top 1",
        "export counts --order 2",
        "estimate --from-counts counts -o model.safetensors --discount-fallback",
    ):
        run = [sys.executable, "-c", code, f"{command}{' --device cpu' if 'export' not in command else ''}"]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stderr}"
