#pragma once
// The fake NCCL's side of a profiler plugin: it loads the one that NCCL_PROFILER_PLUGIN names, and
// reports each operation and its kernel in two channels to it, by a clock of its own. Like the real
// one, it reports no channels of kernels on windows. Used by fake_nccl.cc.

#include <memory>
#include <string>
#include <vector>

namespace ddprun::test {

struct FakeOperation {
  const char* function = "";  // "AllReduce".
  int type = 0;
  std::size_t count = 0;
  bool message = false;    // ncclSend or ncclRecv.
  bool on_window = false;  // Then its kernel is not reported.
};

// The plugin's word for a communicator; null if there is no plugin or it wants nothing.
void* profile_communicator(const std::string& name, int ranks, int rank);
void end_profile(void* context);

// Operations that are done by one kernel.
class ProfiledKernel {
 public:
  ProfiledKernel(void* context, int rank, const std::vector<FakeOperation>& operations);
  void enqueued();
  void begins();
  void ends();

 private:
  struct Reported {
    void* event = nullptr;
    bool has_kernel = false;
    std::vector<void*> channels;
  };
  void* const context_;
  std::vector<Reported> reported_;
};

}  // namespace ddprun::test
