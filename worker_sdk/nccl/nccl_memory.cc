#include "worker_sdk/nccl/nccl_memory.h"

namespace ddprun::worker_sdk {
std::shared_ptr<NcclMemory::Block> NcclMemory::take(std::size_t bytes) {
  auto block = std::make_shared<Block>();
  block->bytes = bytes;
  const GpuDeviceGuard current(*gpu_, device_);
  require(*gpu_, current.status(), "cudaSetDevice");
  block->is_nccls =
      gpu_->nccl.mem_alloc && gpu_->nccl.mem_alloc(&block->address, bytes) == kNcclSuccess;
  if (!block->is_nccls) require(*gpu_, gpu_->cuda.malloc(&block->address, bytes), "cudaMalloc");
  return block;
}

void NcclMemory::enroll(Block& block) {
  const std::lock_guard lock(mutex_);
  if (!comm_ || !gpu_->nccl.comm_register) return;
  const int status = comm_->call_alone([&](const NcclApi& nccl, NcclComm c) {
    return nccl.comm_register(c, block.address, block.bytes, &block.registration);
  });
  if (status != kNcclSuccess) block.registration = nullptr;
}

std::shared_ptr<void> NcclMemory::share(std::shared_ptr<Block> block) {
  {
    const std::lock_guard lock(mutex_);
    if (block->window) windows_.push_back(block);
    if (block->registration) enrolled_.push_back(block);
  }
  void* const address = block->address;
  return {address, [self = shared_from_this(), block](void*) { self->release(block); }};
}

// Our kernels, or a peer's through a window, may still use the memory, so it is freed only after
// every rank has released it. ncclMemFree does not wait for them as cudaFree does.
void NcclMemory::release(const std::shared_ptr<Block>& block) {
  const GpuDeviceGuard current(*gpu_, device_);
  gpu_->cuda.device_synchronize();
  const std::lock_guard lock(mutex_);
  block->released = true;
  if (block->window) return;
  if (block->registration && comm_ && comm_->is_revoked()) return;  // Kept until abort().
  std::erase(enrolled_, block);
  close(*block);
  free(*block);
}

std::vector<std::int64_t> NcclMemory::released() {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> flags;
  for (const auto& block : windows_) flags.push_back(block->released ? 1 : 0);
  return flags;
}

void NcclMemory::drop(const std::vector<std::int64_t>& may_go) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Block>> staying;
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    if (may_go.at(i) == 0) {
      staying.push_back(windows_[i]);
      continue;
    }
    close(*windows_[i]);
    free(*windows_[i]);
  }
  windows_ = std::move(staying);
}

void NcclMemory::end() {
  const std::lock_guard lock(mutex_);
  for (auto* blocks : {&windows_, &enrolled_}) {
    for (const auto& block : *blocks) {
      close(*block);
      if (block->released) free(*block);
    }
    blocks->clear();
  }
  comm_ = nullptr;
}

// Removes the communicator's entry of the block, unless it was aborted.
void NcclMemory::close(Block& block) {
  if (comm_ && (block.window || block.registration)) {
    comm_->call_alone([&](const NcclApi& nccl, NcclComm c) {
      return block.window ? nccl.window_deregister(c, block.window)
                          : nccl.comm_deregister(c, block.registration);
    });
  }
  block.window = nullptr;
  block.registration = nullptr;
}

void NcclMemory::free(const Block& block) {
  const GpuDeviceGuard current(*gpu_, device_);
  block.is_nccls ? gpu_->nccl.mem_free(block.address) : gpu_->cuda.free(block.address);
}

}  // namespace ddprun::worker_sdk
