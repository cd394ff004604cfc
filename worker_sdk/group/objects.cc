#include "ddprun/objects.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ddprun {
namespace {

[[noreturn]] void refuse(const ProcessGroup& group, const char* operation, ErrorKind kind, int peer,
                         const std::string& text) {
  throw Error(kind,
              {.rank = group.rank(),
               .host = group.host_of(group.rank()),
               .operation = operation,
               .peer = peer},
              text);
}

void check_root(const ProcessGroup& group, const char* operation, int root) {
  if (root >= 0 && root < group.world_size()) return;
  refuse(group, operation, ErrorKind::bad_argument, -1,
         "there is no rank " + std::to_string(root) + " in a world of " +
             std::to_string(group.world_size()));
}

Buffer bytes_of(std::string& text) {
  return buffer(reinterpret_cast<std::uint8_t*>(text.data()), text.size());
}

// If there is too much, all ranks learn that and refuse alike, so the group stays in step.
void check_size(const ProcessGroup& group, const char* operation, int rank, std::int64_t size) {
  if (size >= 0 && static_cast<std::size_t>(size) <= kObjectBytesMax) return;
  refuse(group, operation, ErrorKind::bad_argument, rank,
         "rank " + std::to_string(rank) + " passes " + std::to_string(size) + " bytes; at most " +
             std::to_string(kObjectBytesMax) + " are possible");
}

std::vector<std::int64_t> gather_sizes(ProcessGroup& group, const char* operation,
                                       std::string_view bytes) {
  auto mine = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.world_size()));
  group.all_gather(buffer(&mine, 1), buffer(sizes.data(), sizes.size()), {.on_host = true});
  for (int r = 0; r < group.world_size(); ++r) {
    check_size(group, operation, r, sizes[static_cast<std::size_t>(r)]);
  }
  return sizes;
}

// All ranks' bytes are padded to the longest.
std::string padded(std::string_view bytes, const std::vector<std::int64_t>& sizes) {
  std::string result(bytes);
  result.resize(static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end())));
  return result;
}

std::vector<std::string> cut(const std::string& all, const std::vector<std::int64_t>& sizes) {
  const std::size_t room = all.size() / sizes.size();
  std::vector<std::string> parts;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    parts.push_back(all.substr(r * room, static_cast<std::size_t>(sizes[r])));
  }
  return parts;
}

}  // namespace

std::string broadcast_bytes(ProcessGroup& group, std::string_view bytes, int root) {
  check_root(group, "broadcast_bytes", root);
  std::string result(group.rank() == root ? bytes : std::string_view());
  auto size = static_cast<std::int64_t>(result.size());
  group.broadcast(buffer(&size, 1), root, {.on_host = true});
  check_size(group, "broadcast_bytes", root, size);
  result.resize(static_cast<std::size_t>(size));
  group.broadcast(bytes_of(result), root, {.on_host = true});
  return result;
}

std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view bytes) {
  const auto sizes = gather_sizes(group, "all_gather_bytes", bytes);
  std::string mine = padded(bytes, sizes);
  std::string all(mine.size() * sizes.size(), '\0');
  group.all_gather(bytes_of(mine), bytes_of(all), {.on_host = true});
  return cut(all, sizes);
}

std::vector<std::string> gather_bytes(ProcessGroup& group, std::string_view bytes, int root) {
  check_root(group, "gather_bytes", root);
  const auto sizes = gather_sizes(group, "gather_bytes", bytes);
  std::string mine = padded(bytes, sizes);
  std::string all(group.rank() == root ? mine.size() * sizes.size() : 0, '\0');
  group.gather(bytes_of(mine), bytes_of(all), root, {.on_host = true});
  if (group.rank() != root) return {};
  return cut(all, sizes);
}

}  // namespace ddprun
