#!/usr/bin/env bash
# setup.sh: installs the Debian or Ubuntu packages that Remat is built from, if any is missing. quickstart.sh and
# test.sh source or call it. It prints what it does, asks nothing, and is quick if there is nothing to do.
#
#   scripts/setup.sh             packages for the build and its tests, and MPI and Gloo, if the system has them, for ranks
#   scripts/setup.sh --tests     also packages for the tests of the Python package: NumPy, pytest, pycparser
#   scripts/setup.sh --checks    also those, and packages for scripts/test.sh --all: clang and its OpenMP for the sanitizers,
#                                mmdebstrap for minimal systems
#   scripts/setup.sh --cluster   also Slurm and OpenSSH's server, for tests that start a cluster of their own. Their packages start
#                                services, so no other option installs them
#   scripts/setup.sh --aarch64   only packages for the preset aarch64, which cross-compiles for 64-bit Arm
#
# For Debian 12, Debian 13 and Ubuntu 24.04. On other systems install the same software under the names that it has
# there, and set REMAT_SKIP_SETUP=1.
set -euo pipefail

libraries=(libopenblas-dev libjemalloc-dev libjansson-dev zlib1g-dev check libjpeg-dev libpng-dev)
packages=(build-essential cmake ninja-build pkg-config "${libraries[@]}" gnuplot-nox python3 file)
# Skipped if the system does not have or cannot install the package; the parts of Remat that need it are then not built.
optional=(libopenmpi-dev openmpi-bin libgloo-dev)
python=(python3-numpy python3-pytest python3-pycparser) # tests of the Python package
case ${1:-} in
--tests) optional+=("${python[@]}") ;;
--checks) packages+=(clang libomp-dev) optional+=(mmdebstrap python3-venv "${python[@]}") ;;
--cluster) optional+=(slurm-wlm munge iproute2 openssh-server) ;;
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

# On some releases clang's sanitizers are in a separate package, whose name contains clang's version.
clang_runtime() {
    local version
    version=$(dpkg-query -W -f='${Depends}' clang 2>/dev/null | grep -o 'clang-[0-9]*' | head -n 1) || true
    [[ $version ]] || die "clang is installed, but not from a package named clang-VERSION; set REMAT_SKIP_SETUP=1"
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
        die "installing packages needs root or sudo. As root, run: apt-get install -y $*"
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
        die "apt-get update failed; check the network and the package sources"
    local log
    log=$(mktemp) || die "cannot create a temporary file for apt-get's output; check for free space in ${TMPDIR:-/tmp}"
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
    [[ ${#missing[@]} == 0 ]] || (install "${missing[@]}") || say "setup: continuing without ${missing[*]}"
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
