#pragma once
// Collectives between GPUs, by NCCL. Every operation is put into a stream of this backend, of high
// priority, behind what is in the caller's stream; nothing waits for it but who asks to.
//
// Beside the communicator there is a group of Gloo's: for barriers, for arrays of the host, for the
// news that a peer is gone (which NCCL does not notice where GPUs reach each other's memory), and
// for the question whose fault it was (nccl_watch.h).

#include <memory>

#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/nccl/nccl_memory.h"
#include "worker_sdk/nccl/nccl_watch.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// Symmetric windows for the memory of allocate().
struct NcclWindowWish {
  bool wanted = true;
  bool tells = false;  // Once, on stderr, that NCCL makes none.
};

class NcclBackend final : public Backend, public DeviceSide {
 public:
  // `host`: of the same ranks; a GlooBackend, or that of a world of one.
  NcclBackend(std::shared_ptr<const Roster> roster, std::shared_ptr<NcclCommunicator> comm,
              std::unique_ptr<Backend> host, std::shared_ptr<NcclSiblings> siblings,
              NcclWindowWish windows);
  ~NcclBackend() override;

  const char* name() const noexcept override { return "nccl"; }
  DeviceSide* device() noexcept override { return this; }
  Backend& host() noexcept override { return *host_; }
  void check(const Call& call) override;

  int index() const noexcept override { return comm_->device(); }
  bool captured(Stream stream) override;
  std::shared_ptr<const DeviceMark> mark(Stream stream) override;
  std::shared_ptr<Pending> launch(const Call& call, Stream stream,
                                  const std::function<void()>& enqueue) override;
  void copy(void* to, const void* from, std::size_t bytes, std::optional<Stream> stream,
            std::chrono::milliseconds timeout) override;
  void zero(void* to, std::size_t bytes, std::optional<Stream> stream,
            std::chrono::milliseconds timeout) override;
  const GpuKernels& kernels() override;
  void settle(const std::string& what, std::optional<Stream> stream,
              std::chrono::milliseconds timeout) override;

  // From inside launch() only.
  void all_reduce(const Call& call, Buffer inout) override;
  void reduce_scatter(const Call& call, Buffer in, Buffer out) override;
  void broadcast(const Call& call, Buffer inout) override;
  void all_gather(const Call& call, Buffer in, Buffer out) override;
  void all_to_all(const Call& call, Buffer in, Buffer out) override;
  void gather(const Call& call, Buffer in, Buffer out) override;
  void scatter(const Call& call, Buffer in, Buffer out) override;
  void send(const Call& call, Buffer in) override;
  void recv(const Call& call, Buffer out) override;

  void barrier(const Call& call) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override;
  std::shared_ptr<NcclCommunicator> retire() override;

 private:
  std::shared_ptr<Pending> capture(const Call& call, const std::function<void()>& enqueue);
  bool put_into_stream(const Call& call, const std::function<void()>& enqueue);
  using Enqueue = std::function<int(const NcclApi&, NcclComm)>;
  void put(const Enqueue& enqueue);
  void put_messages(const Enqueue& enqueue);
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
  const std::unique_ptr<Backend> host_;
  const std::shared_ptr<NcclCommunicator> comm_;
  const NcclWindowWish windows_;
  const std::shared_ptr<NcclMemory> memory_;
  bool told_no_windows_ = false;
  std::mutex mutex_;  // Around launch(): gradients may be marked from any thread.
  CudaStream stream_ = nullptr;
  int status_ = kNcclSuccess;  // Of the call under way.
  std::unique_ptr<GpuEvent> ready_, copied_;
  void* scratch_ = nullptr;  // Of the device, for the source of an all_to_all in place.
  std::size_t scratch_bytes_ = 0;
  std::unique_ptr<GpuKernels> kernels_;  // Once a hook has asked for them.
  std::atomic<bool> aborted_{false};
  std::unique_ptr<NcclWatch> watch_;
};

}  // namespace ddprun::worker_sdk
