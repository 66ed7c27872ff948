"""Builds the wheel with scikit-build-core, after checking what the C build needs."""

import os
import pathlib
import shutil
import sys

from scikit_build_core.build import build_wheel as _build_wheel
from scikit_build_core.build import get_requires_for_build_wheel

__all__ = ["build_sdist", "build_wheel", "get_requires_for_build_wheel"]


def _check() -> None:
    missing = []
    if not any(map(shutil.which, [os.environ.get("CC", "cc").split()[0], "gcc", "clang"])):
        missing.append("a C compiler")
    if not shutil.which("pkg-config"):
        missing.append("pkg-config")
    if missing:
        sys.exit(f"Remat is built from C here, and this machine lacks {' and '.join(missing)}: run scripts/setup.sh first.")
    if not pathlib.Path("../CMakeLists.txt").exists():
        sys.exit("Remat's Python package is built inside a checkout: run pip install ./python there.")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    _check()
    return _build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    sys.exit("There is no source distribution of the Python package: build the wheel in a checkout.")
