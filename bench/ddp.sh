#!/usr/bin/env bash
# ddp.sh: the cost of data-parallel training, and how much of it overlaps with the backward pass (bench/ddp.c).
#
#   bench/ddp.sh [build folder, default build/release] [ranks, default 2] [rounds, default 11] [KiB a bucket, default
#   1024] ENGINE=gloo LINK=1gbit bench/ddp.sh ...      two ranks in two network namespaces, joined by a link of that
#   rate, as if
#                                                they were two machines. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release} ranks=${2:-2} rounds=${3:-11} bucket=${4:-1024}
engine=${ENGINE:-local} link=${LINK:-}
program=$build/bench/bench_ddp
[[ -x $program ]] || { echo "ddp.sh: build $program first: ninja -C $build bench_ddp" >&2; exit 2; }
place=$(mktemp -u "${TMPDIR:-/tmp}/remat-ddp.XXXXXX")
export OMP_WAIT_POLICY=passive
started=()
end() { kill "${started[@]}" 2>/dev/null || true; } # if a rank fails, the others would wait for it
trap end EXIT

start() { # RANK [in front of the command]
    local rank=$1
    shift
    RANK=$rank WORLD_SIZE=$ranks "$@" "$program" "$place" "$engine" "$rounds" "$bucket" &
    started+=($!)
}

if [[ $engine == mpi ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    exec mpirun --bind-to none --oversubscribe -np "$ranks" "$program" "$place" mpi "$rounds" "$bucket"
elif [[ -z $link ]]; then
    for ((rank = 0; rank < ranks; rank++)); do start "$rank"; done
else
    [[ $ranks == 2 && $engine == gloo ]] || { echo "ddp.sh: LINK is for ENGINE=gloo and 2 ranks" >&2; exit 2; }
    a=rmb$$a b=rmb$$b
    clean() { end; ip netns del "$a" 2>/dev/null || true; ip netns del "$b" 2>/dev/null || true; }
    trap clean EXIT
    ip netns add "$a"
    ip netns add "$b"
    ip link add v0 netns "$a" type veth peer name v0 netns "$b"
    for ns in "$a" "$b"; do
        ip -n "$ns" addr add "10.78.0.$([[ $ns == "$a" ]] && echo 1 || echo 2)/24" dev v0
        ip -n "$ns" link set lo up
        ip -n "$ns" link set v0 up
        ip netns exec "$ns" tc qdisc add dev v0 root tbf rate "$link" burst 256kb latency 50ms
    done
    export GLOO_SOCKET_IFNAME=v0
    start 0 ip netns exec "$a"
    start 1 ip netns exec "$b"
fi
for _ in "${started[@]}"; do wait -n; done
