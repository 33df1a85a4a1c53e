"""The wheel holds the package and its kernels, and works in a separate environment outside the checkout."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.slowness import scaled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (".py", ".cu", ".cuh", ".cpp", ".h", ".txt", ".html", ".css", ".js")
COMPILED = {f"mgpu_ngram/native/{name}.abi3.so" for name in ("_states", "_files")}


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=scaled(800), **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The path of a wheel built from a copy of the sources; the checkout gets no build folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("mgpu_ngram", "kernels", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    papers = source / "benchmarks" / "papers" / "glm"  # outputs stay in the checkout
    papers.mkdir(parents=True, exist_ok=True)
    for name in ("README.md", "T3.csv", "T3_x.png"):
        (papers / name).write_text("x")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation", "-w", folder / "dist")
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_the_wheel_holds_all_sources_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if ".dist-info/" not in name}
        assert b"extern" in file.read("mgpu_ngram/kernels/common/radix_sort.cu"), "a file, not a link"
    folders = [ROOT / "mgpu_ngram", ROOT / "mgpu_ngram" / "kernels", ROOT / "mgpu_ngram" / "benchmarks"]
    wanted = {
        path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*") if path.suffix in SOURCES
    }
    assert len(wanted) > 200 and packed == {*wanted, *COMPILED, "mgpu_ngram/py.typed"}


@pytest.mark.timeout(900)  # compiles the CPU kernels of every stage
def test_the_wheel_runs_the_quickstart(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    dependencies = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")  # not their editable installs
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    here = {"cwd": tmp_path, "env": environment}
    assert run(python, "-c", "import mgpu_ngram; print(mgpu_ngram.__file__)", **here).startswith(str(site))
    modules = "from mgpu_ngram.native import _files, states; print(_files.__file__, states().__file__)"
    assert {*run(python, "-c", modules, **here).split()} == {str(site / name) for name in COMPILED}
    (tmp_path / "runs").mkdir()
    lines = [f"of the people {i % 7} by the people {i % 11} for the {i % 5}\n" for i in range(600)]
    (tmp_path / "runs" / "python_docs.txt").write_text("".join(lines))
    (tmp_path / "runs" / "python_docs_heldout.txt").write_text("".join(lines[:9]))
    program = tmp_path / "env" / "bin" / "mgpu-ngram"
    discounts = "jobs.2.estimate.discount_fallback=[0.5, 1, 1.5]"  # so even text is read
    out = run(program, "run", ROOT / "configs" / "quickstart.yaml", "cluster.workers=0", discounts, **here)
    assert "'the people'" in out and "Perplexity including OOVs:" in out
    model = tmp_path / "runs" / "quickstart" / "estimate" / "model.safetensors"
    assert run(python, ROOT / "examples" / "generate.py", model, **here).startswith("a sentence: ")
    heldout = tmp_path / "runs" / "python_docs_heldout.txt"
    arpa = run(program.with_name("kenlm-lmplz"), "-o", "2", "--discount_fallback", "--text", heldout, **here)
    assert arpa.startswith("\\data\\\n")
