// What ranks find out about each other's GPUs and libraries before they call NCCL. No GPU.

#include "worker_sdk/nccl/nccl_preflight.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/fuzz/agent/gpu_facts_fuzz.h"
#include "tests/support/damage.h"

namespace ddprun::worker_sdk {
namespace {

GpuFacts facts(int device, int version = 22809) {
  return {.error = "",
          .nccl_version = version,
          .device = device,
          .bus_id = "0000:0" + std::to_string(device) + ":00.0",
          .may_share = false};
}

const std::vector<std::string> kHosts{"a", "a", "b", "b"};

std::string objection_to(const std::vector<GpuFacts>& all) {
  const auto found = objection(all, kHosts, kHosts);
  return found ? std::to_string(found->culprit) + ": " + found->text : "none";
}

TEST_CASE("NCCL preflight: ranks with GPUs of their own and one version may begin", "[nccl]") {
  CHECK(objection_to({facts(0), facts(1), facts(0), facts(1)}) == "none");
}

TEST_CASE("NCCL preflight: the rank with another version is named, not the first", "[nccl]") {
  CHECK(objection_to({facts(0, 22705), facts(1), facts(0), facts(1)}) ==
        "0: rank 0 on a has NCCL 2.27.5, the others 2.28.9; all ranks need the same");
  CHECK(objection_to({facts(0), facts(1), facts(0), facts(1, 23007)}) ==
        "3: rank 3 on b has NCCL 2.30.7, the others 2.28.9; all ranks need the same");
}

TEST_CASE("NCCL preflight: two ranks on one GPU are named, unless NCCL was told of it", "[nccl]") {
  CHECK(objection_to({facts(0), facts(1), facts(1), facts(1)}) ==
        "3: rank 3 on b and rank 2 use the same GPU (device 1, 0000:01:00.0); give each rank its "
        "own by LOCAL_RANK, NcclOptions::device or CUDA_VISIBLE_DEVICES");
  GpuFacts sharing = facts(1);
  sharing.may_share = true;
  CHECK(objection_to({facts(0), facts(1), facts(1), sharing}) == "none");
}

TEST_CASE("NCCL preflight: a rank that cannot use NCCL says why", "[nccl]") {
  GpuFacts broken;
  broken.error = "no NCCL found";
  CHECK(objection_to({facts(0), facts(1), broken, facts(1)}) ==
        "2: rank 2 on b cannot use NCCL: no NCCL found");
}

TEST_CASE("NCCL preflight: facts survive the way through the store, other text does not",
          "[nccl]") {
  GpuFacts mine = facts(3);
  mine.error = "two\nlines";
  mine.may_share = true;
  const auto back = decode_gpu_facts(encode(mine));
  REQUIRE(back);
  CHECK(back->nccl_version == 22809);
  CHECK(back->device == 3);
  CHECK(back->bus_id == "0000:03:00.0");
  CHECK(back->may_share);
  CHECK(back->error == "two lines");
  const std::string text = encode(mine);
  for (std::size_t n = 0; n < text.size(); ++n) CHECK_FALSE(decode_gpu_facts(text.substr(0, n)));
  for (const std::string wrong : {"", "x\n0\nb\n0\n\n", "1\n0\nb\n2\n\n", "1\n0\nb\n0\n\nmore",
                                  "99999999999\n0\nb\n0\n\n", "1\n0x\nb\n0\n\n"}) {
    CHECK_FALSE(decode_gpu_facts(wrong));
  }
}

TEST_CASE("NCCL preflight: texts beyond their limits are no facts", "[nccl]") {
  const std::string before = "22809\n0\n", after = "\n0\n\n";
  CHECK(decode_gpu_facts(before + std::string(64, 'b') + after));
  CHECK_FALSE(decode_gpu_facts(before + std::string(65, 'b') + after));
  CHECK(decode_gpu_facts(before + "b\n0\n" + std::string(4096, 'e') + "\n"));
  CHECK_FALSE(decode_gpu_facts(before + "b\n0\n" + std::string(4097, 'e') + "\n"));
}

TEST_CASE("NCCL preflight: damaged facts and ids break no promise", "[fuzz]") {
  std::mt19937 random(5);
  const auto fuzz = [](const std::string& text) {
    fuzz::fuzz_gpu_facts(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  GpuFacts sharing = facts(3);
  sharing.may_share = true;
  for (const std::string& whole :
       {encode(facts(1)), encode(sharing), to_hex("an id\x00\xff"), std::string("00FfaB")}) {
    fuzz(whole);
    for (int round = 0; round < 5000; ++round) {
      std::string text = test::damaged(whole, random);
      if (random() % 8 == 0) text.insert(random() % text.size(), "\n0");
      fuzz(text);
    }
  }
  SUCCEED("nothing aborted");
}

TEST_CASE("NCCL preflight: bootstrap roots stand at the first ranks of even parts", "[nccl]") {
  CHECK(roots_for(1, 128) == 1);
  CHECK(roots_for(128, 128) == 1);
  CHECK(roots_for(129, 128) == 2);
  CHECK(roots_for(1000, 128) == 8);
  for (int size = 1; size <= 40; ++size) {
    for (int roots = 1; roots <= size; ++roots) {
      int next = 0, since = 0, shortest = size, longest = 0;
      for (int rank = 0; rank < size; ++rank) {
        const int root = root_of(rank, size, roots);
        if (root >= 0) {
          CHECK(root == next++);
          if (rank > 0) shortest = std::min(shortest, since), longest = std::max(longest, since);
          since = 0;
        }
        ++since;
      }
      shortest = std::min(shortest, since), longest = std::max(longest, since);
      CHECK(next == roots);
      CHECK(longest - shortest <= 1);
    }
  }
}

TEST_CASE("NCCL preflight: bytes survive as hexadecimal digits", "[nccl]") {
  const std::string bytes("\x00\xff\x10 z", 5);
  CHECK(to_hex(bytes) == "00ff10207a");
  CHECK(from_hex(to_hex(bytes)) == bytes);
  for (const char* wrong : {"0", "0g", "+1", " 1", "-1"}) CHECK_FALSE(from_hex(wrong));
}

}  // namespace
}  // namespace ddprun::worker_sdk
