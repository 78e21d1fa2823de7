"""The command `thinwire`, where one has been built."""

import os
import pathlib
import shutil
import subprocess

import pytest

BUILT = pathlib.Path(__file__).parents[2] / "target" / "debug" / "thinwire"
COMMAND = os.environ.get("THINWIRE_COMMAND") or (str(BUILT) if BUILT.exists() else shutil.which("thinwire"))


def need():
    """Skips the test where there is no command."""
    if COMMAND is None:
        pytest.skip("THINWIRE_COMMAND names no command `thinwire` (cargo build -p thinwire-cli)")


def thinwire(*arguments):
    """What it prints."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
