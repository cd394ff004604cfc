#include "worker_sdk/nccl/nccl_preflight.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "common/archive/packed.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::size_t kTextMax = 4096;  // For a rank's error.
constexpr std::size_t kBusIdMax = 64;

std::string version_text(int v) {
  return std::to_string(v / 10000) + "." + std::to_string(v % 10000 / 100) + "." +
         std::to_string(v % 100);
}

std::string name(int rank, const std::vector<std::string>& hosts) {
  return "rank " + std::to_string(rank) + " on " + hosts[static_cast<std::size_t>(rank)];
}

// The version that most ranks have; of equals, that of the lowest rank.
int usual_version(const std::vector<GpuFacts>& facts) {
  std::map<int, int> votes;
  for (const GpuFacts& f : facts) ++votes[f.nccl_version];
  return std::max_element(facts.begin(), facts.end(),
                          [&](const GpuFacts& a, const GpuFacts& b) {
                            return votes.at(a.nccl_version) < votes.at(b.nccl_version);
                          })
      ->nccl_version;
}

}  // namespace

void fields(auto& a, archive::Is<GpuFacts> auto& m) {
  a("nccl_version", m.nccl_version), a("device", m.device);
  a.text("bus_id", m.bus_id, kBusIdMax), a("may_share", m.may_share);
  a.text("error", m.error, kTextMax);
}

std::string encode(const GpuFacts& facts) {
  GpuFacts sent = facts;
  sent.error.resize(std::min(sent.error.size(), kTextMax));
  std::ranges::replace(sent.error, '\n', ' ');
  return archive::packed<archive::Ended<'\n'>>(sent);
}
Result<GpuFacts> decode_gpu_facts(std::string_view text) {
  return archive::unpacked<archive::Ended<'\n'>, GpuFacts>(text, "the facts of a GPU");
}

std::optional<Objection> objection(const std::vector<GpuFacts>& facts,
                                   const std::vector<std::string>& hosts,
                                   const std::vector<std::string>& domains) {
  const auto n = static_cast<int>(facts.size());
  for (int r = 0; r < n; ++r) {
    const std::string& error = facts[static_cast<std::size_t>(r)].error;
    if (!error.empty()) return Objection{r, name(r, hosts) + " cannot use NCCL: " + error};
  }
  const int usual = usual_version(facts);
  std::map<std::pair<std::string, std::string>, int> users;  // The first user of each GPU.
  for (int r = 0; r < n; ++r) {
    const GpuFacts& mine = facts[static_cast<std::size_t>(r)];
    if (mine.nccl_version != usual) {
      return Objection{r, name(r, hosts) + " has NCCL " + version_text(mine.nccl_version) +
                              ", the others " + version_text(usual) + "; all ranks need the same"};
    }
    const auto [first, is_new] =
        users.try_emplace({domains[static_cast<std::size_t>(r)], mine.bus_id}, r);
    if (is_new || mine.may_share) continue;
    return Objection{r, name(r, hosts) + " and rank " + std::to_string(first->second) +
                            " use the same GPU (device " + std::to_string(mine.device) + ", " +
                            mine.bus_id +
                            "); give each rank its own by LOCAL_RANK, NcclOptions::device or "
                            "CUDA_VISIBLE_DEVICES"};
  }
  return std::nullopt;
}

int roots_for(int world_size, int ranks_per_root) {
  return std::max(1, (world_size + ranks_per_root - 1) / ranks_per_root);
}

int root_of(int rank, int world_size, int roots) {
  const int larger = world_size % roots;  // The number of parts that have one rank more.
  const int part = world_size / roots;
  const int in_larger = larger * (part + 1);
  if (rank < in_larger) return rank % (part + 1) == 0 ? rank / (part + 1) : -1;
  const int rest = rank - in_larger;
  return rest % part == 0 ? larger + rest / part : -1;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(&text[i], &text[i] + 2, value, 16);
    if (error != std::errc() || end != &text[i] + 2) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  return bytes;
}

}  // namespace ddprun::worker_sdk
