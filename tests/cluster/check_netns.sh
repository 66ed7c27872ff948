#!/bin/sh
# check_netns.sh SOURCE BINARY: runs inside netns.sh. Two hosts that train over a real network link get the bits of two ranks on one
# machine, started by `remat launch`, mpirun or plain variables; and a host detects the death of the other.
. "$1"/tests/cluster/train.sh
set_up "$1" "$2"
has gloo || { echo "skipped: needs Gloo (apt-get install libgloo-dev, then build again)" >&2; exit 77; }
launch="$remat launch --nnodes=2 --master-addr=hostA --rdzv-id=test"

on_two_hosts() { # NAME COMMAND: runs COMMAND on hostA, saving as NAME, and at the same time on hostB
    name=$1
    shift
    $REMAT_ON hostB timeout 300 $launch --node-rank=1 -- "$@" $model --save="$dir/$name" >"$dir/$name-B.log" 2>&1 &
    other=$!
    train "$name" $REMAT_ON hostA $launch --node-rank=0 -- "$@"
    wait $other || { fail "$name: hostB: exit status $?"; tail -n 20 "$dir/$name-B.log" >&2; }
}

on_two_hosts launch "$remat" train --batch=4 --dist-backend=gloo
same launch

# One launcher for both hosts, by what it takes for ssh.
mkdir "$dir"/bin && ln -s "$REMAT_AGENT" "$dir"/bin/ssh
PATH="$dir/bin:$PATH" train ssh $REMAT_ON hostA "$remat" launch -H hostA:1,hostB:1 -- "$remat" train --batch=4 \
    --dist-backend=gloo
same ssh

# Without a launcher: environment variables configure each host, and may ask for a description of the ranks.
NCCL_DEBUG=INFO RANK=1 WORLD_SIZE=2 MASTER_ADDR=hostA MASTER_PORT=23456 timeout 300 $REMAT_ON hostB "$remat" train $model \
    --batch=4 --dist-backend=gloo --save="$dir"/variables >"$dir"/variables-B.log 2>&1 &
RANK=0 WORLD_SIZE=2 MASTER_ADDR=hostA MASTER_PORT=23456 train variables $REMAT_ON hostA "$remat" train --batch=4 \
    --dist-backend=gloo
wait
same variables
for words in "tcp://hostA:23456" "engine gloo.*as requested.*address 10.77.0.2, interface vB"; do
    grep -q "rank 1 of 2.*$words" "$dir"/variables-B.log || { fail "rank 1: no $words"; cat "$dir"/variables-B.log >&2; }
done

if has mpi && command -v mpirun >/dev/null && mpirun --version 2>/dev/null | grep -q "Open MPI"; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    printf 'hostA slots=2\nhostB slots=2\n' >"$dir"/hosts
    mpi="mpirun --hostfile $dir/hosts --bind-to none --mca plm_rsh_agent $REMAT_AGENT --mca btl tcp,self --mca pml ob1
         --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24"
    train mpirun $REMAT_ON hostA $mpi -np 2 --map-by node "$remat" train --batch=4
    same mpirun
    train mpirun-four $REMAT_ON hostA $mpi -np 4 "$remat" train --batch=4 --deterministic-world
    same mpirun-four eight

    # Only MPI knows where rank 0 is; a stopped or dead rank on the other host is named nevertheless.
    steps=$(echo "$model" | sed 's/--steps=12/--steps=1000000/')
    lose() { # SIGNAL WORDS: sends it to rank 1, and returns whether the job says WORDS
        rm -f "$dir"/rank.* "$dir"/mpi-$1.log
        timeout 300 $REMAT_ON hostA $mpi -np 2 --map-by node sh -c 'echo $$ >"$0".$OMPI_COMM_WORLD_RANK; exec "$@"' "$dir"/rank \
            "$remat" train $steps --batch=4 --hang-timeout=3 >"$dir"/mpi-$1.log 2>&1 &
        other=$!
        tries=0
        until grep -qs " 1/1000000\|step  *1/" "$dir"/mpi-$1.log || [ $tries = 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
        kill -$1 "$(cat "$dir"/rank.1)"
        wait $other
        code=$?
        [ $code != 0 ] && [ $code != 124 ] || fail "mpirun: SIG$1 of a rank: exit status $code"
        grep -q "$2" "$dir"/mpi-$1.log
    }
    lose STOP "rank 1 .*hostB.*process [0-9].*--hang-timeout" || { fail "mpirun: SIGSTOP: rank 1 is not named"; cat "$dir"/mpi-STOP.log >&2; }
    named=no
    for time in 1 2 3 4 5; do # mpirun kills the others soon after a death: one time of some in which they are quicker is enough
        lose KILL "rank 1 .*hostB.*process [0-9]" && named=yes && break
    done
    [ $named = yes ] || { fail "mpirun: SIGKILL: rank 1 is not named"; cat "$dir"/mpi-KILL.log >&2; }
fi

if command -v torchrun >/dev/null && torchrun --help >/dev/null 2>&1; then
    remat_launch=$launch
    launch="torchrun --no-python --nnodes=2 --nproc-per-node=1 --master-addr=hostA --master-port=29501"
    on_two_hosts torchrun "$remat" train --batch=4 --dist-backend=gloo
    same torchrun
    launch=$remat_launch
fi

# hostB's launcher is killed; hostA's ranks report it and stop.
steps=$(echo "$model" | sed 's/--steps=12/--steps=1000000/')
$REMAT_ON hostB sh -c 'echo $$ >"$0"; exec "$@"' "$dir"/pid $launch --node-rank=1 -- "$remat" train $steps --batch=4 \
    --dist-backend=gloo >"$dir"/killed-B.log 2>&1 &
timeout 300 $REMAT_ON hostA $launch --node-rank=0 -- "$remat" train $steps --batch=4 --dist-backend=gloo \
    >"$dir"/killed.log 2>&1 &
other=$!
tries=0
until grep -qs "step  *1/" "$dir"/killed.log || [ $tries = 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
kill -9 "$(cat "$dir"/pid)"
wait $other
code=$?
[ $code = 3 ] || fail "hostA ends with $code after hostB has gone"
grep -q "rank 1 .*hostB.*process [0-9]" "$dir"/killed.log || { fail "hostA does not name rank 1"; cat "$dir"/killed.log >&2; }

# An elastic job: hostB's launcher is killed, hostA goes on alone, and takes hostB in again when it returns.
elastic() { # HOST NUMBER
    $REMAT_ON "$1" sh -c 'echo $$ >"$0"; exec "$@"' "$dir/pid-$1" "$remat" launch --nnodes=1:2 --node-rank="$2" --master-addr=hostA \
        --rdzv-id=elastic -- "$remat" train $steps --batch=8 --deterministic-world --dist-backend=gloo --save="$dir"/elastic \
        --save-every=100 >>"$dir/elastic-$1.log" 2>&1 &
}
until_log() { # WORDS [AFTER]: until hostA's log has WORDS, in or below a line with AFTER
    tries=0
    until sed -n "/${2:-^}/,\$p" "$dir"/elastic-hostA.log | grep -q "$1" || [ $tries = 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
    [ $tries -lt 1200 ] || { fail "elastic: no '$1'"; tail -n 20 "$dir"/elastic-hostA.log "$dir"/elastic-hostB.log >&2; }
}
: >"$dir"/elastic-hostA.log
elastic hostA 0
elastic hostB 1
until_log "step  *[0-9]*/" "2 ranks over" # hostA may begin alone
kill -9 "$(cat "$dir"/pid-hostB)"
until_log "1 rank goes on from step"
elastic hostB 1
until_log "2 ranks go on from step" "1 rank goes on from step"
kill -TERM "$(cat "$dir"/pid-hostA)" "$(cat "$dir"/pid-hostB)"
wait
last=$(ls -d "$dir"/elastic/step-* | tail -n 1)
model=$(echo "$model" | sed "s/--steps=12/--steps=$(expr "${last##*-}" + 0)/")
train elastic-two "$remat" train --devices=cpu:2 --batch=8 --deterministic-world
cat "$last"/model.safetensors "$last"/optimizer.safetensors >"$dir"/one
cat "$dir"/elastic-two/"${last##*/}"/model.safetensors "$dir"/elastic-two/"${last##*/}"/optimizer.safetensors | cmp - "$dir"/one ||
    fail "elastic: parameters differ from those of an undisturbed job"
finish
