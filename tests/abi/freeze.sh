#!/bin/sh
# Keeps today's headers, without comments, and the first example as those of a release, for check.sh. Once that is out they stay as
# they are: programs have been compiled with them. Usage: freeze.sh VERSION
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
kept=$source/tests/abi/$1
mkdir -p "$kept/remat"
cd "$source/engine"
for header in remat.h remat_op.h remat/*.h; do
    { echo "/* $header of Remat $1, without its comments. */" && gcc -fpreprocessed -dD -E -P -w "$header"; } \
        >"$kept/$header"
done
cp "$source/examples/common.h" "$source/examples/01_fit_a_line.c" "$kept"
