#include "worker_sdk/ddp/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <sstream>

#include "common/assert.h"
#include "common/checksum.h"
#include "worker_sdk/group/group_inside.h"

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

// Copies an array of a GPU to the host first.
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

namespace {

constexpr std::size_t kComplaintBytes = 512;
constexpr std::size_t kCulpritsInMessage = 8;
constexpr std::size_t kOptions = 9;  // Lines of a signature before those of the parameters.
using Complaint = std::array<char, kComplaintBytes>;

std::string without_name(const std::string& line) { return line.substr(0, line.find('\t')); }
std::string name_in(const std::string& line) {
  const auto tab = line.find('\t');
  return tab == std::string::npos ? std::string() : line.substr(tab + 1);
}

template <class Range>
Buffer bytes_of(Range& range) {
  return buffer(reinterpret_cast<std::uint8_t*>(range.data()), range.size() * sizeof(range[0]));
}

std::vector<std::uint64_t> gather_hashes(ProcessGroup& group, std::uint64_t mine) {
  std::array<std::uint64_t, 1> in{mine};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(bytes_of(in), bytes_of(all), {.on_host = true});
  return all;
}

std::vector<std::string> broadcast_lines(ProcessGroup& group, const std::vector<std::string>& lines,
                                         int root) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  std::int64_t size = static_cast<std::int64_t>(text.size());
  group.broadcast(buffer(&size, 1), root, {.on_host = true});
  text.resize(static_cast<std::size_t>(size));
  group.broadcast(bytes_of(text), root, {.on_host = true});
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

std::vector<Complaint> gather_complaints(ProcessGroup& group, const std::string& mine) {
  Complaint in{};
  std::memcpy(in.data(), mine.data(), std::min(mine.size(), in.size() - 1));
  std::vector<Complaint> all(static_cast<std::size_t>(group.world_size()));
  group.all_gather(bytes_of(in), bytes_of(all), {.on_host = true});
  return all;
}

std::string at(const ProcessGroup& group, int rank) {
  return "rank " + std::to_string(rank) + " (" + group.host_of(rank) + ")";
}

}  // namespace

std::vector<std::string> signature(const std::vector<Parameter>& parameters,
                                   const DdpOptions& options, const std::string& hook) {
  std::vector<std::string> lines{"first_bucket_bytes " + std::to_string(options.first_bucket_bytes),
                                 "bucket_bytes " + std::to_string(options.bucket_bytes),
                                 "broadcast_at_start " + std::to_string(options.broadcast_at_start),
                                 "find_unused " + std::to_string(options.find_unused),
                                 "static_graph " + std::to_string(options.static_graph),
                                 "uneven_inputs " + std::to_string(options.uneven_inputs),
                                 "checksum_every " + std::to_string(options.checksum_every),
                                 "timer.window " + std::to_string(options.timer.window),
                                 "hook " + hook};
  DDPRUN_ASSERT(lines.size() == kOptions);
  for (const Parameter& p : parameters) {
    std::string line = std::string(name_of(p.value.type)) + " [";
    for (std::size_t d = 0; d < p.shape.size(); ++d) {
      line += (d == 0 ? "" : ", ") + std::to_string(p.shape[d]);
    }
    std::string name = p.name;
    std::replace(name.begin(), name.end(), '\n', ' ');
    lines.push_back(line + "]\t" + name);
  }
  return lines;
}

std::uint64_t hash_of(const std::vector<std::string>& signature) {
  std::uint64_t h = 0xcbf29ce484222325U;  // FNV-1a.
  for (const std::string& line : signature) {
    for (const char c : line + '\n') {
      h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    }
  }
  return h;
}

int reference_rank(const std::vector<std::uint64_t>& hashes) {
  std::map<std::uint64_t, int> votes;
  for (const std::uint64_t h : hashes) ++votes[h];
  const auto best = std::max_element(hashes.begin(), hashes.end(), [&](auto a, auto b) {
    return votes.at(a) < votes.at(b);  // max_element gives the first of equals.
  });
  return static_cast<int>(best - hashes.begin());
}

std::optional<std::string> difference(const std::vector<std::string>& mine,
                                      const std::vector<std::string>& reference) {
  for (std::size_t i = 0; i < std::min(mine.size(), reference.size()); ++i) {
    if (mine[i] == reference[i]) continue;
    const std::string here = without_name(mine[i]);
    const std::string there = without_name(reference[i]);
    if (i < kOptions) return "has option " + here + " instead of " + there;
    return "has parameter " + std::to_string(i - kOptions) + " '" + name_in(mine[i]) + "' " + here +
           " instead of '" + name_in(reference[i]) + "' " + there;
  }
  if (mine.size() == reference.size()) return std::nullopt;
  const auto& longer = mine.size() > reference.size() ? mine : reference;
  return "has " + std::to_string(mine.size() - kOptions) + " parameters instead of " +
         std::to_string(reference.size() - kOptions) + " ('" +
         name_in(longer[std::min(mine.size(), reference.size())]) + "' is the first that " +
         (mine.size() > reference.size() ? "is new)" : "is missing)");
}

void require_agreement(ProcessGroup& group, const std::vector<std::string>& signature) {
  const auto hashes = gather_hashes(group, hash_of(signature));
  if (std::all_of(hashes.begin(), hashes.end(), [&](auto h) { return h == hashes[0]; })) return;

  const int reference = reference_rank(hashes);
  const auto theirs = broadcast_lines(group, signature, reference);
  const auto complaints = gather_complaints(group, difference(signature, theirs).value_or(""));
  std::string text;
  int culprit = -1;
  std::size_t culprits = 0;
  for (int r = 0; r < group.world_size(); ++r) {
    const char* complaint = complaints[static_cast<std::size_t>(r)].data();
    if (*complaint == '\0') continue;
    if (culprit < 0) culprit = r;
    if (++culprits <= kCulpritsInMessage) text += at(group, r) + " " + complaint + "; ";
  }
  if (culprits > kCulpritsInMessage) {
    text += std::to_string(culprits - kCulpritsInMessage) + " more ranks differ; ";
  }
  const Error error(
      ErrorKind::mismatch,
      {.rank = group.rank(),
       .host = group.host_of(group.rank()),
       .operation = "DistributedDataParallel",
       .peer = culprit},
      "the model is not the same on all ranks: " + text + "compared with " + at(group, reference));
  GroupInside::note_failure(group, error);
  throw error;
}

}  // namespace ddprun::worker_sdk
