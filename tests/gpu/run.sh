#!/usr/bin/env bash
# run.sh: all tests of CUDA that need a GPU, in one command and under ten minutes; ends with a short table.
#
#   tests/gpu/run.sh [--parts=versions,products,ops,plans,nccl,networks,bench,cells,offload,ranks,memcheck,racecheck]
#                    [--build=DIR] [--minutes=10]
# The most informative parts come first:
#   versions    driver, runtime and libraries, and their opened files (test_versions.c); PyTorch
#   products    matrix products in every precision: near those in double, rows that keep their bits, speeds (test_products.c)
#   ops         every op and optimizer on the GPU against its definition on the CPU (test_ops.c)
#   plans       the same bits for every plan: recurrent networks, a ResNet, a U-Net and a GPT (test_plans.c)
#   nccl        every collective of a group of one rank, through the real library (test_nccl.c)
#   networks    bench/gpu.sh --networks: ResNet-50, a GPT-2 and a U-Net compared with PyTorch on the same GPU
#   bench       bench/gpu.sh: LSTMs' steps, memory and the longest sequence, likewise
#   cells       the parts of a recurrent layer's time, in microseconds per timestep (test_cells.c)
#   offload     training under a cap that its activations exceed: they move to the host and back, the losses do not change
#   ranks       two ranks on two GPUs over NCCL: each has the same gradients, twice the same bits, and the losses of one rank
#               with both batches; also with a sharded optimizer state; and as a pipeline, with the bits of one rank. Skipped
#               with fewer GPUs
#   memcheck, racecheck   compute-sanitizer on small cases of ops and plans
# The two benches leave time for the parts after them. If a GPU is there for a quarter of an hour only, two calls see the most:
# --parts=versions,products,ops,plans,networks first, then what failed, racecheck and bench. All output goes to stdout, too.
# A failing kernel makes the GPU unusable for its process. So products, ops, plans and cells run one process for each line of their
# program's --list, each limited to two minutes: a failure does not hide others. The table lists for each part the failed and the
# unreached lines.
# Builds build/gpu-8.6 (named after the first GPU's compute capability), unless --build names a finished build. Without a GPU it prints
# one line and exits with 77; also with 77 if every part was skipped. The output of each part is in DIR/gpu_logs. --device=cpu tests
# this script without a GPU, with COMPUTE_SANITIZER, if set, instead of compute-sanitizer; --small makes networks and calls small
# (as in check_run.sh).
set -uo pipefail
shopt -s extglob
start=$SECONDS
cd "$(dirname "$0")/../.." || exit 1

all_parts=versions,products,ops,plans,nccl,networks,bench,cells,offload,ranks,memcheck,racecheck
parts=$all_parts build='' minutes=10 device=cuda small=''
for argument in "$@"; do
    case $argument in
    --parts=*) parts=${argument#*=} ;;
    --build=*) build=${argument#*=} ;;
    --minutes=*) minutes=${argument#*=} ;;
    --device=*) device=${argument#*=} ;;
    --small) small=1 ;;
    *) echo "run.sh: $argument is not a flag; use --parts, --build or --minutes" >&2 && exit 2 ;;
    esac
done

for part in ${parts//,/ }; do
    [[ ,$all_parts, == *,"$part",* ]] || { echo "run.sh: there is no part $part; use $all_parts" >&2 && exit 2; }
done
[[ ${parts//,/} ]] || { echo "run.sh: --parts is empty; use $all_parts" >&2 && exit 2; }

there_is_a_gpu() {
    compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ $(nvidia-smi -L 2>/dev/null) ]]
}
if [[ $device == cuda ]] && ! there_is_a_gpu; then
    echo "skipped: there is no NVIDIA GPU on this machine"
    exit 77
fi

# ---- Parts: the last printed line of each goes into the table --------------------------------------------------------------

wants() { [[ ,$parts, == *,$1,* ]]; }

# Seconds that parts leave for the benches and the parts after them.
behind_s=0 networks_s=0 bench_s=0 each_s=120
for part in cells offload ranks memcheck racecheck; do wants $part && ((behind_s += 25)); done
wants networks && networks_s=120
wants bench && bench_s=90

left() { echo $((60 * minutes - (SECONDS - start))); }

limited() { timeout -k 5 "$each_s" "$@"; }

number_of() { # number_of NAME FILE: from the first event that contains NAME
    sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$2" | head -n 1
}

listed() { # listed WORD NAMES: " WORD: NAMES" if there are any
    [[ ! $2 ]] || printf '; %s:%s' "$1" "${2%,}"
}

# each PROGRAM FLAGS...: runs the program once for each line of its --list, in separate processes. The last line names the failed, the
# late and the unreached ones.
each() {
    local program=$build/tests/gpu_test_$1 flags name limit code passed=0 all=0 failed='' late='' unreached='' skipped='' list
    shift
    list=$("$program" --list "$@") || { echo "$list" && return 1; }
    while read -r flags; do
        ((all += 1))
        name=${flags//--+([a-z])=/} limit=$(($(left) - networks_s - bench_s - behind_s))
        ((limit > 0)) || { unreached+=" $name," && continue; }
        echo "-- $name"
        # shellcheck disable=SC2086 # several flags per line
        timeout -k 5 $((limit < each_s ? limit : each_s)) "$program" "--device=$device" "$@" $flags </dev/null
        code=$?
        case $code in
        0) ((passed += 1)) ;;
        77) skipped+=" $name," ;;
        124 | 137) late+=" $name," ;;
        *) failed+=" $name," ;;
        esac
    done <<<"$list"
    echo "$passed of $all passed$(listed failed "$failed")$(listed 'not done in time' "$late")$(listed 'not reached' "$unreached")$(
        listed skipped "$skipped")"
    [[ ! $failed$late ]] || return 1
    ((passed)) || return 77
}
small_flag=()
[[ ! $small ]] || small_flag=(--small)

part_versions() {
    nvidia-smi --query-gpu=name,driver_version,vbios_version,compute_cap,memory.total,clocks.max.sm,power.limit --format=csv \
        2>/dev/null
    nvcc --version 2>/dev/null | tail -n 2
    timeout -k 5 60 python3 -c 'import torch
print("PyTorch", torch.__version__, "with CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), "NCCL",
      torch.cuda.nccl.version() if torch.cuda.is_available() else "not asked")' 2>&1 | tail -n 1
    limited "$build/tests/gpu_test_versions" "--device=$device"
}
part_products() { each products "${small_flag[@]}"; }
part_ops() { each ops "${small_flag[@]}"; }
part_plans() { if [[ $device == cuda ]]; then each plans "${small_flag[@]}"; else each plans --small; fi; }
part_nccl() { limited "$build/tests/gpu_test_nccl" "--device=$device"; }
part_cells() { each cells "${small_flag[@]}"; }

part_offload() {
    local shape=(--hidden=512 --seq-len=5000 --batch=32 --tile=16) work=$build/gpu_logs/offload
    [[ $device == cuda ]] || shape=(--hidden=64 --seq-len=1000 --batch=8 --tile=16)
    local flags=("--device=$device" --model=lstm --layers=1 --embed=64 "${shape[@]}" --optimizer=sgd --lr=0.1 --seed=1
        --data=examples/data/shakespeare.txt)
    mkdir -p "$work" && rm -f "$work"/*.jsonl
    limited "$build/remat" plan "${flags[@]}" --json >"$work/plan.json" || return 1
    local activations all libraries cap
    activations=$(number_of activations_peak_bytes "$work/plan.json")
    all=$(number_of budgeted_bytes "$work/plan.json")
    libraries=$(number_of workspace_bytes "$work/plan.json") # CUDA's context and so on, which depend on the GPU
    cap=$((all - activations * 2 / 3))
    limited "$build/remat" train "${flags[@]}" --steps=3 --metrics="$work/kept.jsonl" || return 1
    limited "$build/remat" train "${flags[@]}" --steps=3 --metrics="$work/capped.jsonl" --memory-budget="$cap" --recompute=off \
        --spill="$work" --calibration=off || return 1
    "$build/remat" report --require-identical "$work/kept.jsonl" "$work/capped.jsonl" || return 1
    local moved planned
    moved=$(number_of spill_bytes "$work/capped.jsonl")
    planned=$(number_of budgeted_bytes "$work/capped.jsonl")
    ((activations > cap - libraries && planned <= cap && moved > 0)) ||
        { echo "activations $activations, cap $cap, of which for libraries $libraries, planned $planned, moved $moved: not what" \
            "was to be shown"; return 1; }
    echo "$((activations >> 20)) MiB of activations within $(((cap - libraries) >> 20)) MiB beside the libraries', same losses"
}

gpus() { # how many this process may use
    if [[ ${CUDA_VISIBLE_DEVICES+set} ]]; then tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES"; else
        nvidia-smi -L 2>/dev/null || compgen -G '/dev/nvidia[0-9]*'
    fi | grep -c .
}

last_loss() { sed -n 's/.*"event":"end".*"loss":\([-+.e0-9]*\),.*/\1/p' "$1"; }

near() { # near A B: two losses, to a ten-thousandth
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 > 0 && b + 0 > 0 && a - b <= 1e-4 * b && b - a <= 1e-4 * b) }'
}

# Losses and norms of every step. A rank computes the norm of the gradients that it has itself.
losses_and_norms() { sed -n 's/.*"event":"step",\(.*"grad_norm":[^,]*\),.*/\1/p' "$1"; }

part_ranks() {
    local two=--devices=0,1 one=--devices=0 work=$build/gpu_logs/ranks run loss alone missing
    if [[ $device != cuda ]]; then two=--devices=cpu:2 one=--device=cpu; elif (($(gpus) < 2)); then
        echo "two ranks need two GPUs, and this process sees $(gpus)" && return 77
    fi
    local shape=(--hidden=256 --seq-len=200 --tile=32 --bucket-cap-mb=0.5 --steps=20)
    [[ $device == cuda && ! $small ]] || shape=(--hidden=32 --seq-len=24 --tile=8 --bucket-cap-mb=0.01 --steps=6)
    local flags=(--task=adding --layers=2 "${shape[@]}" --samples=4000 --seed=3 --optimizer=adamw)
    rm -rf "$work" && mkdir -p "$work"
    for run in first again; do
        limited "$build/remat" train "${flags[@]}" --batch=16 "$two" --metrics="$work/$run" --metrics-per-rank \
            --dump-grads="$work/$run.safetensors" 2>&1 | tee "$work/$run.out"
        missing=$(grep -m 1 -oE 'ranks on GPUs need (lib|NCCL).*' "$work/$run.out")
        [[ ! $missing ]] || { echo "$missing" && return 77; }
        [[ -s $work/$run.rank0 && -s $work/$run.rank1 ]] || { echo "two ranks did not train" && return 1; }
    done
    limited "$build/remat" train "${flags[@]}" --batch=16 "$two" --metrics="$work/shared" --zero=1 ||
        { echo "two ranks with a sharded optimizer state did not train" && return 1; }
    limited "$build/remat" train "${flags[@]}" --batch=32 "$one" --metrics="$work/alone" ||
        { echo "one rank did not train" && return 1; }
    limited "$build/remat" train "${flags[@]}" --batch=32 "$two" --pipeline=2 --metrics="$work/parts" ||
        { echo "two ranks did not train as a pipeline" && return 1; }
    cmp <(losses_and_norms "$work/alone") <(losses_and_norms "$work/parts") ||
        { echo "losses or gradient norms of a pipeline are not those of one rank" && return 1; }
    for run in first.rank1 again.rank0 again.rank1; do
        cmp <(losses_and_norms "$work/first.rank0") <(losses_and_norms "$work/$run") ||
            { echo "losses or gradient norms of $run are not those of first.rank0" && return 1; }
    done
    cmp "$work/first.safetensors" "$work/again.safetensors" || { echo "the second run has different gradients" && return 1; }
    alone=$(last_loss "$work/alone")
    for run in first.rank0 shared; do
        loss=$(last_loss "$work/$run")
        near "$loss" "$alone" || { echo "the loss of $run ends at $loss, that of one rank at $alone" && return 1; }
    done
    echo "both ranks have the same bits, twice, and a pipeline those of one rank; losses end at $loss, one rank's at $alone"
}

# Failing queries of CUDA's own runtime are not errors of Remat, and kernels of libraries are not checked for races. A racecheck of
# everything takes long: each run gets its share of the remaining time.
sanitize() { # sanitize memcheck|racecheck
    local sanitizer tool=$1 program limit code runs=2 unfinished='' options
    local library='regex=gemm|gemv|cutlass|nvjet|xmma|cublas|N5cudnn|RNNcell|LSTM_|GRU_|RNN_'
    sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null |
        head -n 1)}
    [[ $sanitizer ]] || { echo "compute-sanitizer is not installed" && return 77; }
    [[ $device == cuda || ${COMPUTE_SANITIZER-} ]] || { echo "compute-sanitizer is for GPUs" && return 77; }
    options=(--tool "$tool" --report-api-errors no --error-exitcode 9)
    if [[ $tool == racecheck ]]; then
        "$sanitizer" --help 2>/dev/null | grep -e '--kernel-name-exclude' >/dev/null ||
            { echo "this compute-sanitizer is too old for racecheck: it has no --kernel-name-exclude" && return 77; }
        options+=(--kernel-name-exclude "$library")
    fi
    for program in ops plans; do
        limit=$((($(left) - ($(wants racecheck && [[ $tool == memcheck ]] && echo 25 || echo 0))) / runs--))
        ((limit > 0)) || { unfinished+=" $program," && continue; }
        timeout -k 5 "$limit" "$sanitizer" "${options[@]}" "$build/tests/gpu_test_$program" "--device=$device" --small
        code=$?
        case $code in
        0) ;;
        77) return 77 ;;
        124 | 137) unfinished+=" $program," ;;
        *) echo "$tool of $program ended with $code; its findings are above$(listed 'not reached' "$unfinished")" && return 1 ;;
        esac
    done
    [[ ! $unfinished ]] || { echo "nothing found, but there was no time for${unfinished%,}" && return 77; }
    echo "nothing found"
}
part_memcheck() { sanitize memcheck; }
part_racecheck() { sanitize racecheck; }

part_bench() {
    local seconds=$(($(left) - behind_s - 30)) log=$build/gpu_logs/bench.out
    ((seconds > 30)) || { echo "no time is left for it: bench/gpu.sh runs it alone" && return 77; }
    bench/gpu.sh "--build=$build" "--device=$device" --quick "--seconds=$seconds" "--json=$build/gpu_logs/bench.json" | tee "$log"
    local code=${PIPESTATUS[0]} unreached
    ((code == 0)) || return "$code"
    unreached=$(sed -n 's/^(not reached: \(.*\))$/\1/p' "$log")
    echo "its tables are above${unreached:+; not reached: $unreached}"
}

part_networks() {
    local seconds=$(($(left) - bench_s - behind_s - 30)) small_sizes=()
    ((seconds > 30)) || { echo "no time is left for it: bench/gpu.sh --networks runs it alone" && return 77; }
    [[ ! $small ]] || small_sizes=(--tiny)
    bench/gpu.sh "--build=$build" --networks "--device=$device" --rounds=1 "--seconds=$seconds" "${small_sizes[@]}" \
        "--json=$build/gpu_logs/networks.json" || return
    echo "its tables are above"
}

build_all() {
    scripts/setup.sh && cmake --preset release -B "$build" -DREMAT_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native \
        -DREMAT_EXAMPLES=OFF -DREMAT_BENCH=OFF &&
        cmake --build "$build" --target remat_program gpu_test_{versions,products,ops,plans,nccl,cells}
}

# ---- Running them ----------------------------------------------------------------------------------------------------------

rows=() passed=0 skipped='' failed=0
run_part() { # run_part NAME COMMAND...
    local name=$1 began=$SECONDS log code word width=300 last
    log=$build/gpu_logs/$name.log
    shift
    echo "--- $name"
    "$@" 2>&1 | tee "$log" # a process substitution would not be waited for
    code=${PIPESTATUS[0]}
    case $code in
    0) word=passed ;;
    77) word=skipped skipped+=" $name," ;;
    124 | 137) word=FAILED failed=1 && echo "it was not done in time; its output so far is above" | tee -a "$log" ;;
    *) word=FAILED failed=1 ;;
    esac
    [[ $code != 0 || $name == build ]] || ((passed += 1)) # a build is not a test
    last=$(tail -n 1 "$log")
    last=${last#skipped: }
    rows+=("$(printf '%-10s %-8s %5d s   %.*s' "$name" "$word" $((SECONDS - began)) $width "${last:-it printed nothing}")")
    return $code
}

verdict() { # the result in words, like exit_status
    local missing=${skipped:+; skipped:${skipped%,}}
    if ((failed)); then echo "FAILED$missing"; elif ((!passed)); then echo "nothing was tested$missing"; elif [[ $missing ]]; then
        echo "$passed passed$missing"
    else echo 'all of it passed'; fi
}
exit_status() { if ((failed)); then echo 1; elif ((passed)); then echo 0; else echo 77; fi; }

if [[ ! $build ]]; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -xm 1 '[0-9]*\.[0-9]*')
    build=$PWD/build/gpu${capability:+-$capability}
    mkdir -p "$build/gpu_logs"
    run_part build build_all || { printf '\n%s\n' "${rows[@]}" && exit 1; }
fi
build=$(realpath "$build")
mkdir -p "$build/gpu_logs"
out_of_time() { echo 'not reached: no time was left' && return 77; }
for part in ${parts//,/ }; do
    case $part in # a part that begins needs no more time left for it
    networks) networks_s=0 ;;
    bench) bench_s=0 ;;
    cells) ((behind_s -= 25)) ;;
    esac
    if (($(left) > 0)); then run_part "$part" "part_$part"; else run_part "$part" out_of_time; fi
done
card=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
printf '\n%s\n' "${card:-device $device}"
printf '%s\n' "${rows[@]}"
echo "$((SECONDS - start)) s in all: $(verdict)"
exit "$(exit_status)"
