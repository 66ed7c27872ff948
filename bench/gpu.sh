#!/usr/bin/env bash
# gpu.sh: compares Remat on a GPU with PyTorch on the same GPU. Builds missing programs and runs gpu.py, whose --help
# explains how it measures. Without a GPU or Python it prints why and exits with 77.
#
#   bench/gpu.sh [--build=build/gpu-8.6, or as the first card's compute capability is] [--quick] [flags of gpu.py]
#   bench/gpu.sh --networks [flags of networks.py]        ResNet-50, a GPT-2 and a U-Net instead of LSTMs
#
# PyTorch: the Python in REMAT_TORCH_PYTHON, or python3; without it Remat is measured alone.
set -euo pipefail
cd "$(dirname "$0")/.."

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -xm 1 '[0-9]*\.[0-9]*') || true
build=build/gpu${capability:+-$capability} device=cuda script=gpu.py rest=()
for argument in "$@"; do
    case $argument in
    --build=*) build=${argument#*=} ;;
    --device=*) device=${argument#*=} rest+=("$argument") ;;
    --networks) script=networks.py rest=(--device=cuda "${rest[@]}") ;;
    *) rest+=("$argument") ;;
    esac
done

if [[ $device == cuda ]] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [[ ! $(nvidia-smi -L 2>/dev/null) ]]; then
    echo "skipped: there is no NVIDIA GPU on this machine"
    exit 77
fi
python=${REMAT_TORCH_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
    echo "skipped: bench/gpu.py needs Python 3, but $python was not found"
    exit 77
fi
if [[ ! -x $build/remat ]]; then
    scripts/setup.sh
    log=$(mktemp)
    { cmake --preset release -B "$build" -DREMAT_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DREMAT_EXAMPLES=OFF \
        -DREMAT_BENCH=OFF && cmake --build "$build" --target remat_program; } >"$log" 2>&1 ||
        { tail -n 40 "$log" >&2 && echo "gpu.sh: building $build failed; its last lines are above" >&2 && exit 1; }
    rm -f "$log"
fi
exec "$python" "bench/$script" "--remat=$build/remat" "${rest[@]}"
