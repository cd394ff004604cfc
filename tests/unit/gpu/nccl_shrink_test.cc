// From a failed group of nccl to a smaller one: revoked and shrunk where NCCL can, else aborted and
// joined anew; and what goes wrong on the way. Ranks are threads.

#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/fake_gpu.h"
#include "tests/support/ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::FakeGpu;
using test::Ranks;

// A world of three, of which rank 1 hangs in its third all_reduce.
class Lost {
 public:
  explicit Lost(const std::string& faults = "") : faults_(faults) {}

  Lost& wants(bool shrink) {
    may_shrink_ = shrink;
    return *this;
  }

  // What the fake noted of rank 0's communicators while its groups lived, or what went wrong.
  std::string run() {
    const test::TemporaryDirectory folder;
    const FakeGpu gpu("hang=1:3,comms=" + (folder / "comms") + "," + faults_);
    std::vector<std::string> wrong(3);
    std::vector<std::thread> ranks;
    for (int r = 0; r < 3; ++r) {
      ranks.emplace_back([&, r] {
        try {
          one_rank(folder, r);
        } catch (const Error& error) {
          if (r != 1) wrong[static_cast<std::size_t>(r)] = error.what();
        }
      });
    }
    for (auto& rank : ranks) rank.join();
    for (const auto& text : wrong) {
      if (!text.empty()) return text;
    }
    return noted_;
  }

 private:
  void one_rank(const test::TemporaryDirectory& folder, int rank) {
    Ranks ranks{.world_size = 3, .backend = "nccl", .op_timeout = 50s};
    ranks.init_timeout = 6s;
    InitOptions options = ranks.options(folder / "store", rank);
    options.nccl.may_shrink = may_shrink_;
    auto group = ProcessGroup::init(options);
    auto kept = group.allocate(64), released = group.allocate(64);
    float value = 1;
    try {
      for (int i = 0; i < 2; ++i) group.all_reduce(buffer(&value, 1));
      group.all_reduce(buffer(&value, 1), ReduceOp::sum, {.timeout = 300ms});
    } catch (const Error&) {
      released.reset();
    }
    if (rank == 1) return;
    auto next = group.shrink({.lost = {1}, .patience = 20s});
    auto memory = next.allocate(64);
    next.zero(memory.get(), 64);
    next.all_reduce({memory.get(), 16, DataType::f32});
    value = 2;
    next.all_reduce(buffer(&value, 1));
    if (rank == 0) noted_ = notes(folder / "comms");
    if (value != 4) throw Error(ErrorKind::system, {}, "the sum of the smaller group");
  }

  static std::string notes(const std::string& path) {
    std::ifstream file(path);
    std::string text;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("rank 0: ")) text += line.substr(8) + "\n";
    }
    return text;
  }

  std::string noted_;
  std::string faults_;
  bool may_shrink_ = true;
};

constexpr char kShrunk[] = "init of 3\nrevocation of 3\nshrink to 2\nabort of 3\n";
constexpr char kAnew[] = "init of 3\nabort of 3\ninit of 2\n";
constexpr char kShrunkAndAnew[] =
    "init of 3\nrevocation of 3\nshrink to 2\nabort of 3\ninit of 2\n";

TEST_CASE("NCCL: survivors shrink their communicator, and abort the old one", "[nccl]") {
  CHECK(Lost().run() == kShrunk);
  CHECK(Lost("in_progress=3").run() == kShrunk);
  CHECK(Lost("windows=0").run() == kShrunk);
}

TEST_CASE("NCCL: where it cannot revoke, or nobody wants it, survivors join anew", "[nccl]") {
  CHECK(Lost("version=22803").run() == kAnew);
  CHECK(Lost().wants(false).run() == kAnew);
}

// NCCL would free what it still uses.
TEST_CASE("NCCL: what is in progress is aborted, not revoked", "[nccl]") {
  CHECK(Lost("stuck=3").run() == kAnew);
}

TEST_CASE("NCCL: a shrink that fails or hangs on one rank is given up by all", "[nccl]") {
  CHECK(Lost("shrink_error=2").run() == kShrunkAndAnew);
  CHECK(Lost("shrink_hang=2").run() == kShrunkAndAnew);
  // Rank 0 has its new communicator by then.
  CHECK(Lost("shrink_late=2").run() ==
        "init of 3\nrevocation of 3\nshrink to 2\nabort of 2\ninit of 2\nabort of 3\n");
}

TEST_CASE("NCCL: a shrink that does not even return is freed by the abort", "[nccl]") {
  CHECK(Lost("shrink_blocks=2").run() == kShrunkAndAnew);
}

TEST_CASE("NCCL: a revocation that does not end becomes an abort", "[nccl]") {
  CHECK(Lost("revoke_hang=0").run() == "init of 3\nrevocation of 3\nabort of 3\ninit of 2\n");
}

}  // namespace
}  // namespace ddprun
