#!/usr/bin/env bash
# check_commands.sh SOURCE BUILD: runs every command line of the pages, of the manual and of --help at a tiny size.
# command_lines.awk finds them. For a line, commands.txt gives additional flags ("+ FLAGS"), a command to run instead ("= COMMAND"), or
# the reason not to run it ("- REASON"); other lines run unchanged. The test fails for a line of commands.txt that is on no page, and
# for a line of a page that fails or takes too long: repair the page, or add the line to commands.txt.
# "..." on a page stands for the flags of a tiny run; other lines of `remat train` get --steps=1 --batch=2. Checked, but not run:
#   bench/X, scripts/X          the script contains each flag
#   build/release/tests/X       the program exists
#   cmake --preset X, ctest -R X, remat X    the preset, test or command exists
# Needs a complete build, which ctest does not check.
set -uo pipefail
source=$(realpath "$1") build=$(realpath "$2") here=$(realpath "$(dirname "$0")")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/run" "$work/run/build" && ln -s "$build/remat" "$work/bin" && ln -s "$build" "$work/run/build/release" || exit 1
ln -s "$source/examples" "$source/docs" "$work/run" && cd "$work/run" || exit 1
export PATH=$work/bin:$PATH OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
tiny="--data=book.txt --hidden=8 --seq-len=64 --batch=2 --steps=1"
failed=0 skipped=()

fail() { # fail WHERE COMMAND WHY
    printf '%s: %s\n    %s\n' "$1" "$2" "$3"
    failed=1
}

# ---- What the pages' commands read ----------------------------------------------------------------------------------------------------

# npy FILE TYPE SHAPE: a header; the numbers come on stdin
npy() {
    local header="{'descr': '$2', 'fortran_order': False, 'shape': ($3), }"
    { printf '\x93NUMPY\x01\x00\x76\x00' && printf '%-117s\n' "$header" && cat; } >"$1"
}

bytes() { head -c "$1" "$source/examples/data/shakespeare.txt"; }
numbers() { printf "$(printf '\\x%02x' "$@")"; }
prepare() {
    bytes 20000 >book.txt && cp book.txt FILE && cp book.txt other.txt && cp book.txt TEXT.txt
    printf 'abcdefghij\njihgfedcba\nfghijabcde\n' >lines.txt && cp lines.txt SOURCE.txt && cp lines.txt TARGET.txt
    printf 'id,lower,upper,size\n1,0,2,4096\n2,1,3,4096\n' >buffers.csv && cp buffers.csv BUFFERS.csv
    cp "$source/tests/golden/tokenizer.json" .
    bytes $((4 * 20 * 3)) | tr '[:space:]' 'a' | npy X.npy '|u1' '4, 20, 3'
    numbers 1 2 1 2 2 1 2 1 | npy Y.npy '|u1' '4, 2'
    { numbers 0 0 8 3 0 0 0 8 0 0 0 4 0 0 0 4 && bytes 128; } >images && gzip -c images >new-images.gz # IDX: eight of 4 x 4
    { numbers 0 0 8 1 0 0 0 8 && numbers 0 1 0 1 0 1 0 1; } >labels
    mkdir -p shared DIR/a DIR/b && cp docs/images/step.png DIR/a/1.png && cp docs/images/step.png DIR/a/2.png &&
        cp docs/images/depth.png DIR/b/1.png && cp docs/images/depth.png DIR/b/2.png
    for run in a b A B; do remat train $tiny --metrics=$run.jsonl || return; done
    remat train $tiny --save=runs/lm --embed=16 && remat train --data=images --labels=labels --task=classify --hidden=8 --batch=2 --steps=1 --save=runs/digits &&
        remat train --task=seq2seq --generate=reverse --hidden=8 --batch=2 --samples=8 --seq-len=12 --steps=1 --save=runs/pairs
}
prepare >"$work/log" 2>&1 || {
    cat "$work/log"
    echo "check_commands.sh: the data for the pages' commands cannot be created"
    exit 1
}

# ---- Running one ----------------------------------------------------------------------------------------------------------------------

# The script that a page's line calls must contain the line's flags.
look_at_script() { # WHERE COMMAND
    local word script
    for word in $2; do [[ $word != bench/* && $word != scripts/* && $word != tests/* && $word != examples/* ]] || script=$word; done
    [[ -f $source/$script ]] || { fail "$1" "$2" "there is no $script" && return; }
    for word in $2; do
        word=${word%%=*}
        [[ $word != --* || $word == --help ]] || grep -q -e "$word\b" "$source/$script" || grep -q -e "$word\b" "${source}/${script%.sh}.py" 2>/dev/null ||
            fail "$1" "$2" "$script has no flag $word"
    done
}

run() { # WHERE COMMAND TO-BE-RUN
    local command=$3 status
    local first=${command%% *}
    [[ $command != *--plot* ]] || command -v gnuplot >/dev/null || first=gnuplot
    if ! command -v "$first" >/dev/null; then
        skipped+=("needs $first: $2")
        return
    fi
    timeout 120 bash -c "$command" >"$work/log" 2>&1 </dev/null
    status=$?
    [[ $status == 0 ]] || fail "$1" "$2" "'$command' ended with $status: $(tail -n 3 "$work/log")"
}

declare -A what=() used=() met=()
take() { # WHERE COMMAND
    local where=$1 command=$2 tried=$2
    [[ ! ${met[$command]:-} ]] || return 0
    met[$command]=1
    case ${what[$command]:-} in
    -*) used[$command]=1 && return ;;
    =*) used[$command]=1 tried=${what[$command]#= } ;;
    +*) used[$command]=1 tried="$command ${what[$command]#+ }" ;;
    *)
        case $command in
        bench/* | scripts/* | tests/*.sh* | examples/*.py* | *' bench/'*) look_at_script "$where" "$command" && return ;;
        'cmake --preset '*)
            local name
            for name in $(cut -d ' ' -f 3 <<<"$command" | tr '|' ' '); do
                grep -q "\"name\": \"$name\"" "$source/CMakePresets.json" || fail "$where" "$command" "there is no preset $name"
            done
            return
            ;;
        *build/release/tests/* | tests/*)
            local program=${command##*build/release/}
            [[ -x $build/${program%% *} ]] || fail "$where" "$command" "there is no such program in the build"
            return
            ;;
        *ctest*\ -R\ *)
            (cd "$build" && ctest -N -R "${command##* -R }") | grep -q 'Total Tests: [1-9]' || fail "$where" "$command" "no test matches"
            return
            ;;
        *'remat train'*)
            if [[ $command == 'remat train' ]]; then tried="$command --help"; elif [[ $command != *...* ]]; then tried="$command --steps=1 --batch=2"; fi
            ;;
        'remat '*)
            if [[ $command =~ ^remat\ [a-z]+$ ]]; then tried="$command --help"; fi
            ;;
        esac
        ;;
    esac
    tried=${tried//...the same flags.../...}
    tried=${tried//.../$tiny}
    run "$where" "$command" "$tried"
}

# ---- All of them ------------------------------------------------------------------------------------------------------------------------

while IFS= read -r line; do
    case $line in
    '#'* | '') ;;
    ' '*) what[$command]=${line#"${line%%[! ]*}"} ;;
    *) command=$line ;;
    esac
done <"$here/commands.txt"

pages() ( # in reading order: a line may need the output of an earlier one
    cd "$source" && for page in README.md docs/*.md docs/notes/*.md examples/*.md examples/*/*.md SECURITY.md CONTRIBUTING.md */README.md; do
        awk -f "$here/command_lines.awk" "$page"
    done
)
helps() { # their examples start with two spaces, and have a flag
    local name
    { remat --help && for name in train plan eval predict export sample report info launch; do remat $name --help; done; } |
        sed -n 's/^  \(remat [a-zA-Z]* .*\)/    \1/p' | grep -e ' --' | awk -f "$here/command_lines.awk" | sed 's/^[^\t]*/--help/'
    remat help --man | sed -n '/^.SH EXAMPLES/,/^.SH SEE/p' | sed 's/\\//g; s/^remat/    remat/' | awk -f "$here/command_lines.awk" |
        sed 's/^[^\t]*/the manual/'
}
{ pages && helps; } >"$work/lines"
while IFS=$'\t' read -r where command; do take "$where" "$command"; done <"$work/lines"

[[ $(wc -l <"$work/lines") -gt 150 ]] || fail command_lines.awk "pages" "too few lines were found"
# Every flag on a page, in a table or in the text, belongs to remat, to a script, or to another program in this list.
others="cflags cpus-per-task host install libs logdir multi-prog nodes nproc_per_node ntasks-per-node output-on-failure prefix shm-size signal
    table use-env no-python"
{
    remat help --man | sed 's/\\//g'
    cat "$source"/bench/*.py "$source"/bench/*.sh "$source"/scripts/*.sh "$source"/tests/gpu/run.sh "$source"/examples/large_batch/run.py
    for name in $others; do echo "--$name"; done
} | grep -oE -e '--[a-z][a-z0-9_-]*' | sort -u >"$work/flags"
for page in "$source"/*.md "$source"/docs/*.md "$source"/docs/notes/*.md "$source"/*/README.md "$source"/examples/multi_node.md; do
    [[ $page != */CHANGELOG.md ]] || continue
    for flag in $(grep -oE -e '(^|[^-a-zA-Z])--[a-z][a-z0-9_-]*' "$page" | grep -oE -e '--[a-z].*' | sort -u | comm -23 - "$work/flags"); do
        fail "${page#"$source"/}" "$flag" "no program has this flag"
    done
done

for command in "${!what[@]}"; do [[ ${used[$command]:-} ]] || fail commands.txt "$command" "no page has this line: remove it"; done
for reason in "${skipped[@]}"; do echo "skipped: $reason"; done
exit $failed
