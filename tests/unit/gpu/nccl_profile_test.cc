// What NCCL's profiler interface reports, in the orders in which it may, and what is made of it.

#include "worker_sdk/nccl_profiler/nccl_profile.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>


namespace ddprun::worker_sdk {
namespace {

using Event = NcclProfile::Event;

const NcclCall kBucket = {"AllReduce", "float32", "RING", "SIMPLE", 6553600, 2};

// One communicator of 4 ranks; the GPU's clock is 1,000,000 ns behind the host's.
class Nccl {
 public:
  Event start(const NcclCall& call = kBucket) {
    return profile.start(communicator, call, ++sequence_);
  }
  Event begin(Event call, int channel, std::uint64_t at) {
    return profile.start_channel(call, channel, at);
  }
  void end(Event channel, std::uint64_t at, std::int64_t reported_after = 0) {
    profile.stop_channel(channel, at, static_cast<std::int64_t>(at) + 1'000'000 + reported_after);
    profile.stop(channel);
  }
  // In channels 0 and 1, `ns` long in all.
  void run(std::uint64_t ns, std::uint64_t at = 5000, const NcclCall& call = kBucket) {
    const Event event = start(call);
    profile.stop(event);
    const Event first = begin(event, 0, at), second = begin(event, 1, at + 1);
    end(first, at + ns / 2);
    end(second, at + ns);
  }
  const NcclProfile::Row& row(std::size_t i = 0) const { return profile.rows().at(i); }

  NcclProfile profile;
  std::size_t communicator = profile.open({"default_pg", 0xabc, 2, 4, 1});

 private:
  std::uint64_t sequence_ = 0;
};

TEST_CASE("NCCL profile: from the first channel's begin to the last one's end", "[nccl_profile]") {
  Nccl nccl;
  const Event call = nccl.start();
  const Event second = nccl.begin(call, 1, 4000);
  nccl.profile.stop(call);
  const Event first = nccl.begin(call, 0, 3500);
  nccl.end(second, 9000);
  CHECK(nccl.row().timed == 0);
  nccl.end(first, 8000);
  CHECK(nccl.row().timed == 1);
  CHECK(nccl.row().times_ns.back() == 5500);
  REQUIRE(nccl.profile.spans().size() == 1);
  CHECK(nccl.profile.spans()[0].begin_ns == 3500);
  CHECK(nccl.profile.spans()[0].end_ns == 9000);
}

TEST_CASE("NCCL profile: a kernel may end before its call is told to be enqueued",
          "[nccl_profile]") {
  Nccl nccl;
  const Event call = nccl.start();
  nccl.end(nccl.begin(call, 0, 100), 300);
  nccl.end(nccl.begin(call, 1, 100), 350);  // Its stop is not that of the call.
  CHECK(nccl.row().timed == 0);
  nccl.profile.stop(call);
  CHECK(nccl.row().timed == 1);
  CHECK(nccl.row().times_ns.back() == 250);
}

TEST_CASE("NCCL profile: calls without channels, with too few, and such as do not end",
          "[nccl_profile]") {
  Nccl nccl;
  nccl.profile.stop(nccl.start());  // On a window.
  const Event fewer = nccl.start();
  nccl.profile.stop(fewer);
  nccl.end(nccl.begin(fewer, 0, 10), 30);
  const Event lost = nccl.start();
  nccl.profile.stop(lost);
  nccl.end(nccl.begin(lost, 0, 10), 30);
  (void)nccl.begin(lost, 1, 20);
  CHECK(nccl.row().timed == 0);
  nccl.profile.close(nccl.communicator);
  CHECK(nccl.row().calls == 3);
  CHECK(nccl.row().timed == 1);
  CHECK(nccl.row().times_ns.back() == 20);
  CHECK(nccl.row().unfinished == 1);
}

TEST_CASE("NCCL profile: what is told of a call that is over is nobody's", "[nccl_profile]") {
  Nccl nccl;
  const Event late = nccl.start();
  const Event channel = nccl.begin(late, 0, 10);
  for (std::size_t i = 0; i < NcclProfile::kOpen; ++i) nccl.profile.stop(nccl.start());
  CHECK(nccl.row().unfinished == 1);  // Given up: its place was needed.
  nccl.end(channel, 50);
  CHECK(nccl.begin(late, 1, 20) == 0);
  nccl.end(0, 50);
  CHECK(nccl.begin(0, 1, 20) == 0);
  nccl.profile.stop(0);
  CHECK(nccl.begin(nccl.start(), 255, 20) == 0);  // More channels than there can be.
  nccl.profile.close(nccl.communicator);
  CHECK(nccl.row().timed == 0);
}

TEST_CASE("NCCL profile: kinds of calls are told apart, and have a limit", "[nccl_profile]") {
  Nccl nccl;
  nccl.run(100);
  NcclCall other = kBucket;
  other.algorithm = "TREE";
  nccl.run(100, 5000, other);
  CHECK(nccl.profile.rows().size() == 2);
  for (std::uint64_t i = 0; i < NcclProfile::kRows; ++i) {
    other.count = i;
    nccl.run(100, 5000, other);
  }
  CHECK(nccl.profile.rows().size() == NcclProfile::kRows);
  CHECK(nccl.profile.not_listed() == 2);
  nccl.run(100);
  CHECK(nccl.row().calls == 2);
}

TEST_CASE("NCCL profile: times are those of the last calls", "[nccl_profile]") {
  Nccl nccl;
  for (std::uint64_t i = 0; i < 100; ++i) nccl.run(1'000'000);
  for (std::uint64_t i = 1; i <= NcclProfile::kTimes; ++i) nccl.run(i * 10);
  const NcclTimes times = times_of(nccl.row());
  CHECK(times.least_ns == 10);
  CHECK(times.p50_ns == 2560);
  CHECK(times.p95_ns == 4860);
  CHECK(nccl.row().timed == 612);
  CHECK(nccl.row().total_ns == 100'000'000 + 10 * 512 * 513 / 2);
  CHECK(times_of(NcclProfile::Row{}).p50_ns == 0);
}

TEST_CASE("NCCL profile: the clocks go together as the soonest word says", "[nccl_profile]") {
  Nccl nccl;
  CHECK(nccl.profile.host_ns(77) == 77);
  const Event call = nccl.start();
  nccl.end(nccl.begin(call, 0, 100), 200, 5000);
  nccl.end(nccl.begin(call, 1, 100), 210, 30);
  nccl.profile.stop(call);
  CHECK(nccl.profile.host_ns(200) == 1'000'230);
}

TEST_CASE("NCCL profile: sizes and bandwidths are those of nccl-tests", "[nccl_profile]") {
  const auto call = [](const char* function, const char* type) {
    return NcclCall{function, type, "RING", "LL", 1000, 1};
  };
  CHECK(bytes_of(call("AllReduce", "float32"), 4) == 4000);
  CHECK(bytes_of(call("AllGather", "int8"), 4) == 4000);
  CHECK(bytes_of(call("ReduceScatter", "bfloat16"), 4) == 8000);
  CHECK(bytes_of(call("Broadcast", "float64"), 4) == 8000);
  CHECK(bytes_of(call("Broadcast", "float8e4m3"), 4) == 1000);
  CHECK(bytes_of(call("Broadcast", "Unknown"), 4) == 0);
  CHECK(busbw(call("AllReduce", "float32"), 4, 1000) == Approx(6.0));
  CHECK(busbw(call("AllGather", "int8"), 4, 1000) == Approx(3.0));
  CHECK(busbw(call("Send", "float32"), 4, 1000) == Approx(4.0));
  CHECK(busbw(call("AllReduce", "float32"), 1, 1000) == 0);
  CHECK(busbw(call("AllReduce", "float32"), 4, 0) == 0);
}

TEST_CASE("NCCL profile: the table", "[nccl_profile]") {
  Nccl nccl;
  CHECK(profile_table(nccl.profile, {1, "node7"}).empty());
  nccl.profile.stop(nccl.start({"Send", "uint8", "", "", 100, 1}));
  nccl.profile.stop(nccl.start({"AllGather", "int8", "RING", "LL", 384, 1}));
  for (int i = 1; i <= 3; ++i) nccl.run(2'000'000);
  nccl.profile.stop(nccl.start());
  nccl.profile.close(nccl.communicator);
  CHECK(profile_table(nccl.profile, {1, "node7"}) ==
        "ddprun: nccl: rank 1 on node7, communicator default_pg: 4 ranks on 2 nodes; "
        "kernels by the GPU's clock\n"
        "   calls  function             size  type      algorithm  proto    ch"
        "         min     median        p95  GB/s bus\n"
        "       4  AllReduce          25 MiB  float32   RING       SIMPLE    2"
        "   2000.0 us  2000.0 us  2000.0 us     19.66  1 without times\n"
        "       1  Send                100 B  uint8     -          -         1  1 without times\n"
        "       1  AllGather         1.5 KiB  int8      RING       LL        1  1 without times\n");
}

TEST_CASE("NCCL profile: the JSON is a trace and the table's figures", "[nccl_profile]") {
  Nccl nccl;
  nccl.run(2'000'000, 3'000'000);
  const auto json = nlohmann::json::parse(profile_json(nccl.profile, {1, "odd \xff name"}));
  const auto& communicator = json.at("communicators").at(0);
  CHECK(communicator.at("name") == "default_pg");
  CHECK(communicator.at("calls").at(0).at("bytes") == 26214400);
  CHECK(communicator.at("calls").at(0).at("p50_us") == 2000.0);
  const auto& event = json.at("traceEvents").back();
  CHECK(event.at("ph") == "X");
  CHECK(event.at("name") == "AllReduce");
  CHECK(event.at("ts") == 4000.0);  // On the host's clock.
  CHECK(event.at("dur") == 2000.0);
  CHECK(event.at("args").at("algorithm") == "RING");
}

}  // namespace
}  // namespace ddprun::worker_sdk
