#!/bin/sh
# slurm.sh COMMAND [ARGUMENT...]: runs a command under its own Slurm: real slurmctld, slurmd and munged, two virtual nodes node1 and
# node2 with two processors each, on this machine's loopback, as root. Everything is shut down afterwards. The exit status is the
# command's; 77, with a reason, if Slurm cannot run here. SLURM_CONF is set for the command.
#
# Needs: apt-get install --no-install-recommends slurm-wlm munge
set -u
skip() { echo "skipped: $*" >&2; exit 77; }
[ $# -gt 0 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "Slurm's daemons need root"
PATH=$PATH:/usr/sbin:/sbin
for program in slurmctld slurmd munged srun sbatch; do
    command -v $program >/dev/null || skip "there is no $program (apt-get install --no-install-recommends slurm-wlm munge)"
done

# Inside this mount namespace node1 and node2 are names of this machine.
if [ -z "${REMAT_PRIVATE_HOSTS:-}" ]; then
    export REMAT_PRIVATE_HOSTS=1
    unshare -m true 2>/dev/null || skip "this machine allows no mount namespaces (unshare -m)"
    exec unshare -m sh "$0" "$@"
fi

dir=$(mktemp -d) && host=$(hostname -s) || exit 1
mkdir -p "$dir"/ctld "$dir"/log "$dir"/node1 "$dir"/node2 "$dir"/tmp-node1 "$dir"/tmp-node2 "$dir"/munge/run
chmod 755 "$dir" "$dir"/munge/run
chmod 711 "$dir"/munge # munged checks the permissions of its folders
# Ports and job numbers depend on the process id, so that two of these can run at once. The ports are between those that Remat derives
# from a job's number, below 30000, and those that systems assign by themselves, from 32768.
port() {
    echo $((30000 + ($$ * 4 + $1) % 2700))
}

running() { # FILE...: process numbers in these files whose process runs
    for pid in $(cat "$@" 2>/dev/null); do
        grep -qs '^State:.[^ZX]' "/proc/$pid/status" && echo "$pid"
    done
}
stop() {
    set -- "$dir"/slurmd-node1.pid "$dir"/slurmd-node2.pid "$dir"/slurmctld.pid "$dir"/munge/run/munged.pid
    pids=$(running "$@")
    for sign in TERM KILL; do
        [ -n "$pids" ] && kill -$sign $pids 2>/dev/null
        tries=0
        while [ -n "$pids" ] && [ $tries -lt 50 ]; do tries=$((tries + 1)); sleep 0.1; pids=$(running "$@"); done
    done
    umount /etc/hosts 2>/dev/null
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

{ echo "127.0.0.1 localhost node1 node2"; grep -v localhost /etc/hosts; } >"$dir"/hosts
mount --bind "$dir"/hosts /etc/hosts || skip "cannot mount a private /etc/hosts"

dd if=/dev/urandom of="$dir"/munge/munge.key bs=1 count=128 2>/dev/null && chmod 600 "$dir"/munge/munge.key
munged --force --key-file="$dir"/munge/munge.key --socket="$dir"/munge/run/munge.sock \
       --pid-file="$dir"/munge/run/munged.pid --log-file="$dir"/munge/munged.log --seed-file="$dir"/munge/seed \
       --num-threads=1 >"$dir"/log/munged 2>&1 || skip "munged does not start: $(tail -1 "$dir"/log/munged)"

cat >"$dir"/slurm.conf <<CONF
ClusterName=remat
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/run/munge.sock
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=$(port 0)
StateSaveLocation=$dir/ctld
SlurmdSpoolDir=$dir/%n
TmpFS=$dir/tmp-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
FirstJobId=$(($$ % 60000 + 1))
KillWait=5
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(port 1) CPUs=2 RealMemory=1000
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(port 2) CPUs=2 RealMemory=1000
PartitionName=p Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
CONF
export SLURM_CONF="$dir"/slurm.conf
slurmctld -f "$SLURM_CONF" >>"$dir"/log/start 2>&1 || skip "slurmctld does not start: $(tail -1 "$dir"/log/start)"
for node in node1 node2; do
    slurmd -f "$SLURM_CONF" -N $node >>"$dir"/log/start 2>&1 || skip "slurmd does not start: $(tail -1 "$dir"/log/start)"
done
tries=0
until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || skip "the two nodes are not idle after 120 s: $(tail -3 "$dir"/log/slurmctld.log)"
    sleep 0.2
done

"$@"
