"""Finds libremat.so, declares its functions, and turns a status into an Error."""

from __future__ import annotations

import ctypes as c
import glob
import importlib.util
import os
import pathlib
from typing import Any

from . import _abi
from .errors import Error

NAME = "libremat.so.0"


def _openblas() -> str | None:
    """PyPI's scipy-openblas32 if it is installed; None for the system's OpenBLAS; else the one that NumPy's wheel brings.

    It looks for files and opens none: a library that is loaded starts threads.
    """
    for package, pattern in (("scipy_openblas32", "lib"), ("numpy", "../numpy.libs")):
        if package == "numpy" and _system_has("libopenblas.so.0"):
            return None
        found = importlib.util.find_spec(package)
        for folder in (found.submodule_search_locations or []) if found else []:
            for path in sorted(pathlib.Path(folder, pattern).glob("libscipy_openblas*.so*")):
                return str(path.resolve())
    return None


def _system_has(name: str) -> bool:
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders += ["/usr/lib", "/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"]
    return any(glob.glob(os.path.join(folder, name)) for folder in folders if folder)


def _open() -> c.CDLL:
    """Opens the library: REMAT_LIBRARY if it is set, else lib/ beside this file, else the system's search path."""
    named = os.environ.get("REMAT_LIBRARY")
    beside = pathlib.Path(__file__).parent / "lib" / NAME
    path = named or (str(beside) if beside.exists() else NAME)
    try:
        return _open_with_openmp(path)
    except OSError as error:
        remedy = "install the system's package libgomp1" if "libgomp" in str(error) else "name the path of a libremat.so in REMAT_LIBRARY"
        what = f"REMAT_LIBRARY={named}" if named else NAME
        raise ImportError(f"{what} cannot be opened ({error}); {remedy}") from None


def _open_with_openmp(path: str) -> c.CDLL:
    """Where the system has no libgomp, PyTorch's serves. Its name is the same, so a process has one in either case."""
    try:
        return c.CDLL(path)
    except OSError as error:
        torch = importlib.util.find_spec("torch") if "libgomp" in str(error) else None
        for folder in (torch.submodule_search_locations or []) if torch else []:
            for libgomp in pathlib.Path(folder, "lib").glob("libgomp.so.1"):
                c.CDLL(str(libgomp))
                return c.CDLL(path)
        raise


def _declare(library: c.CDLL) -> Any:
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                f"{library._name} has no {name}: it is older than this package; install Remat again"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


if "REMAT_OPENBLAS_LIBRARY" not in os.environ and (_found := _openblas()):
    os.environ["REMAT_OPENBLAS_LIBRARY"] = _found
lib: Any = _declare(_open())


def check(status: int) -> None:
    """Raises the library's last error of this thread, unless the status is OK."""
    if status:
        smallest = lib.remat_smallest_budget() if status == _abi.Status.INFEASIBLE else None
        raise Error(_abi.Status(status), lib.remat_last_error().decode(), smallest)


def invalid(sentence: str) -> Error:
    return Error(_abi.Status.INVALID, sentence)


def text(address: int | None) -> str:
    """Takes a text of the library, which is freed."""
    if not address:
        raise Error(_abi.Status.MEMORY, "out of memory for a text")
    try:
        return c.string_at(address).decode()
    finally:
        lib.remat_text_free(address)


def fields(struct: c.Structure) -> dict[str, Any]:
    """The members of a struct that the library filled."""
    members = {name: getattr(struct, name) for name, *_ in struct._fields_ if name != "reserved"}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in members.items()}


def build() -> dict[str, Any]:
    """What the library is made of: version, compiler, instruction_set, gemm_library, devices, .. (remat_build_info)."""
    info = _abi.remat_build_info()
    check(lib.remat_build(c.byref(info)))
    return fields(info)
