#!/bin/sh
# netns.sh COMMAND [ARGUMENT...]: runs a command with two "hosts" on this machine: hostA and hostB, network namespaces joined by a
# veth pair (10.77.0.1 and 10.77.0.2), each with its own host name. They are invisible outside, and removed afterwards. The exit
# status is the command's; 77, with a reason, if this machine does not allow namespaces.
#
#   $REMAT_ON hostB COMMAND...      runs a command on hostB
#   $REMAT_AGENT hostB 'COMMAND'    the same, called as ssh is: for mpirun --mca plm_rsh_agent
set -u
skip() { echo "skipped: $*" >&2; exit 77; }
[ $# -gt 0 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
PATH=$PATH:/usr/sbin:/sbin
command -v ip >/dev/null || skip "there is no ip (apt-get install iproute2)"
if [ -z "${REMAT_PRIVATE_HOSTS:-}" ]; then
    export REMAT_PRIVATE_HOSTS=1
    unshare -m -u -n true 2>/dev/null || skip "this machine allows no namespaces (unshare -m -u -n)"
    exec unshare -m sh "$0" "$@"
fi

dir=$(mktemp -d) || exit 1
trap 'umount /etc/hosts 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
printf '127.0.0.1 localhost\n10.77.0.1 hostA\n10.77.0.2 hostB\n' >"$dir"/hosts
{ mkdir -p /run/netns && mount -t tmpfs none /run/netns && mount --bind "$dir"/hosts /etc/hosts; } 2>"$dir"/why ||
    skip "cannot mount: $(cat "$dir"/why)"
{ ip netns add hostA && ip netns add hostB &&
      ip link add vA netns hostA type veth peer name vB netns hostB &&
      ip -n hostA addr add 10.77.0.1/24 dev vA && ip -n hostB addr add 10.77.0.2/24 dev vB &&
      ip -n hostA link set lo up && ip -n hostB link set lo up &&
      ip -n hostA link set vA up && ip -n hostB link set vB up; } 2>"$dir"/why ||
    skip "cannot make two hosts: $(cat "$dir"/why)"

cat >"$dir"/on <<'ON'
#!/bin/sh
host=$1; shift
exec ip netns exec "$host" unshare -u sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
ON
cat >"$dir"/agent <<AGENT
#!/bin/sh
while case "\$1" in -*) true;; *) false;; esac; do shift; done
host=\$1; shift
exec $dir/on "\$host" sh -c "\$*"
AGENT
chmod +x "$dir"/on "$dir"/agent
export REMAT_ON="$dir"/on REMAT_AGENT="$dir"/agent

"$@"
