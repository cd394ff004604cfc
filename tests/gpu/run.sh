#!/bin/bash
# Builds, tests and measures the backend nccl on a machine with a GPU, nvcc (for its headers), cmake
# and, where no NCCL is installed, pip's torch, whose copy is used. Downloads nothing. Several ranks
# share one GPU where there is only one: then the times say nothing about bandwidth.
#   tests/gpu/run.sh [build folder]
# Exit status 77: this machine cannot; the reason is said.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build/gpu}

skip() { echo "skipped: $*"; exit 77; }
command -v cmake > /dev/null || skip "there is no cmake"
nvidia-smi -L 2> /dev/null | grep -q GPU || skip "nvidia-smi finds no GPU"
[ -e /usr/include/gloo/context.h ] || skip "libgloo-dev is not installed"
gpus=$(nvidia-smi -L | grep -c '^GPU')
echo "== $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), $gpus GPU(s)"

generator=()
command -v ninja > /dev/null && generator=(-G Ninja)
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release > "$build.log" 2>&1 ||
  { tail -5 "$build.log"; skip "cmake finds not all that ddprun is built on (deploy/packages.sh)"; }
cmake --build "$build" -j"$(nproc)" --target ddprun_program all_reduce gpu_runtime_test \
  gpu_kernels_test nccl_failure_test nccl_group_test nccl_ddp_test nccl_death_test nccl_worker || exit 1

failed=0
check() { echo "== $*"; timeout 120 "$@" || { failed=1; echo "FAILED: $*"; }; }

# On the fakes first: what fails there says nothing about the GPU.
for test in gpu_runtime_test gpu_kernels_test nccl_group_test nccl_failure_test nccl_ddp_test nccl_death_test; do
  check "$build/tests/$test"
done
if [ -x "$build/tests/gpu_abi_test" ]; then check "$build/tests/gpu_abi_test"; fi

check env DDPRUN_TEST_GPU=1 "$build/tests/gpu_kernels_test" \
  "GPU kernels: halves*,GPU kernels: a step*,GPU kernels: the first*,GPU kernels: small*"

# On one GPU ranks share it by NCCL's own means, whichever its version has.
share=()
if [ "$gpus" -lt 3 ]; then share=(--oversubscribe-gpu); fi
check "$build/bin/ddprun" --nproc-per-node 1 "$build/bin/all_reduce" --backend nccl -e 64M
check "$build/bin/ddprun" "${share[@]}" --nproc-per-node 2 "$build/bin/all_reduce" --backend nccl -e 16M

# Rank 1 of 3 falls out in mid-all-reduce: dies, dies but for its connections, is stopped. How long
# until the others throw; and how long two groups take to join, the first time and after a restart.
figures=$build/figures.txt
: > "$figures"
lose() {  # HOW EXIT_STATUS [flags of ddprun]
  local how=$1 want=$2 got=0
  shift 2
  echo "== rank 1: $how"
  timeout 120 "$build/bin/ddprun" "${share[@]}" --nproc-per-node 3 --shutdown-timeout 5 "$@" \
    "$build/tests/nccl_worker" 50 "$how" 5 > "$build.$how.log" 2>&1 || got=$?
  grep -hE '^\[default[0-9]\]:rank [0-9]+: (peer|joined)' "$build.$how.log"
  local told
  told=$(grep -cE '^\[default[02]\]:rank [02]: peer 1, waited' "$build.$how.log")
  if [ "$got" != "$want" ] || [ "$told" != 2 ]; then
    failed=1
    echo "FAILED: exit status $got, not $want; $told of 2 ranks were told of rank 1"
    tail -20 "$build.$how.log"
  fi
  grep -hoE '^\[default[0-9]\]:rank [02]: peer 1, waited [0-9]+ ms' "$build.$how.log" |
    sed "s/^[^:]*:/| $how | /; s/: peer 1, waited / throws | /; s/\$/ |/" >> "$figures"
  grep -hoE '^\[default[0-9]\]:rank [0-9]+: joined twice in [0-9]+ ms, restart [0-9]+' "$build.$how.log" |
    sed -E "s/^[^:]*:(rank [0-9]+): joined twice in ([0-9]+ ms), (restart [0-9]+)/| $how, \\3 | \\1 joins two groups | \\2 |/" \
      >> "$figures"
}
lose die 0 --max-restarts 1
lose orphan 137
lose stop 5

echo "== rows for bench/RESULTS.md: $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), ${share[*]:-a GPU for each rank}"
echo "| rank 1 | | |"
echo "|--|--|--|"
cat "$figures"
exit "$failed"
