#!/usr/bin/env bash
# test.sh: everything that must hold, in one command: installs what is missing, builds, and runs the tests
#
#   1. under AddressSanitizer and UBSan (the whole suite),
#   2. under ThreadSanitizer (what runs on several threads; clang),
#   3. as released (the whole suite): last, so that the last lines are its summary.
#
#   scripts/test.sh [--quick]     --quick: only the last
set -euo pipefail
cd "$(dirname "$0")/.."

quick=
for argument in "$@"; do
    case $argument in
    --quick) quick=1 ;;
    *) echo "test.sh: $argument is not a flag; there is only --quick" >&2 && exit 2 ;;
    esac
done

if [[ $quick ]]; then scripts/setup.sh; else scripts/setup.sh --checks; fi
# Threads that wait for each other by sleeping: the tests are many small programs on whatever cores there are.
export OMP_WAIT_POLICY=passive
jobs=$(nproc)

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

if [[ ! $quick ]]; then
    build sanitize
    ctest --preset sanitize -j "$jobs"
    build tsan
    ctest --preset tsan -j "$jobs"
fi
# Where CUDA is found, all its kernels are compiled for all kinds of GPUs, and linked; REMAT_CUDA=ON insists on it. What
# quickstart.sh has set for this machine alone is forgotten.
build release "-DREMAT_CUDA=${REMAT_CUDA:-AUTO}" -UCMAKE_CUDA_ARCHITECTURES
ctest --preset release -j "$jobs"
