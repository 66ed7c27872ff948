#!/usr/bin/env bash
# test.sh: installs what is missing, builds what is released, and runs the whole suite
#
#   scripts/test.sh          five to ten minutes on two cores. CUDA's kernels are compiled where a GPU answers, or by REMAT_CUDA=ON
#   scripts/test.sh --all    what continuous integration runs: before that, the suite under AddressSanitizer and UBSan, and what
#                            runs on several threads under ThreadSanitizer (clang); and CUDA's kernels wherever nvcc is
set -euo pipefail
cd "$(dirname "$0")/.."

all=
for argument in "$@"; do
    case $argument in
    --all) all=1 ;;
    *) echo "test.sh: $argument is not a flag; there is only --all" >&2 && exit 2 ;;
    esac
done

if [[ $all ]]; then
    scripts/setup.sh --checks
    cuda=AUTO
elif nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    scripts/setup.sh
    cuda=AUTO
else
    scripts/setup.sh
    cuda=OFF
fi
# Threads that wait for each other by sleeping: the tests are many small programs on whatever cores there are.
export OMP_WAIT_POLICY=passive
jobs=$(($(nproc) + 1)) # some tests only wait, for ranks that have died, say

# The build for ThreadSanitizer makes what its tests need. Other files its compiler, clang, only reads, for its warnings.
read_rest() {
    local command object made
    made=$'\n'$(ninja -C build/tsan -t inputs threads | grep -v '^ninja: ')$'\n'
    sed -n 's/^ *"command": "\(.*\)",$/\1/p' build/tsan/compile_commands.json | sed 's/\\\(.\)/\1/g' |
        while IFS= read -r command; do
            object=${command#* -o }
            [[ $made == *$'\n'${object%% *}$'\n'* ]] || printf '%s\0' "$command -fsyntax-only"
        done | (cd build/tsan && xargs -0 -r -n 1 -P "$jobs" sh -c)
}

build() { # build PRESET [flags for CMake]
    local log
    log=$(mktemp)
    echo "building build/$1"
    { cmake --preset "$@" && cmake --build --preset "$1" && { [[ $1 != tsan ]] || read_rest; }; } >"$log" 2>&1 || {
        tail -n 60 "$log" >&2
        rm -f "$log"
        echo "test.sh: building '$1' failed; its last lines are above" >&2
        exit 1
    }
    ! grep -E 'warning:' "$log" || { rm -f "$log"; echo "test.sh: building '$1' gave the warnings above" >&2; exit 1; }
    rm -f "$log"
}

if [[ $all ]]; then
    build sanitize
    ctest --preset sanitize -j "$jobs"
    build tsan
    ctest --preset tsan -j "$jobs"
fi
# For all kinds of GPUs: what quickstart.sh has set for this machine alone is forgotten. Last, so that its summary is too.
build release "-DREMAT_CUDA=${REMAT_CUDA:-$cuda}" -UCMAKE_CUDA_ARCHITECTURES
ctest --preset release -j "$jobs"
