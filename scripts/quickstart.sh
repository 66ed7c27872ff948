#!/usr/bin/env bash
# quickstart.sh: from a fresh clone to a trained network in one command. It installs missing packages, builds Remat, and
# trains the same 2-layer LSTM on the same text twice, with exact back-propagation through 4096 timesteps: once keeping
# every activation, once keeping 32 checkpoints and recomputing the rest. Then it prints the two runs side by side.
#
#   scripts/quickstart.sh [any flags of `remat train`, e.g. --steps=10 --hidden=512]
#
# It trains on the CPU. CUDA kernels take longer to compile than everything else, so they are only built if a GPU is
# found, and then only for that GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    cuda=(-DREMAT_CUDA=AUTO -DCMAKE_CUDA_ARCHITECTURES=native)
else
    cuda=(-DREMAT_CUDA=OFF)
fi
echo "building Remat in build/release (${cuda[*]})"
{ cmake --preset release "${cuda[@]}" && cmake --build build/release --target remat_program; } >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    echo "quickstart: the build failed; its last lines are above" >&2
    exit 1
}

remat=build/release/remat
out=build/quickstart
mkdir -p "$out"
run=("$remat" train --model=lstm --layers=2 --hidden=256 --task=lm --data=examples/data/shakespeare.txt --seq-len=4096
     --batch=4 --steps=60 --log-every=10 --optimizer=adam --lr=0.004 --clip-grad-norm=1 --seed=1)

train() { # train NAME FLAGS...
    local metrics=$out/$1.jsonl
    shift
    printf '\n$'
    printf ' %q' "${run[@]}" "$@"
    printf '\n'
    rm -f "$metrics"
    "${run[@]}" "$@" --metrics="$metrics"
}

train kept --checkpoint=none "$@"
train segments --checkpoint-segments=32 "$@"

printf '\n$ %s report %s %s\n' "$remat" "$out/kept.jsonl" "$out/segments.jsonl"
"$remat" report "$out/kept.jsonl" "$out/segments.jsonl"
