#!/bin/sh
# place.sh: `remat place` on tables of buffers, one row each: seconds to the first block within the capacity and within 5 per
# cent of it, then the smallest found in ten seconds against capacity and lower bound. The public hard instances are in the
# repository of MiniMalloc (google/minimalloc, benchmarks/challenging); their names end in the capacity: A.1048576.csv.
#
#   bench/place.sh build/release/remat FILE.CAPACITY.csv...
set -e
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
remat=$1
shift
field() { sed -n "s/.*$1 \([0-9.]*\)[,:].*/\1/p" "$2" | head -n 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo '| instance | buffers | floor / capacity | within 1.05 x capacity, s | within capacity, s | smallest in 10 s / capacity | / floor |'
echo '|---|--:|--:|--:|--:|--:|--:|'
for file in "$@"; do
    name=$(basename "$file" .csv)
    capacity=${name##*.}
    loose=$("$remat" place "$file" --capacity=$((capacity + capacity / 20)) --time-limit=60 2>"$log" >/dev/null && field seconds "$log" || echo '-')
    tight=$("$remat" place "$file" --capacity="$capacity" --time-limit=60 2>"$log" >/dev/null && field seconds "$log" || echo '-')
    "$remat" place "$file" --time-limit=10 2>"$log" >/dev/null
    peak=$(field peak "$log")
    floor=$(field 'lower bound' "$log")
    buffers=$(($(wc -l <"$file") - 1))
    echo "$peak $floor $capacity" | awk -v n="$name" -v b="$buffers" -v l="$loose" -v t="$tight" \
        '{ printf "| %s | %d | %.4f | %s | %s | %.4f | %.4f |\n", n, b, $2 / $3, l, t, $1 / $3, $1 / $2 }'
done
