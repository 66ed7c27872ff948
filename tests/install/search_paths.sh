#!/bin/sh
# No program or library below the FOLDERs searches for libraries in the current directory: every folder in its search path is absolute
# or starts with $ORIGIN. Usage: search_paths.sh FOLDER...
set -eu
command -v readelf >/dev/null || { echo "readelf is missing; install binutils"; exit 1; }
list=$(mktemp)
trap 'rm -f "$list"' EXIT
# Loadable files have a program header; object files and archives have none.
find "$@" -type f \( -perm -u+x -o -name '*.so*' \) ! -path '*/CMakeFiles/*' ! -name '*.sh' -print >"$list"
[ -s "$list" ] || { echo "no programs below $*"; exit 1; }
xargs readelf -d <"$list" 2>/dev/null |
    awk '/^File: / { file = $2 }
         /\((RPATH|RUNPATH)\)/ {
             path = $0; sub(/^[^[]*\[/, "", path); sub(/\]$/, "", path)
             n = split(path, folder, ":")
             for (i = 1; i <= n; i++)
                 if (folder[i] !~ /^(\/|\$ORIGIN|\$\{ORIGIN\})/) { print file " looks in \"" folder[i] "\" of [" path "]"; bad = 1 }
             if (n == 0) { print file " has an empty search path"; bad = 1 }
             read++
         }
         END { print read ? read " search paths" : "no search path was found"; exit bad || !read }'
