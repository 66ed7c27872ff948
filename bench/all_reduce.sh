#!/usr/bin/env bash
# all_reduce.sh: times an all-reduce with every engine on this machine (bench/all_reduce.c).
#
#   bench/all_reduce.sh [build folder, default build/release] [ranks, default 2] [rounds, default 31]
#
# mpirun, if available, starts the ranks, without binding them to cores: Open MPI may bind two ranks to one core.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build/release}/bench/bench_all_reduce ranks=${2:-2} rounds=${3:-31}
[[ -x $program ]] || { echo "all_reduce.sh: build $program first: ninja -C ${1:-build/release} bench_all_reduce" >&2; exit 2; }
place=$(mktemp -u "${TMPDIR:-/tmp}/remat-all-reduce.XXXXXX")

if command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    exec mpirun --bind-to none --oversubscribe -np "$ranks" "$program" "$place" "$rounds"
fi
started=()
trap 'kill "${started[@]}" 2>/dev/null || true' EXIT # if a rank fails, the others would wait for it
for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank WORLD_SIZE=$ranks "$program" "$place" "$rounds" &
    started+=($!)
done
for _ in "${started[@]}"; do wait -n; done
