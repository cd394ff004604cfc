#pragma once
// Collectives between GPUs, by NCCL. Every operation is put into a stream of this backend, of high
// priority, behind what is in the caller's stream; only explicit waits wait for it.
//
// Beside the communicator there is a group of Gloo's: for barriers, for arrays of the host, for the
// notice that a peer is gone (which NCCL does not detect if GPUs reach each other's memory), and to
// find the culprit of a failure (nccl_watch.h).

#include <memory>

#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/nccl/nccl_memory.h"
#include "worker_sdk/nccl/nccl_watch.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// Symmetric windows for the memory of allocate().
struct NcclWindowOptions {
  bool wanted = true;
  bool reports = false;  // Once, on stderr, that NCCL makes none.
};

class NcclBackend final : public DeviceBackend {
 public:
  // `gloo`: of the same ranks; null in a world of one.
  NcclBackend(std::shared_ptr<const Roster> roster, std::shared_ptr<NcclCommunicator> comm,
              std::unique_ptr<GlooBackend> gloo, std::shared_ptr<NcclSiblings> siblings,
              NcclWindowOptions windows);
  ~NcclBackend() override;

  const char* name() const noexcept override { return "nccl"; }
  void carry_out(const Call& call, const Arrays& arrays) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override;
  void dissolve() noexcept override;
  void lose(int rank, const std::string& why) noexcept override;

  std::string refusal(const Signature& what, const Arrays& arrays) const override;
  std::shared_ptr<Pending> enqueue(const Call& call, const Arrays& arrays, Stream stream) override;
  std::shared_ptr<NcclCommunicator> retire() override;

  int index() const noexcept override { return comm_->device(); }
  bool captured(Stream stream) override;
  std::shared_ptr<const DeviceMark> mark(Stream stream) override;
  void copy(void* to, const void* from, std::size_t bytes, std::optional<Stream> stream,
            std::chrono::milliseconds timeout) override;
  void zero(void* to, std::size_t bytes, std::optional<Stream> stream,
            std::chrono::milliseconds timeout) override;
  const GpuKernels& kernels() override;
  void settle(const std::string& what, std::optional<Stream> stream,
              std::chrono::milliseconds timeout) override;

 private:
  using Put = std::function<int()>;  // Calls NCCL, and returns what NCCL does.
  std::shared_ptr<Pending> put_behind(const Call& call, Stream stream, const Put& put);
  std::shared_ptr<Pending> capture(const Call& call, const Put& put);
  bool put_into_stream(const Call& call, const Put& put);
  int put_operation(const Signature& what, const Arrays& arrays);
  using PartOf = std::function<Buffer(int rank)>;
  int put_messages(const PartOf& from, const PartOf& to);
  void check(const Call& call);
  void await_default_stream(const std::string& what, Clock::time_point start,
                            std::chrono::milliseconds timeout);
  bool has_windows() const;
  bool agree_on_windows(const Call& call, bool able);
  void make_window(const Call& call, NcclMemory::Block& block);
  const std::byte* apart(Buffer in);
  void put_copy(void* to, const void* from, std::size_t bytes);
  [[noreturn]] void throw_fate(const Call& call);

  const std::shared_ptr<const Roster> roster_;
  const std::shared_ptr<const GpuRuntime> gpu_;
  GlooBackend* const gloo_;  // Of host_; null in a world of one.
  const std::unique_ptr<HostBackend> host_;
  const std::shared_ptr<NcclCommunicator> comm_;
  const NcclWindowOptions windows_;
  const std::shared_ptr<NcclMemory> memory_;
  bool reported_no_windows_ = false;
  std::mutex mutex_;  // Around put_behind(): gradients may be marked from any thread.
  CudaStream stream_ = nullptr;
  std::unique_ptr<GpuEvent> ready_, copied_;
  void* scratch_ = nullptr;  // In device memory: the source of an all_to_all in place.
  std::size_t scratch_bytes_ = 0;
  std::unique_ptr<GpuKernels> kernels_;  // Made for the first hook that uses them.
  std::atomic<bool> aborted_{false};
  std::unique_ptr<NcclWatch> watch_;
};

}  // namespace ddprun::worker_sdk
