#!/bin/bash
# Builds, tests and measures the backend nccl on a machine with a GPU, nvcc (for its headers), cmake
# and pip's torch, whose NCCL is used where no other is installed. Downloads and installs nothing.
#   tests/gpu/run.sh [--deps FOLDER] [build folder]
#   tests/gpu/run.sh --build-only [--deps FOLDER] [build folder]
#   tests/gpu/run.sh --built [build folder]
#   tests/gpu/run.sh --fakes BUILD_FOLDER
#   --limit SECONDS: of all of it together; 535   --step SECONDS: of one step at most
# --deps: what tests/gpu/pack.sh collected on a Debian 12; without it, the packages of deploy/packages.sh
# must be here. --build-only needs no GPU. --built: only the GPU's steps, with what --build-only made,
# on this machine or on one whose glibc is no newer. --fakes: the same steps on the fakes of CUDA and NCCL, as far as these can, with what
# is built already. Several ranks share one GPU where there is only one: then their times say nothing
# about bandwidth. What does not fit into the limit is left out, and named.
# Exit status 77: this machine cannot; the reason is said.
set -u
cd "$(dirname "$0")/../.." || exit 1
for bin in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do  # nvcc, for libtorch's cmake files too
  [ ! -d "$bin" ] || PATH=$PATH:$bin
done

deps='' fakes='' build_only='' built=''
limit=535  # Seconds that all of it may take.
step_limit=150
while [ $# -gt 0 ]; do
  case $1 in
    --deps) deps=$(realpath "${2:?which folder?}") || exit 2; shift 2 ;;
    --fakes) fakes=yes; shift ;;
    --build-only) build_only=yes; shift ;;
    --built) built=yes; shift ;;
    --step) step_limit=${2:?how many seconds?}; shift 2 ;;
    --limit) limit=${2:?how many seconds?}; shift 2 ;;
    -*) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
done
build=$(realpath -m "${1:-build/gpu}")

skip() { echo "skipped: $*"; exit 77; }
failed=0
fail() { failed=1; echo "FAILED: $*"; }
say() { echo "== ${SECONDS} s: $*"; }

have_torch=''
find_torch() {  # pip's, if it is one for CUDA
  local found
  found=$(python3 -c '
import os, torch
assert torch.version.cuda
print(torch.utils.cmake_prefix_path, os.path.dirname(torch.__file__), torch.__version__)') 2> /dev/null ||
    return 0
  read -r torch_cmake torch_folder torch_version <<< "$found"
  have_torch=yes
  # There the SDK finds CUDA and NCCL if they are installed nowhere else.
  export PYTHONPATH=${torch_folder%/torch}${PYTHONPATH:+:$PYTHONPATH}
  # The same NCCL for us and for PyTorch, which we are compared with.
  local nccl=${torch_folder%/torch}/nvidia/nccl/lib/libnccl.so.2
  [ ! -e "$nccl" ] || export DDPRUN_NCCL_LIB=${DDPRUN_NCCL_LIB:-$nccl}
  PYTHON_EXEC=$(command -v python3)
  export PYTHON_EXEC
}

configure() {  # [torch]
  local options=(-DCMAKE_BUILD_TYPE=Release -DDDPRUN_BUILD_BENCH=ON)
  command -v ninja > /dev/null && options+=(-G Ninja)
  if [ -n "${1:-}" ]; then
    # The library by name: another one may be installed. The architectures: so that nothing is tried out.
    options+=(-DCMAKE_PREFIX_PATH="$torch_cmake" -DTORCH_CUDA_ARCH_LIST="8.0;9.0"
      -Dc10_LIBRARY="$torch_folder/lib/libc10.so" -DTORCH_LIBRARY="$torch_folder/lib/libtorch.so")
    local headers=${torch_folder%/torch}/nvidia/nccl/include
    [ ! -e "$headers/nccl.h" ] || options+=(-DDDPRUN_NCCL_INCLUDE_DIR="$headers")
  else
    options+=(-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON)
  fi
  if [ -n "$deps" ]; then options=(-C "$deps/pack.cmake" "${options[@]}"); fi
  cmake -S . -B "$build" "${options[@]}" > "$build.log" 2>&1
}

# Without torch there is still the rest.
drop_torch() {  # WHY LOG
  fail "libtorch: $1"
  tail -15 "$2"
  have_torch=''
  rm -f "$build/CMakeCache.txt"
  configure
}

fake_tests=(gpu_runtime_test gpu_kernels_test nccl_group_test nccl_failure_test nccl_ddp_test nccl_death_test)
build_with() {  # [torch]
  local targets=(ddprun_program ddprunctl ddprun_c all_reduce nccl_worker nccl_gradients nccl_collectives elastic_worker bench_nccl_overhead
    bench_gpu_sync_truth "${fake_tests[@]}")
  [ -z "${1:-}" ] || targets+=(train bench_ddp_overhead)
  if cmake --build "$build" --target help | grep -q gpu_abi_test; then targets+=(gpu_abi_test); fi
  cmake --build "$build" -j"$(nproc)" --target "${targets[@]}" > "$build.make.log" 2>&1
}

build_all() {
  if ! configure "$have_torch"; then
    if [ -z "$have_torch" ] || ! drop_torch "cmake cannot use it" "$build.log"; then
      tail -15 "$build.log"
      skip "cmake finds not all that ddprun is built on (see --deps)"
    fi
  fi
  say "configured"
  build_with "$have_torch" && return
  if [ -n "$have_torch" ] && drop_torch "what is built on it fails" "$build.make.log"; then
    build_with && return
  fi
  grep -A5 -m3 -E 'error|FAILED' "$build.make.log"
  exit 1
}

# check SECONDS COMMAND...: at most so long, and only if there is time for it.
check() {
  local most=$1 left=$((limit - SECONDS)) got=0
  shift
  [ "$most" -le "$step_limit" ] || most=$step_limit
  if [ "$left" -lt $((most / 4)) ]; then
    echo "left out, for want of time: $*"
    return
  fi
  say "$*"
  timeout -k 5 $((most < left ? most : left)) "$@" || got=$?
  if [ "$got" = 124 ] && [ "$left" -lt "$most" ]; then
    echo "left out, for want of time, after $left s: $*"
  elif [ "$got" != 0 ]; then
    fail "$*"
  fi
}

# The made-up classes are easy: who learns nothing has wrong gradients.
check_learns() {  # SECONDS COMMAND...
  check "$@" | tee "$build.train.log"
  ! grep -q ^FAILED "$build.train.log" || failed=1
  grep -qE 'left out|test accuracy +(9[0-9]|100)\.' "$build.train.log" || fail "train learns nothing"
}

# What the report says of gradients: ranks that share a GPU take turns on it, by 2 ms at least.
check_report() {  # SECONDS COMMAND...
  check "$@" | tee "$build.report.log"
  ! grep -q ^FAILED "$build.report.log" || failed=1
  awk '/^rank +wall s/ { for (i = 4; i <= NF; ++i) column[i - 1] = $i }
    /^0 / && !ms { for (i = 4; i <= NF; ++i) if (column[i] ~ /waiting|transfer|unknown/) ms += $i / 100 * $2 / $3 * 1000
      printf "gradients, by the report: %.2f ms a step\n", ms }
    END { exit !(ms > '${#share[@]}') }' "$build.report.log" || grep -q 'left out' "$build.report.log" ||
    fail "the report knows nothing of the time that gradients take"
}

# Rank 1 of 3 falls out in mid-all-reduce: dies, dies but for its connections, is stopped. How long
# until the others throw; and how long two groups take to join, the first time and after a restart.
lose() {  # HOW EXIT_STATUS AFTER [flags of ddprun]
  local how=$1 want=$2 after=$3 got=0 told
  shift 3
  say "rank 1: $how${after:+, the others go on: $after}"
  timeout 60 "$build/bin/ddprun" "${share[@]}" --nproc-per-node 3 --shutdown-timeout 5 "$@" \
    "$build/tests/nccl_worker" 50 "$how" 5 "$after" > "$build.$how.log" 2>&1 || got=$?
  grep -hE '^\[default[0-9]\]:rank [0-9]+: (peer|joined|goes)' "$build.$how.log"
  [ -z "$after" ] || [ "$(grep -c 'with 2 ranks after .* and sums are right' "$build.$how.log")" = 2 ] ||
    fail "the others do not go on"
  told=$(grep -cE '^\[default[02]\]:rank [02]: peer 1, waited' "$build.$how.log")
  if [ "$got" != "$want" ] || [ "$told" != 2 ]; then
    fail "exit status $got, not $want; $told of 2 ranks were told of rank 1"
    tail -20 "$build.$how.log"
  fi
  grep -hoE '^\[default[0-9]\]:rank [02]: peer 1, waited [0-9]+ ms' "$build.$how.log" |
    sed "s/^[^:]*:/| $how | /; s/: peer 1, waited / throws | /; s/\$/ |/" >> "$figures"
  grep -hoE '^\[default[0-9]\]:rank [02]: goes on with 2 ranks after [0-9]+ ms' "$build.$how.log" |
    sed "s/^[^:]*:/| $how, $after | /; s/: goes on with 2 ranks after / sums without it after | /; s/\$/ |/" >> "$figures"
  grep -hoE '^\[default[0-9]\]:rank [0-9]+: joined twice in [0-9]+ ms, restart [0-9]+' "$build.$how.log" |
    sed -E "s/^[^:]*:(rank [0-9]+): joined twice in ([0-9]+ ms), (restart [0-9]+)/| $how, \\3 | \\1 joins two groups | \\2 |/" \
      >> "$figures"
}

# Rank 1 of an elastic job dies in its seventh step. The others go on, a replacement comes, and all have what one rank
# alone has on the host after as many steps.
go_on_elastically() {
  say "rank 1 of an elastic job dies"
  local folder=$build.elastic steps alone
  rm -rf "$folder"
  mkdir "$folder"
  # shellcheck disable=SC2016  # The worker's shell is to see them.
  local worker='export RESULT=$1/result.$RANK
    if [ "$RANK" = 1 ] && mkdir "$1/died" 2> /dev/null; then export DIE=reduced:7; fi
    exec "$2"'
  export STEPS=40 LIFE=1 WEIGHTS=100000
  LIVES=3 BACKEND=nccl timeout 60 "$build/bin/ddprun" "${share[@]}" --nproc-per-node 3 --max-restarts 5 \
    --no-python bash -c "$worker" worker "$folder" "$build/tests/elastic_worker" > "$folder/log" 2>&1 ||
    fail "the elastic job's exit status is $?"
  read -r steps _ < "$folder/result.0"
  LIVES=0 STEPS=$steps BACKEND=gloo RESULT=$folder/alone timeout 60 "$build/bin/ddprun" --nproc-per-node 1 \
    "$build/tests/elastic_worker" >> "$folder/log" 2>&1
  alone=$(cut -d' ' -f1,2 "$folder/alone")
  if [ -d "$folder/died" ] && [ "$(cut -d' ' -f1,2 "$folder"/result.* | sort | uniq -c)" = "      3 $alone" ]; then
    echo "3 ranks, of which one was replaced, have the state of one on the host: $alone"
  else
    fail "not the state of one on the host, $alone:"
    tail -20 "$folder/log" "$folder"/result.*
  fi
}

# What NCCL itself reports of a job at work, as ddprunctl shows it.
ask_ras() {
  say "ddprunctl ras"
  # Where ranks share a GPU, ddprun turns it off.
  NCCL_RAS_ENABLE=1 timeout 40 "${two[@]}" --rdzv-id gpu-ras "$build/tests/nccl_worker" 1000000 die > "$build.ras.log" 2>&1 &
  local job=$! i
  for i in $(seq 20); do
    sleep 0.5
    [ "$(grep -c 'joined twice' "$build.ras.log")" = 2 ] && break
  done
  timeout 20 "$build/bin/ddprunctl" ras --run gpu-ras --timeout 10 || fail "ddprunctl ras"
  kill -TERM "$job"
  wait "$job"
}

if [ -n "$fakes" ]; then
  [ -x "$build/bin/bench_nccl_overhead" ] || skip "$build is not built, or without benchmarks"
  export DDPRUN_CUDART_LIB=$build/tests/libfake_cudart.so DDPRUN_NCCL_LIB=$build/tests/libfake_nccl.so
  export DDPRUN_CUDA_LIB=$DDPRUN_CUDART_LIB DDPRUN_GPU_KERNELS=$build/tests/fake_kernels
  card='fakes of CUDA and NCCL' gpus=8 rounds=1
  ours=$(mktemp -d)
  trap 'rm -rf "$ours"' EXIT
  figures=$ours/figures
else
  [ -n "$built" ] || command -v cmake > /dev/null || skip "there is no cmake"
  [ -z "$built" ] || [ -x "$build/bin/bench_nccl_overhead" ] || skip "$build is not built (--build-only)"
  card='no GPU' gpus=0 rounds=20
  if [ -z "$build_only" ]; then
    nvidia-smi -L 2> /dev/null | grep -q GPU || skip "nvidia-smi finds no GPU"
    card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
    gpus=$(nvidia-smi -L | grep -c '^GPU')
  fi
  find_torch
  [ -n "$built$deps" ] || [ -e /usr/include/gloo/context.h ] || skip "libgloo-dev is not installed (see --deps)"
  mkdir -p "$(dirname "$build")"
  figures=$build.figures
  say "$card, $gpus GPU(s), torch ${torch_version:-none for CUDA}, $(nproc) cores"
  if [ -z "$built" ]; then
    build_all
    say "built"
  elif [ -n "$have_torch" ]; then  # Where it was built, torch may lie elsewhere.
    export LD_LIBRARY_PATH=$torch_folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  [ -z "$build_only" ] || exit 0
fi
: > "$figures"

# On one GPU ranks share it by NCCL's own means, whichever its version has.
share=()
[ "$gpus" -ge 3 ] || share=(--oversubscribe-gpu)
run() { echo "$build/bin/ddprun" "${share[@]}" --nproc-per-node "$1"; }
read -ra one <<< "$(run 1)"
read -ra two <<< "$(run 2)"

if [ -z "$fakes$built" ]; then
  # On the fakes first: what fails there says nothing about the GPU.
  for test in "${fake_tests[@]}"; do check 120 "$build/tests/$test"; done
  if [ -x "$build/tests/gpu_abi_test" ]; then check 60 "$build/tests/gpu_abi_test"; fi
fi

if [ -z "$fakes" ]; then  # What nvcc made of our kernels.
  check 60 env DDPRUN_TEST_GPU=1 "$build/tests/gpu_kernels_test" \
    "GPU kernels: halves*,GPU kernels: a step*,GPU kernels: the first*,GPU kernels: small*"
fi
check 90 "${one[@]}" "$build/tests/nccl_gradients"
check 90 "${two[@]}" "$build/tests/nccl_gradients"
check 90 $(run 3) "$build/tests/nccl_gradients" 2
for n in 1 2 3; do check 60 $(run $n) "$build/tests/nccl_collectives"; done
small=16M
[ -z "$fakes" ] || small=64K
check 90 "${one[@]}" "$build/bin/all_reduce" --backend nccl -e "$small"
check 90 "${two[@]}" "$build/bin/all_reduce" --backend nccl -e "$small"
# What NCCL's kernels took by the GPU's clock; beside the table above: what it costs to know.
check 90 env DDPRUN_NCCL_PROFILE=1 DDPRUN_NCCL_WINDOWS=0 "${two[@]}" "$build/bin/all_reduce" --backend nccl -e "$small"

lose die 0 '' --max-restarts 1
lose die 137 shrink
lose die 137 anew
go_on_elastically
if [ -z "$fakes" ]; then  # There system/nccl_test.py does it.
  lose orphan 137 ''
  lose stop 5 ''
  ask_ras
fi

check 90 "${one[@]}" "$build/bin/bench_nccl_overhead" $((rounds * 2))
# Ranks that share a GPU take turns on it, by milliseconds.
[ ${#share[@]} = 0 ] || [ "$rounds" -le 5 ] || rounds=5
if [ -z "$fakes" ]; then
  check 90 "${two[@]}" "$build/bin/bench_nccl_overhead" $((rounds * 3))
  check 90 "${one[@]}" "$build/bin/bench_gpu_sync_truth" "$rounds"
fi
check 120 "${two[@]}" "$build/bin/bench_gpu_sync_truth" "$rounds" ${fakes:+8}

if [ -n "$fakes" ]; then
  echo "left out on the fakes: train, PyTorch, compute-sanitizer"
elif [ -z "$have_torch" ]; then
  echo "left out: train and PyTorch, for python3 has no torch for CUDA"
else
  python3 -B tests/gpu/make_data.py "$build.data"
  check 90 python3 -B bench/ddp_step.py --build "$build" --steps 60 --rounds 3 --workers 1 --launcher "$build/bin/ddprun"
  steps=(--steps 60 --rounds 3)
  [ ${#share[@]} = 0 ] || steps=(--steps 15 --rounds 2)
  check 150 python3 -B bench/ddp_step.py --build "$build" "${steps[@]}" --launcher "$build/bin/ddprun ${share[*]}"
  # PyTorch's backend ddprun, whose CUDA tensors are torch's NCCL's: a GPU for each rank.
  python=(env PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}" "DDPRUN_LIB=$build/worker_sdk/libddprun.so"
    "$build/bin/ddprun" --nproc-per-node)
  check 90 "${python[@]}" 1 tests/gpu/torch_backend.py
  if [ "$gpus" -ge 2 ]; then check 90 "${python[@]}" 2 tests/gpu/torch_backend.py; fi
  check_learns 90 "${one[@]}" "$build/bin/train" --device cuda --data "$build.data" --epochs 1 --check-weights
  check_learns 120 "${two[@]}" "$build/bin/train" --device cuda --data "$build.data" --epochs 1 --max-steps 50 \
    --check-weights --sync-bn --checkpoint "$build.checkpoint"
  check_learns 60 "${two[@]}" "$build/bin/train" --device cuda --data "$build.data" --epochs 2 --max-steps 20 \
    --check-weights --sync-bn --checkpoint "$build.checkpoint"
  rm -f "$build.checkpoint"
  # A PyTorch script that knows nothing of us, with NCCL below it; then its twin.
  check_report 60 env PYTHON_EXEC="$(command -v python3)" PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}" \
    "DDPRUN_LIB=$build/worker_sdk/libddprun.so" "${two[@]}" --report examples/train.py --device cuda --data "$build.data" \
    --epochs 1 --max-steps 50
  check_report 60 "${two[@]}" --report "$build/bin/train" --device cuda --data "$build.data" --epochs 1 --max-steps 50
  check 60 python3 -B bench/python/watch.py --build "$build" --device cuda
  check 100 python3 -B bench/train.py --build "$build" --rounds 3 --steps 150 --workers 1 --device cuda \
    --data "$build.data" --launcher "$build/bin/ddprun"
  check 100 python3 -B bench/train.py --build "$build" --rounds 2 --steps 50 --device cuda \
    --data "$build.data" --launcher "$build/bin/ddprun ${share[*]}"
fi
if [ -z "$fakes" ] && ! command -v compute-sanitizer > /dev/null; then
  echo "left out: compute-sanitizer, which is not here"
elif [ -z "$fakes" ]; then
  check 120 compute-sanitizer --report-api-errors no --error-exitcode 9 "$build/tests/nccl_gradients" 1
fi

say "rows for bench/RESULTS.md: $card, ${share[*]:-a GPU for each rank}"
echo "| rank 1 | | |"
echo "|--|--|--|"
cat "$figures"
exit "$failed"
