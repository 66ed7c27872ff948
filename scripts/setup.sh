#!/usr/bin/env bash
# setup.sh: installs the Debian/Ubuntu packages that Remat is built from, if any is missing. Sourced or called by
# quickstart.sh and test.sh; says what it does, asks nothing, and is quick when there is nothing to do.
#
#   scripts/setup.sh             what the build and its tests need, and what the system has of MPI and Gloo, for the ranks
#   scripts/setup.sh --checks    also what scripts/test.sh --all needs: clang and its OpenMP for the sanitizers, mmdebstrap for
#                                minimal systems
#   scripts/setup.sh --cluster   also Slurm, for tests that bring up a cluster of their own. It comes with services for a
#                                machine that is part of one, so nothing installs it unasked
#   scripts/setup.sh --aarch64   only what the preset aarch64 needs, which cross-compiles for 64-bit Arm
#
# Made for Debian 12, Debian 13 and Ubuntu 24.04. Elsewhere install the same things under the names your system gives
# them, and set REMAT_SKIP_SETUP=1.
set -euo pipefail

libraries=(libopenblas-dev libjemalloc-dev libjansson-dev zlib1g-dev check libjpeg-dev libpng-dev)
packages=(build-essential cmake ninja-build pkg-config "${libraries[@]}" gnuplot-nox python3 file)
# Left out where the system has no such package, or does not let it be installed: so are then the parts of Remat that want it.
optional=(libopenmpi-dev openmpi-bin libgloo-dev)
case ${1:-} in
--checks) packages+=(clang libomp-dev) optional+=(mmdebstrap) ;;
--cluster) optional+=(slurm-wlm munge iproute2) ;;
--aarch64)
    packages=(crossbuild-essential-arm64 cmake ninja-build pkg-config "${libraries[@]/%/:arm64}")
    optional=(libopenmpi-dev:arm64 libgloo-dev:arm64)
    ;;
esac

say() { printf '%s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

installed() { [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]; }

# clang comes without its sanitizers on some releases; their package carries clang's version in its name.
clang_runtime() {
    local version
    version=$(dpkg-query -W -f='${Depends}' clang 2>/dev/null | grep -o 'clang-[0-9]*' | head -n 1) || true
    [[ $version ]] || die "clang is installed, but not from a package named clang-VERSION: set REMAT_SKIP_SETUP=1"
    echo "libclang-rt-${version#clang-}-dev"
}

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

install() {
    say "setup: installing with apt-get: $*"
    if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
        die "this needs root, and there is no sudo here. As root, run: apt-get install -y $*"
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
        die "apt-get update failed: is the network there, and are the package sources right?"
    local log
    log=$(mktemp) || die "no temporary file for what apt-get prints: is there room in ${TMPDIR:-/tmp}?"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "apt-get install failed; its last lines are above. By hand: apt-get install $*"
    }
    rm -f "$log"
}

ensure() {
    local missing=() package
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [[ ${#missing[@]} == 0 ]] || install "${missing[@]}"
}

ensure_known() {
    local missing=() package
    for package in "$@"; do
        if ! installed "$package" && apt-cache show "$package" >/dev/null 2>&1; then missing+=("$package"); fi
    done
    [[ ${#missing[@]} == 0 ]] || (install "${missing[@]}") || say "setup: going on without ${missing[*]}"
}

[[ -z ${REMAT_SKIP_SETUP:-} ]] || exit 0
command -v dpkg-query >/dev/null ||
    die "no dpkg here. Install a C compiler, CMake >= 3.25, Ninja, pkg-config, OpenBLAS, jemalloc, jansson, zlib, Check
       and gnuplot (it draws the pictures) with your system's tools, then run this again with REMAT_SKIP_SETUP=1"
if [[ ${1:-} == --aarch64 && $(dpkg --print-foreign-architectures) != *arm64* ]]; then
    as_root dpkg --add-architecture arm64
fi
ensure "${packages[@]}"
ensure_known "${optional[@]}"
if [[ ${1:-} == --checks ]]; then
    ensure "$(clang_runtime)"
fi
