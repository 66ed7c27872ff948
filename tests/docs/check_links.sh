#!/bin/sh
# Every relative link in a page leads to a file, and to a heading if it names one. Every docs/PAGE.md named in code exists.
# Usage: check_links.sh FOLDER, which is the repository or the installed share/doc/remat
set -eu
cd "$1"
bad=0
complain() { echo "$1: there is no $2"; bad=1; }
pages=$(find . \( -name 'build*' -o -name .git -o -name shared \) -prune -o -name '*.md' -print)

# GitHub's name of a heading: lower case, no punctuation, dashes for spaces.
has_heading() {
    awk -v want="$2" '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ /, ""); $0 = tolower($0)
        gsub(/[^a-z0-9 _-]/, ""); gsub(/ /, "-"); if ($0 == want) found = 1 } END { exit !found }' "$1"
}

for page in $pages; do
    for link in $(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//' | grep -v '://' | sort -u); do
        file=${link%%#*}
        target=${file:+$(dirname "$page")/$file}
        target=${target:-$page}
        if [ ! -e "$target" ]; then
            complain "$page" "$link"
        else
            case $link in *\#*) has_heading "$target" "${link#*#}" || complain "$page" "heading for $link" ;; esac
        fi
    done
done

for mention in $(grep -rnoE 'docs/[a-z_/]+\.md' --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.py' --include='*.sh' \
    --include='*.def' --include='*.md' --include=CMakeLists.txt --exclude-dir='build*' --exclude-dir=.git --exclude-dir=shared . | sort -u); do
    [ -e "${mention##*:}" ] || complain "${mention%:*}" "${mention##*:}"
done
[ "$pages" ] || { echo "there are no pages in $1"; exit 1; }
exit $bad
