"""Fixtures of the benches' tests."""

import csv
import importlib.util
from pathlib import Path

import pytest


@pytest.fixture
def stored_rows():
    """Return a function: the rows of the only CSV file of a folder, which must be of the same work as `found`."""

    def stored_rows(folder, found):
        [path] = folder.glob("*.csv")
        with open(path, newline="") as file:
            kept = list(csv.DictReader(file))
        assert {(row["kernel"], row["sizes"]) for row in kept} == {(row["kernel"], row["sizes"]) for row in found}
        return kept

    return stored_rows


@pytest.fixture(scope="session")
def compile_cuda():
    """Return a function: whether a text compiles for sm_90, and the log of the compiler."""
    path = Path(__file__).parents[1] / "kernels" / "test_compile.py"
    spec = importlib.util.spec_from_file_location("compile_sources", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda text: module.compile_cuda(text, "sm_90")


@pytest.fixture(scope="module")
def lmplz_on_path(tmp_path_factory):
    """Return a function: lmplz(text of a script) puts the script on the PATH in place of lmplz; None removes lmplz."""
    folder = tmp_path_factory.mktemp("bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))

        def put(script):
            (folder / "lmplz").unlink(missing_ok=True)
            if script is not None:
                (folder / "lmplz").write_text(script)
                (folder / "lmplz").chmod(0o755)

        yield put
