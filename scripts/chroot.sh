#!/usr/bin/env bash
# chroot.sh: runs a shell command in a fresh clone of this repository on a minimal Debian, as on a newly installed
# machine: no compiler, no Python, only what apt needs. Continuous integration tests README's commands in this way.
#
#   scripts/chroot.sh SUITE COMMAND [FOLDER...]     e.g. scripts/chroot.sh trixie 'scripts/quickstart.sh && scripts/test.sh'
#
# SUITE is the name of a Debian release. COMMAND runs as root in the clone, which includes uncommitted changes to
# tracked files. It sees no files of this machine except the FOLDERs, which it cannot write. The exit status is the
# command's, or 77, with a reason, if this machine cannot run it: it needs root, mmdebstrap, git, mount namespaces and a
# Debian mirror.
#
# Packages come from this machine's own apt sources, including mirror and proxy. The minimal system and the downloaded
# packages are kept in ${XDG_CACHE_HOME:-~/.cache}/remat-chroots. All mounts are in a separate namespace that ends with
# this script, however it ends: other processes do not see them, and no removal can reach through them.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: %s\n' "$*" >&2 && exit 77; }

[[ $# -ge 2 ]] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2 && exit 2; }
suite=$1 command=$2
folders=("${@:3}")
[[ $(id -u) == 0 ]] || skip "a chroot needs root; run this as root"
command -v mmdebstrap >/dev/null || skip "a chroot needs mmdebstrap (apt-get install mmdebstrap)"
command -v git >/dev/null && git rev-parse HEAD >/dev/null || skip "a fresh clone needs git, and a repository"
for folder in "${folders[@]}"; do
    [[ $folder != / && $folder != /usr ]] || skip "a chroot cannot see $folder, where this machine's own system is"
done
unshare --mount --pid --fork true 2>/dev/null || skip "this machine allows no namespaces (unshare --mount --pid)"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/remat-chroots
system=$cache/$suite.tar packages=$cache/$suite-packages root=$cache/$suite
mkdir -p "$packages/partial"
# One at a time. Processes in the chroot hold the lock, too, so a tree that exists now is not in use.
exec 9>"$cache/$suite.lock"
flock 9
running=
finish() {
    [[ ! $running ]] || kill -KILL "$running" 2>/dev/null || true
    { wait; } 2>/dev/null
    rm -rf --one-file-system "$root" "$system.new"
}
trap finish EXIT

# The Debian entries of this machine's apt sources, for another suite.
sources() {
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        sed -nE "s/ $codename(-updates|-security)? main\$/ $suite\1 main/p" | sort -u
}
sources=$(sources)
[[ $sources ]] || { apt-get update -qq && sources=$(sources); } || true
[[ $sources ]] || sources="deb http://deb.debian.org/debian $suite main
deb http://deb.debian.org/debian $suite-updates main
deb http://deb.debian.org/debian-security $suite-security main"
settings=$(apt-config dump | grep '^Acquire::' | grep -v '^Acquire::IndexTargets') # for example proxies

# The minimal system is made again after a month.
if [[ ! $(find "$system" -mtime -30 2>/dev/null) ]]; then
    echo "making a minimal $suite"
    mmdebstrap --quiet --variant=minbase --mode=root --format=tar "$suite" "$system.new" - <<<"$sources" && mv "$system.new" "$system" ||
        [[ -f $system ]] || skip "mmdebstrap could not make a minimal $suite; check the network"
fi
rm -rf --one-file-system "$root"
mkdir "$root"
tar -C "$root" -xf "$system"
rm -rf "$root"/etc/apt/sources.list.d/*
printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
printf '%s\n' "$settings" >"$root/etc/apt/apt.conf.d/90host"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/chroot" # this tree need not survive a power failure
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
mkdir -p "$root/etc/ssl/certs"
[[ ! -f /etc/ssl/certs/ca-certificates.crt ]] || cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
git clone -q . "$root/remat"
git diff --binary HEAD | git -C "$root/remat" apply --allow-empty

enter() { # runs in namespaces of its own
    set -euo pipefail
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t proc proc "$root/proc"
    mount --bind "$packages" "$root/var/cache/apt/archives"
    for folder in "$@"; do
        mkdir -p "$root$folder"
        mount --bind -o ro "$folder" "$root$folder"
    done
    clean=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM="${TERM:-dumb}")
    for name in {http,https,ftp,no}_proxy {HTTP,HTTPS,FTP,NO}_PROXY; do
        [[ ! ${!name:-} ]] || clean+=("$name=${!name}")
    done
    chroot "$root" "${clean[@]}" apt-get update -qq -o APT::Update::Error-Mode=any ||
        { echo "skipped: cannot get packages for $suite; check the network" >&2 && exit 77; }
    chroot "$root" "${clean[@]}" apt-get autoclean -qq
    chroot "$root" "${clean[@]}" bash -euo pipefail -c "cd /remat; $command" || exit
}
export suite command root packages
export -f enter
set -m # a process group of its own, so that Ctrl-C interrupts the command
unshare --mount --pid --fork --kill-child bash -c 'enter "$@"' bash "${folders[@]}" &
running=$!
set +m
status=0
wait "$running" || status=$?
running=
exit "$status"
