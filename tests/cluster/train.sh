# train.sh: shared by the tests of this folder (sourced): trains a small model with any launcher, and checks that its parameters are
# bit-identical to those of ranks on one machine.
#   set_up SOURCE BINARY               a folder, data, the reference; exits with 77 if remat is not built
#   train NAME COMMAND...              runs COMMAND with the flags of the model; saves to $dir/NAME
#   same NAME [REFERENCE]              compares with the reference; prints the result; counts failures
#   finish                             the verdict
#   has ENGINE                         does this build have that engine for ranks, and can it be loaded here?
failures=0

has() { "$remat" info --json | grep -q "\"$1\": \""; }

fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

set_up() {
    source=$1 remat=$2/remat
    [ -x "$remat" ] || { echo "skipped: $remat is not built" >&2; exit 77; }
    dir=$(mktemp -d) || exit 1
    chmod 755 "$dir"
    trap 'rm -rf "$dir"' EXIT
    head -c 40000 "$source"/docs/plans.md "$source"/README.md "$source"/LICENSE >"$dir"/text
    model="--data=$dir/text --hidden=24 --layers=2 --seq-len=60 --steps=12 --log-every=6 --threads=1 --dropout=0.1"
    PATH=$2:$PATH
    export OMP_WAIT_POLICY=passive
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # MPI itself leaks; other tests check for leaks
    train two "$remat" train --devices=cpu:2 --batch=4 && train eight "$remat" train --devices=cpu:2 --batch=8 \
        --deterministic-world || { echo "FAILED: ranks of one machine do not train" >&2; exit 1; }
}

train() {
    name=$1
    shift
    timeout 300 "$@" $model --save="$dir/$name" >"$dir/$name.log" 2>&1
    code=$?
    [ $code = 0 ] || { fail "$name: exit status $code"; tail -20 "$dir/$name.log" >&2; }
    return $code
}

state() { cat "$dir/$1"/step-00000012/model.safetensors "$dir/$1"/step-00000012/optimizer.safetensors 2>/dev/null | sha256sum; }

same() {
    reference=${2:-two}
    if [ -f "$dir/$1"/step-00000012/model.safetensors ] && [ "$(state "$1")" = "$(state "$reference")" ]; then
        echo "$1: the same parameters as $reference, to the last bit"
    else
        fail "$1: parameters differ from $reference"
    fi
}

finish() {
    [ $failures = 0 ] && echo "all the same" || echo "$failures failures" >&2
    [ $failures = 0 ]
    exit
}
