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
command -v nvidia-smi > /dev/null && nvidia-smi -L | grep -q GPU || skip "nvidia-smi finds no GPU"
[ -e /usr/include/gloo/context.h ] || skip "libgloo-dev is not installed"
gpus=$(nvidia-smi -L | grep -c '^GPU')
echo "== $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), $gpus GPU(s)"

generator=()
command -v ninja > /dev/null && generator=(-G Ninja)
cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release > "$build.log" 2>&1 ||
  { tail -5 "$build.log"; skip "cmake finds not all that ddprun is built on (deploy/packages.sh)"; }
cmake --build "$build" -j"$(nproc)" --target ddprun_program all_reduce gpu_runtime_test \
  nccl_failure_test nccl_group_test nccl_ddp_test nccl_death_test || exit 1

failed=0
check() { echo "== $*"; timeout 120 "$@" || { failed=1; echo "FAILED: $*"; }; }

# On the fakes first: what fails there says nothing about the GPU.
for test in gpu_runtime_test nccl_group_test nccl_failure_test nccl_ddp_test nccl_death_test; do
  check "$build/tests/$test"
done
if [ -x "$build/tests/gpu_abi_test" ]; then check "$build/tests/gpu_abi_test"; fi

# One rank, then two; on one GPU they share it by NCCL's own means, whichever its version has.
shared=()
if [ "$gpus" -lt 2 ]; then
  export CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 \
    NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
  shared=(bash -c 'NCCL_HOSTID=ddprun-$RANK exec "$@"' all_reduce)
fi
check "$build/bin/ddprun" --nproc-per-node 1 "$build/bin/all_reduce" --backend nccl -e 64M
check "$build/bin/ddprun" --nproc-per-node 2 --no-python "${shared[@]}" "$build/bin/all_reduce" \
  --backend nccl -e 16M
exit "$failed"
