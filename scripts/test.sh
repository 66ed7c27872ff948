#!/usr/bin/env bash
# test.sh: installs missing packages, builds the release, and runs the whole test suite
#
#   scripts/test.sh          five to ten minutes on two cores. CUDA kernels are compiled if a GPU is found, or with REMAT_CUDA=ON
#   scripts/test.sh --all    what continuous integration runs: the suite under AddressSanitizer and UBSan, and multi-threaded tests
#                            under ThreadSanitizer (clang). The library is built and installed without the program. The Python
#                            package's wheel is built and used, if PyPI answers. Then, on minimal systems (chroot.sh), README's
#                            commands: on Debian 13, with a build for 64-bit Arm, and on Debian 12, with CUDA kernels if nvcc is found
#                            and without the tests that depend least on the system, which have then run twice.
#                            Where no chroot is possible, the release suite runs on this system. A compiler warning is an error
set -euo pipefail
cd "$(dirname "$0")/.."

all=
for argument in "$@"; do
    case $argument in
    --all) all=1 ;;
    *) echo "test.sh: $argument is not a flag; there is only --all" >&2 && exit 2 ;;
    esac
done

if [[ $all ]]; then scripts/setup.sh --checks; else scripts/setup.sh --tests; fi
cuda=OFF gpu=
! nvidia-smi -L 2>/dev/null | grep -q '^GPU' || gpu=1
[[ ! $all && ! $gpu ]] || cuda=AUTO
# Threads wait for each other by sleeping: the tests are many small programs that share few cores.
export OMP_WAIT_POLICY=passive
jobs=$(($(nproc) + 1)) # some tests only wait, for example for ranks that have died

# The ThreadSanitizer build only builds what its tests need. For other files, its compiler, clang, only reports
# warnings.
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
    ! grep -E 'warning:' "$log" || [[ ! $all ]] || {
        rm -f "$log"
        echo "test.sh: building '$1' gave the warnings above" >&2
        exit 1
    }
    rm -f "$log"
}

# run_tests PRESET: up to three tests that start processes may fail beside others, and must then pass three times in a row
# by themselves. A machine whose processes stand still for seconds can spoil them; if the code is wrong, they fail again.
# ctest prints both results. Other tests have one try.
run_tests() {
    local failed=build/$1/Testing/Temporary/LastTestsFailed.log
    ctest --preset "$1" -j "$jobs" ${REMAT_TESTS_EXCEPT:+-E "$REMAT_TESTS_EXCEPT"} && return
    [[ $(wc -l <"$failed") -le 3 ]] && ! grep -vE ':(dist|train|cluster|bench)/' "$failed" || return 8
    echo "test.sh: what failed must pass three times, one test at a time:" $(cut -d : -f 2 "$failed")
    ctest --preset "$1" --rerun-failed --repeat until-fail:3
}

# bare SUITE COMMAND [FOLDER...]: in a fresh clone on a minimal Debian, with warnings as errors; prints a reason and
# returns false if this machine allows no chroot
bare() {
    local status=0
    echo "on a minimal $1: $2"
    scripts/chroot.sh "$1" "export CFLAGS=-Werror CXXFLAGS=-Werror LDFLAGS=-Wl,--fatal-warnings; $2" "${@:3}" || status=$?
    [[ $status == 0 || $status == 77 ]] || exit "$status"
    [[ $status == 0 ]]
}

if [[ $all ]]; then
    build sanitize
    run_tests sanitize
    build tsan
    run_tests tsan
    build library
    ctest --preset library
    installed=$(mktemp -d)
    cmake --install build/library --prefix "$installed" >"$installed/log" # although only a part has been built
    rm -rf "$installed"
    echo "the Python wheel:"
    python/tests/wheel.sh || [[ $? == 77 ]]
    toolkit=$(realpath -q "$(command -v nvcc || compgen -G '/usr/local/cuda*/bin/nvcc' | head -n 1)") || true
    toolkit=${toolkit%/bin/nvcc}
    [[ ! $toolkit ]] || cuda=ON # nvcc exists, so it has to work
    bare trixie 'scripts/quickstart.sh && scripts/test.sh &&
        scripts/setup.sh --aarch64 && cmake --preset aarch64 -DREMAT_TESTS=OFF -DREMAT_EXAMPLES=OFF &&
        cmake --build --preset aarch64 -- --quiet' || true
    # A third of the steps: Debian 13 has made all of them.
    commands="export REMAT_TESTS_EXCEPT='^(train|engine|memory|cuda|fuzz|bench)/'; scripts/quickstart.sh --steps=20 && scripts/test.sh"
    # The oldest GPUs and those with clusters: all code of the kernels, in half the time.
    bare bookworm "${toolkit:+export REMAT_CUDA=ON CUDA_HOME=$toolkit CUDAARCHS='75-real;90'; }$commands" ${toolkit:+"$toolkit"} && [[ ! $gpu ]] && exit
    echo "here, the release suite:"
fi
# Compiles for all GPU architectures, or CUDAARCHS, since quickstart.sh selects only this machine's. Last, so that its summary is
# last, too.
build release "-DREMAT_CUDA=${REMAT_CUDA:-$cuda}" -UCMAKE_CUDA_ARCHITECTURES
run_tests release
