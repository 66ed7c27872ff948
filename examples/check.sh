#!/bin/sh
# Runs PROGRAM and compares its output with the lines after "/* Expected output:" in SOURCE.
# Usage: check.sh PROGRAM SOURCE
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^\/\* Expected output:/,/^\*\//p' "$2" | sed '1d;$d' >"$work/expected"
[ -s "$work/expected" ] || { echo "$2 has no expected output"; exit 1; }
"$1" >"$work/printed"
diff -u "$work/expected" "$work/printed"
