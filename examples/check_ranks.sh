#!/bin/sh
# As check.sh, for PROGRAM in two ranks; then by itself, and in three, which it must refuse. Lines may come in any order. The
# hash depends on the machine, and must be the same on all ranks: here it becomes zeros.
# Usage: check_ranks.sh REMAT PROGRAM SOURCE [BACKEND]
set -eu
remat=$1 program=$2 source=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^\/\* Expected output/,/^\*\//p' "$source" | sed '1d;$d' >"$work/expected"
[ -s "$work/expected" ] || { echo "$source does not say what it prints"; exit 1; }
"$remat" launch --nproc-per-node=2 -- "$program" "$@" >"$work/lines"
sort "$work/lines" >"$work/sorted"
sed 's/parameters [0-9a-f]\{16\}$/parameters 0000000000000000/' "$work/sorted" >"$work/printed"
diff -u "$work/expected" "$work/printed"
hashes=$(grep -o 'parameters [0-9a-f]*' "$work/sorted" | sort -u | wc -l)
[ "$hashes" -eq 1 ] || { echo "the ranks have different parameters:"; cat "$work/sorted"; exit 1; }
"$program" | grep -q '^rank 0 of 1: loss 0.000, ' || { echo "alone it does something else"; exit 1; }
! "$remat" launch --nproc-per-node=3 -- "$program" "$@" >"$work/three" 2>&1 || { echo "three ranks are too many"; exit 1; }
grep -q 'use 1, 2, 4, 8 or 16 ranks' "$work/three" || { cat "$work/three"; exit 1; }
