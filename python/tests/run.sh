#!/bin/sh
# Tests the Python package with the first Python that has numpy and pytest: REMAT_TORCH_PYTHON, which may have torch, or the
# system's. Usage: run.sh BUILD LIBRARY
set -eu
build=$1
here=$(cd "${0%/*}" && pwd)
export REMAT_LIBRARY="$2" REMAT_BUILD="$build" PYTHONPATH="$here/.." PYTHONDONTWRITEBYTECODE=1
for python in ${REMAT_TORCH_PYTHON:-} python3 /usr/bin/python3; do
    "$python" -c 'import numpy, pytest' 2>/dev/null || continue
    if "$python" -c 'import pycparser' 2>/dev/null; then
        "$python" "$here/../generate_abi.py" "$REMAT_LIBRARY" --check
    else
        echo "the binding is not compared with the headers: $python has no pycparser"
    fi
    exec "$python" -m pytest -q -rs -p no:cacheprovider "$here"
done
echo "no Python here has numpy and pytest; install python3-numpy and python3-pytest, or name one in REMAT_TORCH_PYTHON"
exit 77
