#include "common/scheduler/slurm_step.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/fuzz/common/host_list_fuzz.h"

namespace ddprun::scheduler {
namespace {

std::string expanded(std::string_view text) {
  const auto hosts = expand_host_list(text);
  if (!hosts) return "error: " + hosts.error().context;
  std::string joined;
  for (const std::string& host : *hosts) joined += (joined.empty() ? "" : " ") + host;
  return joined;
}

// What `scontrol show hostnames LIST` of Slurm 22.05 prints for each.
TEST_CASE("Host list: brackets and ranges, as Slurm writes and reads them", "[allocation]") {
  CHECK(expanded("head") == "head");
  CHECK(expanded("a,b.c,d-e_f") == "a b.c d-e_f");
  CHECK(expanded("n[1-3]") == "n1 n2 n3");
  CHECK(expanded("n[08-11]") == "n08 n09 n10 n11");
  CHECK(expanded("n[3,1,2]") == "n3 n1 n2");
  CHECK(expanded("gpu[01-02,7],login") == "gpu01 gpu02 gpu7 login");
  CHECK(expanded("r[1-2]n[1-2]") == "r1n1 r1n2 r2n1 r2n2");
  CHECK(expanded("n[1-2]-ib") == "n1-ib n2-ib");
  CHECK(expanded("n[098-101]") == "n098 n099 n100 n101");
  CHECK(expanded("n[5]") == "n5");
}

TEST_CASE("Host list: what is none is refused and named", "[allocation]") {
  for (const char* wrong : {"",    ",",     "a,",    ",a",     "n[",    "n[]",           "n[1",
                            "n]",  "n[1-]", "n[-1]", "n[2-1]", "n[a]",  "n[1,]",         "n[1-2-3]",
                            "a b", "a/b",   "a:1",   "-x",     "n[+1]", "n[1000000000]", "[[1]]"}) {
    INFO(wrong);
    CHECK(expanded(wrong).starts_with("error: "));
  }
  CHECK(expanded("a,n[1") == "error: '[1': a bracket is not closed");
}

TEST_CASE("Host list: as many hosts as a run can have, and no more", "[allocation]") {
  CHECK(expand_host_list("n[1-131072]").value().size() == 131'072);
  for (const char* wrong : {"n[1-131073]", "n[1-131072],m", "n[0-9999]m[0-9999]", "n[1-999999999]",
                            "n[1-99999,1-99999]"}) {
    INFO(wrong);
    CHECK(expanded(wrong).find("more than 131072 hosts") != std::string::npos);
  }
  CHECK(expanded(std::string(256, 'a')).find("too long a name") != std::string::npos);
  CHECK(expanded(std::string(200'000, 'a')).find("too long a list") != std::string::npos);
}

TEST_CASE("Host list: damaged ones break no promise", "[fuzz]") {
  std::mt19937 random(5);
  const std::string letters = "abn-._,,[[]]--0123456789 @";
  const auto feed = [](const std::string& text) {
    fuzz::fuzz_host_list(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  for (int round = 0; round < 20'000; ++round) {
    std::string text = round % 2 ? "gpu[01-02,7],login,r[1-2]n[1-2]" : "";
    for (unsigned n = random() % 12; n > 0; --n) {
      text.insert(random() % (text.size() + 1), 1, letters[random() % letters.size()]);
    }
    feed(text);
  }
  SUCCEED("nothing aborted");
}

}  // namespace
}  // namespace ddprun::scheduler
