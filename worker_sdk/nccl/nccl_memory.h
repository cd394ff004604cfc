#pragma once
// The memory that a group of nccl hands out, and how its communicator has registered it.
// NcclBackend makes and ends it; the memory's users may let go of theirs before or after that.
//
// Windows are made and dropped at the same point on all ranks, else their places in NCCL's
// symmetric space would drift apart. So a window whose memory is no longer used stays until all
// ranks have reported that: in the next allocate() or barrier().

#include <memory>
#include <mutex>
#include <vector>

#include "worker_sdk/nccl/nccl_comm.h"

namespace ddprun::worker_sdk {

class NcclMemory : public std::enable_shared_from_this<NcclMemory> {
 public:
  struct Block {
    void* address = nullptr;
    std::size_t bytes = 0;
    bool is_nccls = false;         // Allocated by ncclMemAlloc.
    void* registration = nullptr;  // From ncclCommRegister, if there is no window.
    NcclWindow window = nullptr;
    bool released = false;  // The memory is not used any more.
  };

  explicit NcclMemory(NcclCommunicator& comm)
      : gpu_(comm.runtime()), device_(comm.device()), comm_(&comm) {}

  // Throws Error.
  std::shared_ptr<Block> take(std::size_t bytes);
  // Registers a block that has no window. Without a registration it works, too, only slower.
  void enroll(Block& block);
  // Returns the address; its last owner gives the memory back.
  std::shared_ptr<void> share(std::shared_ptr<Block> block);

  // Whether each window may be dropped on this rank, in the order in which they were made, which is
  // the same on all ranks.
  std::vector<std::int64_t> released();
  void drop(const std::vector<std::int64_t>& may_go);

  // Before the communicator ends.
  void end();

 private:
  void release(const std::shared_ptr<Block>& block);
  void close(Block& block);
  void free(const Block& block);

  const std::shared_ptr<const GpuRuntime> gpu_;
  const int device_;
  std::mutex mutex_;
  NcclCommunicator* comm_;                        // Null: it is gone.
  std::vector<std::shared_ptr<Block>> windows_;   // Blocks with a window.
  std::vector<std::shared_ptr<Block>> enrolled_;  // Blocks with a registration.
};

}  // namespace ddprun::worker_sdk
