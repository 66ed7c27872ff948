"""The package is typed."""

import pathlib
import subprocess
import sys

import pytest


def test_mypy_strict_finds_no_errors():
    pytest.importorskip("mypy", reason="no mypy here: types are not checked")
    package = pathlib.Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "remat"], cwd=package, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
