#!/usr/bin/env bash
# check_benches.sh SOURCE BUILD [NAME...]: runs every file of bench/ (or the named ones) at a tiny size, so that broken benchmarks are found
# before somebody needs their numbers. A file without a line here fails the test. Scripts run as copies, beside a link build/release to BUILD.
# If no flag makes a script small enough, constants in the copy are reduced; a pattern that matches nothing fails the test.
#
# Needs a complete build of Remat, which ctest does not ensure. Comparisons with PyTorch run if $REMAT_TORCH_PYTHON, or
# python3, has it; --help of the Python scripts runs if there is a python3.
set -uo pipefail
source=$(realpath "$1") build=$(realpath "$2")
shift 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/build" "$work/out" && cp -r "$source/bench" "$work/bench" && ln -s "$build" "$work/build/release" || exit 1
ln -s "$source/examples" "$source/python" "$source/tests" "$work" && cd "$work" || exit 1
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 XDG_CACHE_HOME=$work/cache

torch=${REMAT_TORCH_PYTHON:-python3}
has() { command -v "$torch" >/dev/null && "$torch" -c "import ${1//,/, }" 2>/dev/null; } # has MODULE,...: by the Python with PyTorch
python3=$(command -v python3)

wanted=("$@") failed=0 skipped=()
declare -A met=()

# begin NAME: whether to run this file
begin() {
    met[$1]=1
    [[ ${#wanted[@]} == 0 || " ${wanted[*]} " == *" $1 "* ]]
}

fail() {
    echo "bench/$1: $2" && [[ ! -s out/log ]] || tail -n 20 out/log
    failed=1
}

# run NAME COMMAND...: the command must exit with 0 and print something
run() {
    local name=$1 status
    shift
    timeout 120 "$@" >out/log 2>&1 </dev/null
    status=$?
    [[ $status == 0 ]] || fail "$name" "'$*' ended with $status:"
    [[ $status != 0 || -s out/log ]] || fail "$name" "'$*' has printed nothing"
}

# program NAME.c NEEDED ARGUMENT...: runs build/release/bench/bench_NAME, which is not built without the library NEEDED ('': always built)
program() {
    local name=$1 needed=$2 file=build/release/bench/bench_${1%.c}
    shift 2
    begin "$name" || return 0
    if [[ -x $file ]]; then
        run "$name" "$file" "$@"
    elif [[ $needed ]]; then
        skipped+=("needs $needed: $name")
    else
        fail "$name" "$file is not built"
    fi
}

# smaller NAME PATTERN...: applies sed patterns to the copy; each must change something
smaller() {
    local name=$1 pattern
    shift
    for pattern in "$@"; do
        sed -E "$pattern" "bench/$name" >out/copy
        cmp -s out/copy "bench/$name" && fail "$name" "sed '$pattern' finds nothing to make smaller"
        cat out/copy >"bench/$name"
    done
}

# script NAME.py MODULES ARGUMENT...: runs --help by python3, and then the script by the Python that has these modules ('': any python3)
script() {
    local name=$1 modules=$2 with=$torch
    shift 2
    begin "$name" || return 0
    if [[ ! $python3 ]]; then
        skipped+=("needs python3: $name")
        return
    fi
    run "$name" "$python3" "bench/$name" --help
    [[ $modules ]] || with=$python3
    if [[ ! $modules ]] || has "$modules"; then
        REMAT_TORCH_PYTHON=$torch run "$name" "$with" "bench/$name" "$@"
    else
        skipped+=("needs Python with $modules: $name, but for --help")
    fi
}

# ---- The programs --------------------------------------------------------------------------------------------------------------------

met[all_reduce.c]=1 met[ddp.c]=1 # by their scripts
met[lifetimes_csv.c]=1 met[lifetimes_csv.h]=1 # of place.c
program buckets.c '' 1 1
program cells.c '' lstm 2 16 8
program cells.c '' lean gru 1 16
program conv.c '' 1 6
program depth.c '' 4 1
program gemm.c OpenBLAS 0.001
program minimal.c '' mingru 2 3 8 16
program recurrences.c '' mamba 2 8 16 2 1
program recurrences.c '' gdn 1 8 6 0 1
program recurrences.c '' slstm 2 8 6 0 1
program recurrences.c '' m2rnn 2 8 6 10MiB 1
program onednn_lstm.c oneDNN 2 16 8
program place.c '' 1 10
program planner.c '' 1 125
program planner.c '' frontier "$source/tests/problems/u_net.problem" 3
program pointwise.c ''
program scan.c '' 2 8 8 1
program spill.c '' "$work/out" 200 1 16 1 1
program vecmath.c libmvec 1000000
if begin pipeline.c; then
    run pipeline.c build/release/bench/bench_pipeline 2 8 100 1
fi
if begin start.c; then
    run start.c build/release/remat launch --nproc-per-node=2 --no-prefix -- build/release/bench/bench_start local
fi

# ---- Scripts of the shell, and of gnuplot ------------------------------------------------------------------------------------------

if begin all_reduce.sh; then run all_reduce.sh bench/all_reduce.sh build/release 2 1; fi
if begin ddp.sh; then
    run ddp.sh bench/ddp.sh build/release 2 1
    ENGINE=nonsense timeout 20 bench/ddp.sh build/release 2 1 >out/log 2>&1 && fail ddp.sh "exits with 0 although its ranks fail"
fi
if begin place.c; then
    printf 'id,lower,upper,size\n1,0,2,4096\n2,1,3,4096\n' >out/two.8192.csv
    run place.c build/release/bench/bench_place out/two.8192.csv
    grep -q '^| two.8192 | 2 | 1.0000 |' out/log || fail place.c "unexpected table:"
fi
if begin gpu.sh; then
    bench/gpu.sh --build=build/release --device=cpu --quick --steps=1 --rows=c --seconds=10 --json=out/gpu.json >out/log 2>&1 </dev/null
    case $? in 0) ;; 77) skipped+=("$(tail -n 1 out/log): gpu.sh") ;; *) fail gpu.sh "it fails:" ;; esac
fi
if begin depth.gp; then
    if command -v gnuplot >/dev/null; then
        build/release/bench/bench_depth 8 1 >out/depth.txt && gnuplot -e "table='out/depth.txt'; picture='out/depth.png'" bench/depth.gp \
            >out/log 2>&1 && [[ -s out/depth.png ]] || fail depth.gp "there is no plot:"
    else
        skipped+=("needs gnuplot: depth.gp")
    fi
fi

# ---- Python ------------------------------------------------------------------------------------------------------------------------

smaller checkpointing.py 's/T=10000/T=200/; s/T=1000\b/T=100/; s/10\*\*6/10**3/; s/T=4000/T=256/' 's/\(128, 256, 512\)/(16,)/' \
    's/H=(128|256)/H=16/' 's/tile=(8|4|16|32|64)\b/tile=16/' 's/\(64, 16, 4\)/(1,)/'
script checkpointing.py '' --tables=headline,lean,million,every-n --rounds=1 --steps=1 --threads=1 --json=out/checkpointing.json
smaller compare_pytorch.py 's/H=[0-9]+, L/H=16, L/; s/T=[0-9]+, segments/T=64, segments/' 's/segments=32/segments=2/'
script compare_pytorch.py torch --rows=b --rounds=1 --steps=1 --threads=1 --json=out/compare.json
smaller contention.py 's/H=[0-9]+, L/H=16, L/; s/T=[0-9]+\)/T=32)/'
script contention.py '' --no-torch --rounds=1 --steps=1 --threads=2 --busy=0,1 --before=build/release/remat --json=out/contention.json
script contention.py torch --rows=a --busy=0 --rounds=1 --steps=1 --threads=1
smaller conv.py 's/\(128, 16, 128, 3, 1, 1\).*/)/; s/^ +\(128, 32, 128.*//'
script conv.py torch --rounds=1 --calls=1 --threads=1
met[gpu.py]=1 met[lifetimes_csv.c]=1 met[lifetimes_csv.h]=1 # by gpu.sh, place.c
script integer_program.py highspy,numpy --budgets=1 --seconds=5 "$source/tests/problems/u_net.problem"
smaller lengths.py 's/2048, 512, 32, 32, 128$/64, 16, 4, 32, 8/'
script lengths.py '' --pairs --rounds=1
script lengths.py torch,numpy --rounds=1
smaller long_tasks.py 's/name, 800/name, 2/; s/--steps=800/--steps=2/' 's/, (1000|500)\)/, 2)/g; s/STEPS = 4000/STEPS = 2/' 's/100000, 0/200, 0/' 's/10000\b/100/g' \
    's/320, 3200/64, 96/g'
script long_tasks.py numpy out/long --only=adding-10k,budget,s5,adding-100k,text --text="$source/README.md"
smaller minimal.py 's/64, 10, 100, 1000, 5$/2, 4, 8, 16, 2/'
script gradients.py torch,numpy --timesteps=16
smaller recurrences.py 's/\(1, 768\)/(1, 32)/g; s/\(1, 2048\)/(1, 64)/; s/\(1, 1024\)\}/(1, 64)}/' 's/, (1024|4096)([,)])/, 16\2/g' \
    's/100000|10\*\*6/64/g' 's/=24, hidden=768, vocab=50280, timesteps=16384, needs=18/=1, hidden=16, vocab=500, timesteps=32, needs=0/'
script recurrences.py '' --rows=mamba-long,mamba-130m,m2rnn-long,mingru --rounds=1 --threads=1
script recurrences.py torch,transformers,mambapy --rows=mamba,m2rnn --rounds=1 --threads=1
script minimal.py '' --million --timesteps=2000 --rounds=1 --threads=1
script minimal.py torch,minGRU_pytorch --rounds=1 --threads=1
script networks.py torch,numpy --tiny --rows=gpt2,unet --rounds=1 --steps=1 --threads=1
script networks.py torch,torchvision,numpy --tiny --rows=resnet18 --rounds=1 --steps=1 --threads=1
smaller predict.py 's/1, 128, 1, 4000/1, 16, 1, 200/'
script ports.py torch,numpy,safetensors --quick --only=nanogpt,pytorch-unet
script predict.py '' --shapes=a --rounds=1 --steps=1 --threads=1
smaller ranks.py 's/H=(128|256|512)/H=16/g; s/T=[0-9]+/T=16/g' 's/ranks=8/ranks=2/'
script python.py torch,numpy --rounds=1 --divide=100 --only=tiny
script python.py torch,torchvision,numpy --rounds=1 --divide=100 --only=GPT
script transformers_models.py torch,transformers,numpy --kind=CAUSAL_LM --model=GPT2LMHeadModel
script ranks.py '' --build=build/release --tables=steps,startup --rounds=1 --steps=1 --json=out/ranks.json
script chaos.py '' --minutes=0 --every=0.4 --hidden=8 --kinds=kill
smaller restarts.py 's/--hidden=64/--hidden=8/'
script restarts.py '' --kills=1 --every=0.4
smaller sweep.py 's/max\(48, min\(2048.*/16/'
script sweep.py torch --batch=1 --hidden=64 --layers=1 --rounds=1 --threads=1
smaller time_to_accuracy.py 's/20$/1/'
script time_to_accuracy.py torch,transformers,safetensors,numpy --cases=gpt --seeds=1 --text="$work/out/text"
smaller verify.py 's/"([a-z]+)", ([0-9]+), [0-9]+, ([0-9]), [0-9]+, /"\1", \2, 8, \3, 100, /'
script verify.py '' --rounds=1 --steps=1 --threads=1
smaller timeline.py 's/[0-9]+, [0-9]+, [0-9]+, "--checkpoint/8, 1, 100, "--checkpoint/'
script timeline.py '' --rounds=1 --steps=2

for file in bench/*.*; do
    file=${file#bench/}
    [[ ${met[$file]:-} || $file == README.md || $file == CMakeLists.txt ]] || fail "$file" "is run by nothing here: give it a line in check_benches.sh"
done
for reason in "${skipped[@]}"; do echo "skipped: ${reason#skipped: }"; done
exit $failed
