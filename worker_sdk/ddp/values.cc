#include "worker_sdk/ddp/values.h"

#include <algorithm>

#include "worker_sdk/base/checksum.h"
#include "worker_sdk/ddp/agreement.h"

namespace ddprun::worker_sdk {
namespace {

Buffer bytes_of(std::vector<std::uint64_t>& words) {
  return buffer(reinterpret_cast<std::uint8_t*>(words.data()), words.size() * sizeof(words[0]));
}

std::vector<std::uint64_t> gather(ProcessGroup& group, std::vector<std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(bytes_of(mine), bytes_of(all), {.on_host = true});
  return all;
}

[[noreturn]] void report(ProcessGroup& group, const std::string& name,
                         const std::vector<std::uint64_t>& hashes) {
  const int reference = reference_rank(hashes);
  std::string culprits;
  int first = -1;
  for (int r = 0; r < group.world_size(); ++r) {
    if (hashes[static_cast<std::size_t>(r)] == hashes[static_cast<std::size_t>(reference)])
      continue;
    if (first < 0) first = r;
    culprits += (culprits.empty() ? "rank " : ", rank ") + std::to_string(r) + " (" +
                group.host_of(r) + ")";
  }
  throw Error(ErrorKind::mismatch,
              {.rank = group.rank(),
               .host = group.host_of(group.rank()),
               .operation = "DistributedDataParallel",
               .peer = first},
              "the ranks' models have drifted apart: parameter " + name + " of " + culprits +
                  " differs from that of rank " + std::to_string(reference) + " (" +
                  group.host_of(reference) + ")");
}

// Of a GPU's array by way of the host.
std::uint64_t checksum_of(ProcessGroup& group, const Buffer& value) {
  if (group.backend() != "nccl") return checksum(value.data, value.bytes());
  std::vector<std::byte> bytes(value.bytes());
  group.copy(bytes.data(), value.data, bytes.size());
  return checksum(bytes.data(), bytes.size());
}

}  // namespace

void require_equal_values(ProcessGroup& group, const std::vector<Parameter>& parameters) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t all = 0;
  for (const Parameter& p : parameters) {
    hashes.push_back(checksum_of(group, p.value));
    all = checksum(&hashes.back(), sizeof all, all);
  }
  const auto sums = gather(group, {all});
  if (std::all_of(sums.begin(), sums.end(), [&](auto h) { return h == sums[0]; })) return;
  const auto every = gather(group, hashes);
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::vector<std::uint64_t> of_ranks;
    for (int r = 0; r < group.world_size(); ++r) {
      of_ranks.push_back(every[static_cast<std::size_t>(r) * parameters.size() + p]);
    }
    const bool equal =
        std::all_of(of_ranks.begin(), of_ranks.end(), [&](auto h) { return h == of_ranks[0]; });
    if (!equal) report(group, parameters[p].name, of_ranks);
  }
}

}  // namespace ddprun::worker_sdk
