#!/bin/sh
# check_sshd.sh SOURCE BINARY: runs inside netns.sh. `remat launch -H` and --hostfile start ranks on two hosts by a real ssh, each with a
# real sshd. Whatever ends a job, its exit status is passed on and no process is left on a host.
PATH=$PATH:/usr/sbin:/sbin
for program in sshd ssh ssh-keygen; do
    command -v $program >/dev/null || {
        echo "skipped: there is no $program (apt-get install --no-install-recommends openssh-server)" >&2
        exit 77
    }
done
. "$1"/tests/cluster/train.sh
set_up "$1" "$2"

# ---- Two hosts with sshd, and an ssh that reads no configuration of the user's ---------------------------------------------

real_ssh=$(command -v ssh)
mkdir -p /run/sshd "$dir"/bin "$dir"/far/away "$dir/a folder's name"
ssh-keygen -q -t ed25519 -N '' -f "$dir"/key && ssh-keygen -q -t ed25519 -N '' -f "$dir"/host || exit 1
stop_all() {
    kill $(cat "$dir"/sshd-*.pid 2>/dev/null) 2>/dev/null
    rm -rf "$dir"
}
trap stop_all EXIT
for host in hostA hostB; do
    # $dir/far is empty on hostB.
    $REMAT_ON $host sh -c '[ $1 = hostA ] || mount -t tmpfs none "$2"/far; shift 2; exec "$@"' sh $host "$dir" "$(command -v sshd)" \
        -f /dev/null -h "$dir"/host -E "$dir"/sshd-$host.log -o PidFile="$dir"/sshd-$host.pid -o StrictModes=no \
        -o AuthorizedKeysFile="$dir"/key.pub -o PermitRootLogin=yes -o UsePAM=no ||
        { echo "skipped: sshd does not start" >&2; exit 77; }
done
echo "hostA,hostB $(cut -d' ' -f1,2 "$dir"/host.pub)" >"$dir"/known
cat >"$dir"/config <<CONFIG
StrictHostKeyChecking yes
GlobalKnownHostsFile /dev/null
UserKnownHostsFile $dir/known
IdentityFile $dir/key
IdentitiesOnly yes
ControlMaster auto
ControlPath $dir/master-%h
RequestTTY force
CONFIG
printf '#!/bin/sh\necho $$ >"%s"/client\nexec "%s" -F "%s"/config "$@"\n' "$dir" "$real_ssh" "$dir" >"$dir"/bin/ssh
chmod +x "$dir"/bin/ssh
PATH=$dir/bin:$PATH
[ "$($REMAT_ON hostA ssh -T -oControlMaster=no hostB hostname 2>"$dir"/why)" = hostB ] ||
    { echo "skipped: hostA cannot reach hostB by ssh: $(tail -1 "$dir"/why)" >&2; exit 77; }

# ---- Training ----------------------------------------------------------------------------------------------------------

train ssh $REMAT_ON hostA "$remat" launch -H hostA:1,hostB:1 -- "$remat" train --batch=4
same ssh
printf '# Open MPI\nhostA slots=2 max_slots=4\nroot@hostB slots=4\n' >"$dir"/hosts-open-mpi
printf 'hostA:2\n\nhostB:2 # as for horovodrun and MPICH\n' >"$dir"/hosts-horovod
engine=--dist-backend=auto
has gloo && engine=--dist-backend=gloo
for hosts in open-mpi horovod; do
    train $hosts $REMAT_ON hostA "$remat" launch -np 4 --hostfile "$dir"/hosts-$hosts -- "$remat" train --batch=4 --deterministic-world $engine
    same $hosts eight
done

# A rank of each attempt is killed; the next attempt continues from the last state.
train restarted $REMAT_ON hostA "$remat" launch -H hostA:1,hostB:1 --max-restarts=1 -- sh -c '
    if [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then until [ -e "$0"/restarted/step-00000006 ]; do sleep 0.02; done; kill -9 $$; fi &
    exec "$@"' "$dir" "$remat" train --batch=4 --save-every=6
same restarted

# ---- Commands, output, exit status -------------------------------------------------------------------------------------------

on_both() { # NAME COMMAND...: its output to $dir/NAME.log and $dir/NAME.err
    name=$1
    shift
    timeout 300 $REMAT_ON hostA "$remat" launch -H hostA:1,hostB:1 -- "$@" >"$dir/$name.log" 2>"$dir/$name.err"
    code=$?
}
ends_with() { # STATUS WORDS: those of stderr
    [ $code = "$1" ] && { [ -z "$2" ] || grep -q "$2" "$dir/$name.err"; } || { fail "$name: exit status $code and not $1, or no '$2'"; cat "$dir/$name.err" >&2; }
}

cd "$dir/a folder's name" || exit 1
CUDA_VISIBLE_DEVICES="1, it's 2" on_both words sh -c 'printf "%s\n" "$RANK/$WORLD_SIZE $(hostname):$(pwd)" "$@" "$CUDA_VISIBLE_DEVICES"
    echo "not for stdout" >&2' sh "two  words" "it's \"quoted\" \$HOME" '*' '' '\'
ends_with 0 "not for stdout"
for rank in 0 1; do
    host=$([ $rank = 0 ] && echo hostA || echo hostB)
    printf "[$rank] %s\n" "$rank/2 $host:$(pwd)" "two  words" "it's \"quoted\" \$HOME" '*' '' '\' "1, it's 2" >"$dir"/expected
    grep "^.$rank. " "$dir"/words.log | cmp -s "$dir"/expected - || { fail "words of rank $rank"; cat "$dir"/words.log >&2; }
done
cd / || exit 1

on_both many-lines seq 20000
for rank in 0 1; do
    [ "$(grep "^.$rank. " "$dir"/many-lines.log | cksum)" = "$(seq 20000 | sed "s/^/[$rank] /" | cksum)" ] || fail "lines of rank $rank"
done

# A line arrives while its rank still runs.
on_both waits sh -c 'echo ready >&2; until [ -e "$0"/seen ]; do sleep 0.02; done' "$dir" &
tries=0
until [ "$(grep -c ready "$dir"/waits.err 2>/dev/null)" = 2 ] || [ $tries = 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
[ $tries -lt 1200 ] || fail "lines arrive late"
touch "$dir"/seen
wait $!

on_both status sh -c 'exit $((RANK * 7))'
ends_with 7 "launcher of hostB.*status 7"
on_both missing-program "$dir"/far/away/program
ends_with 127 "cannot run"
touch "$dir"/far/away/program && chmod +x "$dir"/far/away/program
on_both far-program "$dir"/far/away/program
ends_with 127 "launcher of hostB.*status 127"
cd "$dir"/far/away || exit 1
on_both far-folder sleep 0.1
cd / || exit 1
grep -q "far/away" "$dir"/far-folder.err && [ $code != 0 ] || { fail "a missing folder: status $code"; cat "$dir"/far-folder.err >&2; }

# ---- Nothing is left ----------------------------------------------------------------------------------------------------------

# Ranks write their numbers into $dir/NAME.pids.
starts() { # NAME COMMAND...
    name=$1
    shift
    timeout 300 $REMAT_ON hostA sh -c 'echo $$ >"$0"; exec "$@"' "$dir"/launcher "$remat" launch -H hostA:1,hostB:1 -- \
        sh -c 'echo $$ >>"$0"; exec "$@"' "$dir/$name".pids "$@" >"$dir/$name.log" 2>"$dir/$name.err" &
    job=$!
    tries=0
    until [ "$(cat "$dir/$name".pids 2>/dev/null | wc -l)" = 2 ] || [ $tries = 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
}
left() { # those of the ranks that still run
    for pid in $(cat "$dir/$name".pids); do
        grep -qs '^State:.[^ZX]' /proc/$pid/status && echo "$pid"
    done
}
ends() { # STATUS WORDS
    wait $job 2>/dev/null
    code=$?
    ends_with "$1" "$2"
    tries=0
    while [ -n "$(left)" ] && [ $tries -lt 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
    [ -z "$(left)" ] || fail "$name: still running:" $(left)
}
endless="$remat train $(echo "$model" | sed 's/--steps=12/--steps=1000000/') --batch=4"
starts killed-rank $endless
kill -9 "$(tail -n 1 "$dir"/killed-rank.pids)"
ends 137 "killed by signal 9"
starts killed-launcher sleep 1000
kill -9 "$(cat "$dir"/launcher)"
ends 137 ""
starts killed-ssh $endless
kill -9 "$(cat "$dir"/client)"
ends 137 "ssh hostB\|launcher of hostB"
starts interrupted $endless --save="$dir"/interrupted
until grep -q "step  *1/" "$dir"/interrupted.log || [ $tries = 1200 ]; do tries=$((tries + 1)); sleep 0.1; done
kill -INT "$(cat "$dir"/launcher)"
ends 130 "SIGINT is passed on"
ls -d "$dir"/interrupted/step-* >/dev/null 2>&1 || fail "an interrupted job has saved no state"

# ---- Hosts that ssh refuses ---------------------------------------------------------------------------------------------------

timeout 300 $REMAT_ON hostA "$remat" launch -H hostA:1,hostC:1 -- sleep 0.1 >"$dir"/wrong-host.log 2>"$dir"/wrong-host.err
code=$? name=wrong-host
ends_with 255 "ssh hostC exited with status 255"
ssh-keygen -q -t ed25519 -N '' -f "$dir"/other
echo "hostB $(cut -d' ' -f1,2 "$dir"/other.pub)" >"$dir"/known
on_both changed-key sleep 0.1
ends_with 255 "ssh hostB exited with status 255"
grep -q "Host key verification failed" "$dir"/changed-key.err || fail "changed-key: ssh's message is missing"
cp "$dir"/other "$dir"/key
echo "hostB $(cut -d' ' -f1,2 "$dir"/host.pub)" >"$dir"/known
on_both no-key sleep 0.1
ends_with 255 "Permission denied"
finish
