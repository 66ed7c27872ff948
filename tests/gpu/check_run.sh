#!/usr/bin/env bash
# check_run.sh BUILD: tests run.sh and bench/gpu.py without a GPU, so that the scripts themselves do not fail on a GPU. The sanitizer's
# parts run stand-ins that pass, find errors, skip, and take too long; offload runs on the CPU; the other parts run on the emulated
# device (BUILD/tests/remat_emulated, emulated_gpu_*), if it was built, once with an op that accesses an illegal address.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
command -v python3 >/dev/null || { echo "skipped: needs python3" && exit 77; }
build=$(realpath "$1")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tests" "$work/bin"

fail() { # fail WHAT: also prints the output
    echo "check_run.sh: $1" && cat "$work/out" && exit 1
}

# ---- The sanitizer's parts, with programs that end as $work/code says -------------------------------------------------------

for program in ops plans; do
    printf '#!/bin/sh\n[ "$1" = --list ] && echo --op=one && exit\nexit "$(cat %s/code)"\n' "$work" >"$work/tests/gpu_test_$program"
done
cat >"$work/sanitizer" <<EOF
#!/usr/bin/env bash
[[ \$1 != --help ]] || { cat $work/help; exit; }
echo "\$*" >>$work/asked
while [[ \$1 == --* ]]; do shift 2; done
exec "\$@"
EOF
chmod +x "$work"/tests/* "$work/sanitizer"

sanitize() { # sanitize CODE FLAGS...: run.sh's exit status
    echo "$1" >"$work/code" && : >"$work/asked"
    shift
    COMPUTE_SANITIZER=$work/sanitizer tests/gpu/run.sh "--build=$work" --device=cpu --parts=memcheck,racecheck "$@" >"$work/out" 2>&1
}

echo '  --kernel-regex-exclude arg' >"$work/help"
sanitize 0 || fail "an old sanitizer does not pass memcheck"
grep -q 'racecheck *skipped .*too old' "$work/out" || fail "the old version is not reported"
[[ $(wc -l <"$work/asked") == 2 && $(grep -c 'tool memcheck' "$work/asked") == 2 ]] || fail "the sanitizer gets unknown flags"
echo '  --kernel-name-exclude arg' >"$work/help"
sanitize 0 || fail "what passes does not pass"
[[ $(wc -l <"$work/asked") == 4 ]] || fail "not each program is run by each tool"
[[ $(grep -c -- '--report-api-errors no --error-exitcode 9' "$work/asked") == 4 ]] || fail "the sanitizer's flags are lost"
[[ $(grep -c -- 'racecheck.*--kernel-name-exclude regex=' "$work/asked") == 2 ]] || fail "libraries' kernels are checked"
grep -q 'memcheck *passed' "$work/out" && grep -q 'racecheck *passed' "$work/out" || fail "the table lacks passed"
sanitize 9 && fail "what the sanitizer finds does not fail"
grep -q 'memcheck *FAILED' "$work/out" && grep -q 'racecheck *FAILED' "$work/out" || fail "the table lacks FAILED"
sanitize 77
[[ $? == 77 ]] || fail "that all is skipped is not said by the exit status"
grep -q 'memcheck *skipped' "$work/out" || fail "the table lacks skipped"
grep -q 'skipped: memcheck, racecheck$' "$work/out" || fail "the last line does not name the skipped parts"
sanitize 0 --minutes=0
[[ $? == 77 ]] || fail "that no time is left is no skip"
grep -q 'racecheck *skipped .*not reached: no time was left$' "$work/out" || fail "the unreached part is not reported"
printf '#!/bin/sh\nexit 124\n' >"$work/bin/timeout" && chmod +x "$work/bin/timeout"
PATH=$work/bin:$PATH sanitize 0
[[ $? == 77 ]] || fail "that time runs out is no skip"
grep -q 'memcheck *skipped.*no time for ops, plans$' "$work/out" || fail "the timeout is not reported"

# ---- The table: skipped parts, and why -------------------------------------------------------------------------------------

rm "$work/bin/timeout"
printf '#!/bin/sh\n[ "$1" = --list ] && echo --cell=one && exit\nexit 77\n' >"$work/tests/gpu_test_plans"
echo 0 >"$work/code"
parts() { tests/gpu/run.sh "--build=$work" --device=cpu "--parts=$1" >"$work/out" 2>&1; }

parts ops,plans || fail "one part that passes and one that is skipped do not pass"
grep -q 'plans *skipped .* 0 of 1 passed; skipped: one$' "$work/out" || fail "the table lacks the reason for a skipped part"
grep -q 'in all: 1 passed; skipped: plans$' "$work/out" || fail "the last line does not count the skipped part"
parts ops || fail "what passes does not pass"
grep -q 'in all: all of it passed$' "$work/out" || fail "the last line does not report success"
echo 3 >"$work/code"
parts ops,plans
[[ $? == 1 ]] || fail "what fails is forgiven for what is skipped"
rm -rf "$work/gpu_logs"
parts ops,plan
[[ $? == 2 ]] || fail "a part that there is not is no wrong flag"
[[ ! -e $work/gpu_logs ]] || fail "parts run before the names of all are looked at"

# ---- A failure does not hide others: an op accesses an illegal address, on the emulated device ---------------------------------

printf '#!/bin/sh\necho "GPU 0: a stand-in"\n[ ! -e %s/one ] && echo "GPU 1: a stand-in"\n:\n' "$work" >"$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
if [[ -x $build/tests/emulated_gpu_ops ]]; then
    for program in versions products nccl cells; do ln -sf "$build/tests/emulated_gpu_$program" "$work/tests/gpu_test_$program"; done
    cat >"$work/tests/gpu_test_plans" <<EOF
#!/bin/sh
case "\$*" in *--list*) $build/tests/emulated_gpu_plans "\$@" | tail -n 1 && exit ;; esac
exec $build/tests/emulated_gpu_plans "\$@"
EOF
    cat >"$work/tests/gpu_test_ops" <<EOF
#!/bin/sh
case "\$*" in *--list*) printf '%s\n' --op=gelu --op=gru --op=softmax_cross_entropy --op=adam --op=hangs && exit ;; esac
case "\$*" in *--op=gru*) export FAKE_BREAK=2 ;; *--op=hangs*) exit 124 ;; esac
exec $build/tests/emulated_gpu_ops "\$@"
EOF
    chmod +x "$work/tests/gpu_test_ops"
    PATH=$work/bin:$PATH OMP_NUM_THREADS=1 tests/gpu/run.sh "--build=$work" --small --parts=versions,products,ops,plans,nccl,cells >"$work/out" 2>&1
    [[ $? == 1 ]] || fail "an op that meets an illegal address does not fail"
    grep -q 'ops *FAILED .* 3 of 5 passed; failed: gru; not done in time: hangs$' "$work/out" || fail "other ops fail with it"
    grep -q 'gru *FAILED: .*a kernel has failed' "$work/out" || fail "the failed op is not named"
    grep -q 'products *passed .* 3 of 3 passed$' "$work/out" || fail "products do not pass"
    grep -q 'plans *passed .* 1 of 1 passed$' "$work/out" || fail "plans do not pass"
    grep -q 'nccl *passed .* 136 collectives of one rank by NCCL.*: 0 failed$' "$work/out" || fail "one rank's collectives do not pass"
    grep -q 'cells *passed .* 2 of 2 passed$' "$work/out" || fail "cells are not timed"
    grep -q 'as in training .* rebuild .* us a timestep$' "$work/out" || fail "cells have no times"
    grep -q '^opened .*fake.*driver for CUDA\|^opened .*fake.*cuBLASLt 130000.*cuDNN.*NCCL' "$work/out" || fail "no file has a version"
    "$build/tests/emulated_gpu_ops" --list >"$work/list" && grep -qx -e --op=lstm "$work/list" && grep -qx -e --op=adam "$work/list" ||
        fail "the list of ops is not complete"
fi

# ---- Offload on the CPU ------------------------------------------------------------------------------------------------------

if [[ -x $build/remat ]]; then
    tests/gpu/run.sh "--build=$build" --device=cpu --parts=offload >"$work/out" 2>&1 || fail "offload fails on the CPU"
    grep -q 'offload *passed' "$work/out" || fail "offload does not pass on the CPU"
fi
# ---- Ranks: on processors, and on two emulated GPUs over the emulated NCCL ---------------------------------------------------

if [[ -x $build/remat ]]; then
    tests/gpu/run.sh "--build=$build" --device=cpu --parts=ranks >"$work/out" 2>&1 || fail "ranks fail on processors"
fi
ranks() { PATH=$work/bin:$PATH tests/gpu/run.sh "--build=$work" --small --parts=ranks >"$work/out" 2>&1; }
printf '#!/bin/sh\nfor a; do case $a in --metrics=*) m=${a#*=} ;; --zero=1) echo "rank 1: a last word" && exit 1 ;; esac; done
echo >"$m.rank0" && echo >"$m.rank1"\n' >"$work/remat" && chmod +x "$work/remat"
ranks && fail "ranks that do not train do not fail"
grep -q "ranks *FAILED .*optimizer state" "$work/out" || fail "the failed run is not named"
if [[ -x $build/tests/remat_emulated ]]; then
    ln -sf "$build/tests/remat_emulated" "$work/remat"
    OMP_NUM_THREADS=1 ranks || fail "ranks fail on emulated GPUs"
    grep -q '2 ranks over nccl' "$work/out" || fail "two ranks do not use NCCL"
    grep -q 'ranks *passed .* both ranks have the same bits' "$work/out" || fail "ranks do not pass on emulated GPUs"
fi
touch "$work/one"
ranks
[[ $? == 77 ]] || fail "two ranks on one GPU are not skipped"
grep -q 'ranks *skipped .*two GPUs.* 1$' "$work/out" || fail "the reason is not reported"

# ---- The bench: without Python, and on the emulated device ------------------------------------------------------------------

REMAT_TORCH_PYTHON=$work/no_python bench/gpu.sh "--build=$work" --device=cpu >"$work/out" 2>&1
[[ $? == 77 ]] || fail "the bench without Python is no skip"
grep -q "^skipped: .*Python 3.*$work/no_python" "$work/out" || fail "the reason is not reported"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=bench python3 >"$work/out" 2>&1 <<'EOF' || fail "the bench's PyTorch is not at its best, or its rows are out of order"
import gpu, types
plain, chunked = gpu.torch_ways(types.SimpleNamespace(torch=True, quick=True), gpu.ROWS["c"], "fp32")
assert plain == ("PyTorch", 2, False) and chunked[1:] == (316, True), (plain, chunked)  # T 100,000: two calls without repetition
assert [gpu.fewest_calls(T) for T in (1, 65535, 65536, 131071)] == [1, 1, 2, 3]
assert list(gpu.ROWS) == ["c", "b", "a"]
EOF
if [[ -x $build/tests/remat_emulated ]]; then
    FAKE_LT=16 python3 bench/gpu.py --device=cuda --tiny --quick --rows=a --precisions=bf16 --cap=0.5 --seconds=200 \
        --longest-seconds=5 "--python=$(command -v python3)" "--remat=$build/tests/remat_emulated" "--json=$work/bench.json" \
        >"$work/out" 2>&1 || fail "the bench fails on the emulated device"
    grep -m 1 -A1 '^|---' "$work/out" | tail -n 1 | grep -q '| Remat, kept' || fail "the bench does not start with the most important row"
    grep -q '| bf16 | Remat, kept ([0-9]* of [0-9]* products in fp32) |' "$work/out" || fail "the bench lacks its first row"
    if grep -q 'memory is not measured' "$work/out"; then
        python3 - "$work/bench.json" <<'EOF' || fail "what the process takes of the host is taken for the GPU's memory"
import json, sys
with open(sys.argv[1]) as file:
    samples = [sample for row in json.load(file)["steps"] for way in row["samples"].values() for sample in way]
assert samples and not any(sample.get("bytes") for sample in samples), samples
EOF
    fi
fi
# ---- Networks on the emulated device ---------------------------------------------------------------------------------------

if [[ -x $build/tests/remat_emulated ]] && python3 -c 'import numpy' 2>/dev/null; then
    OMP_NUM_THREADS=1 python3 bench/networks.py --device=cuda --tiny --rows=unet,gpt2 --precisions=bf16 --rounds=1 --steps=1 \
        "--python=$(command -v python3)" "--remat=$build/tests/remat_emulated" >"$work/out" 2>&1 ||
        fail "networks do not train on the emulated device"
    grep -q '^| unet, bf16 |' "$work/out" && grep -q '^| gpt2, bf16 |' "$work/out" || fail "a network has no table"
    [[ $(grep -m 2 '^| Remat,' "$work/out" | grep -c 'all kept') == 2 ]] || fail "a network's most important row is missing, or late"
fi
echo "the scripts work"
