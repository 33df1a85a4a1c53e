"""Ctrl-C from the first moment of a command."""

import subprocess
import sys

import pytest

INTERRUPT_ON_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from mgpu_ngram.entry import main
sys.exit(main())
"""


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["mgpu_ngram.cli", "argparse"])
def test_ctrl_c_during_imports_ends_with_130_and_one_line(module):
    done = run(INTERRUPT_ON_IMPORT.format(module=module))
    assert (done.returncode, done.stderr) == (130, "mgpu-ngram: interrupted\n")


def test_ctrl_c_outside_the_command_ends_with_130_and_one_line():
    script = (
        "import os, signal, sys\n"
        "from mgpu_ngram import cli, entry\n"
        "cli.main = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(entry.main())"
    )
    done = run(script)
    assert (done.returncode, done.stderr) == (130, "mgpu-ngram: interrupted\n")


def test_ctrl_c_stays_ignored_if_it_was(tmp_path):
    script = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from mgpu_ngram import cli, entry\n"
        "cli.main = lambda: signal.raise_signal(signal.SIGINT)\n"
        "print(entry.main())"
    )
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_the_exit_status_is_that_of_the_command():
    done = subprocess.run([sys.executable, "-m", "mgpu_ngram", "count"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("mgpu-ngram: ")


def test_the_garbage_collector_rests_at_the_start_and_works_afterwards():
    script = (
        "import gc, threading\n"
        "from mgpu_ngram import cli, entry\n"
        "entry.START_SECONDS = 0\n"
        "def main():\n"
        "    for thread in threading.enumerate():\n"
        "        thread is threading.main_thread() or thread.join()\n"
        "    print(gc.isenabled())\n"
        "cli.main = main\n"
        "entry.main()\n"
        "entry.START_SECONDS = 1000\n"
        "cli.main = lambda: print(gc.isenabled())\n"
        "entry.main()"
    )
    done = run(script)  # it ends although a timer waits
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nFalse\n", "")


def test_objects_that_remain_are_not_looked_through_at_the_end():
    script = (
        "import atexit, gc\n"
        "from mgpu_ngram import cli, entry\n"
        "cli.main = lambda: None\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "entry.main()\n"
        "print(gc.get_freeze_count() > 0)"
    )
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\nTrue\n", "")
