#!/bin/sh
# Like check.sh, for PROGRAM on two ranks. Then runs PROGRAM by itself, which must give the same loss, and on TOO_MANY
# ranks, which it must refuse. The order of lines does not matter. Hashes depend on the machine but must be equal on all
# ranks; they are replaced by zeros for the comparison. Usage: check_ranks.sh REMAT PROGRAM SOURCE TOO_MANY [BACKEND]
set -eu
remat=$1 program=$2 source=$3 too_many=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^\/\* Expected output/,/^\*\//p' "$source" | sed '1d;$d' >"$work/expected"
[ -s "$work/expected" ] || { echo "$source has no expected output"; exit 1; }
"$remat" launch --nproc-per-node=2 -- "$program" "$@" >"$work/lines"
sort "$work/lines" >"$work/sorted"
sed 's/parameters [0-9a-f]\{16\}$/parameters 0000000000000000/' "$work/sorted" >"$work/printed"
diff -u "$work/expected" "$work/printed"
hashes=$(sed -n 's/.*\(parameters [0-9a-f]*\)/\1/p' "$work/sorted" | sort -u | wc -l)
[ "$hashes" -le 1 ] || { echo "the ranks have different parameters:"; cat "$work/sorted"; exit 1; }
loss=$(sed -n '1s/.*\(loss [0-9.]*\),.*/\1/p' "$work/expected")
"$program" | grep -q "^rank 0 of 1: $loss, " || { echo "one rank gives a different loss"; exit 1; }
! "$remat" launch --nproc-per-node="$too_many" -- "$program" "$@" >"$work/many" 2>&1 || { echo "$too_many ranks were not refused"; exit 1; }
grep -q 'use 1, 2, .* ranks' "$work/many" || { cat "$work/many"; exit 1; }
