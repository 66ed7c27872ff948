#!/bin/sh
# The library exports the functions that the headers declare. Programs that were compiled with an earlier release run with today's
# library (docs/promises.md): what a release declared is declared still (freeze.sh keeps its headers here), and its example runs.
# Usage: check.sh SOURCE LIBRARY CC [FLAGS of the build's sanitizer]
set -eu
source=$1 library=$2 cc=$3
shift 3
here=$source/tests/abi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH="${library%/*}"
fail() { echo "$@" && exit 1; }

# The declarations in a folder's headers, a line each, as the compiler sees them.
declarations() {
    $cc -E -P "$1/remat_op.h" | tr -s ' \n' ' ' | sed 's/[;{}]/&\n/g' | awk '
        { text = text $0; depth += gsub(/\{/, "{") - gsub(/\}/, "}") }
        depth || (/\}$/ && text ~ /^ *typedef/) { next } # the name of a struct is still to come
        { gsub(/[][(){},;*]/, " & ", text); gsub(/ +/, " ", text) }
        text ~ /[Rr][Ee][Mm][Aa][Tt]_.*; $/ { print text }
        { text = "" }'
}
declarations "$source/engine" >"$work/today"

# ---- The library exports every function that is declared, in a version, and nothing else.
awk '!/^ *(typedef|static)/ && match($0, /remat_[a-z0-9_]+ \(/) { print substr($0, RSTART, RLENGTH - 2) "@@REMAT_0" }' \
    "$work/today" | sort >"$work/declared"
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$work/exported"
diff "$work/declared" "$work/exported" || fail "declared (<) and not exported, or the other way round (>)"

for release in "$here"/[0-9]*; do
    [ -e "$release" ] || continue # there has been no release
    # ---- What it declared is there, word for word. Structs and enums may have more at their end.
    declarations "$release" >"$work/then"
    awk '
        { body = $0; sub(/\}[^}]*$/, "", body); name = substr($0, length(body) + 1) }
        FILENAME ~ /today$/ { there[$0] = 1; now[name] = body; next }
        !($0 in there) && (name == "" || index(now[name], body) != 1) { print "now: " now[name] name "\nwas: " $0; bad = 1 }
        END { exit bad || !FNR }' "$work/today" "$work/then" ||
        fail "programs of ${release##*/} rely on what has changed: what is new comes at the end (docs/promises.md)"

    # ---- Its example, compiled with its headers, runs with the library.
    $cc "$@" -I"$release" "$release/01_fit_a_line.c" "$library" -o "$work/program"
    sh "$source/examples/check.sh" "$work/program" "$release/01_fit_a_line.c" || fail "the example of ${release##*/} fails"
    echo "programs of ${release##*/} run: $(wc -l <"$work/then") declarations are as they were"
done
