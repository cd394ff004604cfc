// Reads checkpoints.

#include "ddprun/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/checksum.h"
#include "common/system/descriptors.h"
#include "ddprun/objects.h"
#include "worker_sdk/checkpoint/checkpoint_folder.h"

namespace ddprun {
namespace {

using worker_sdk::ManifestArray;
using worker_sdk::ManifestPiece;

void read_exactly(const std::string& path, std::uint64_t at, void* to, std::size_t bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  auto* out = static_cast<char*>(to);
  while (file && bytes > 0) {
    const ssize_t n = ::pread(file.get(), out, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) throw Error(ErrorKind::corrupt, {}, path + " ends too early");
    if (n < 0) break;
    out += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  if (!file || bytes > 0) {
    throw Error(ErrorKind::system, {}, "cannot read " + path + ": " + std::strerror(errno));
  }
}

// The requested elements of an array: [offset, offset + count).
struct Wanted {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
  std::byte* out = nullptr;
};

}  // namespace

struct Checkpoint::Impl {
  std::string path;
  worker_sdk::Manifest manifest;
  std::vector<Array> arrays;

  const ManifestArray& array(std::string_view name, const Buffer& out, std::size_t offset) const {
    const auto refuse = [&](const std::string& text) {
      throw Error(ErrorKind::bad_argument, {.operation = "Checkpoint::read"},
                  "checkpoint " + path + ": " + text);
    };
    const auto found = std::find_if(manifest.arrays.begin(), manifest.arrays.end(),
                                    [&](const ManifestArray& a) { return a.name == name; });
    const std::string what = "array '" + std::string(name) + "'";
    if (found == manifest.arrays.end()) refuse("there is no " + what);
    if (found->type != out.type) {
      refuse(what + " is of type " + name_of(found->type) + ", not " + name_of(out.type));
    }
    if (offset > found->count || out.count > found->count - offset) {
      refuse(what + " has " + std::to_string(found->count) + " elements, not " +
             std::to_string(offset) + " + " + std::to_string(out.count));
    }
    if (!out.data && out.count > 0) refuse("the array for " + what + " is null");
    return *found;
  }

  void read_verified(const ManifestArray& array, const ManifestPiece& piece, void* to) const {
    const auto& file = manifest.files[piece.file].name;
    const std::size_t bytes = piece.count * size_of(array.type);
    read_exactly(path + "/" + file, piece.at, to, bytes);
    if (checksum(to, bytes) == piece.checksum) return;
    throw Error(ErrorKind::corrupt, {},
                "checkpoint " + path + ": " + file + " is damaged in array '" + array.name + "'");
  }

  // Reads the part of `wanted` that `piece` has. Only whole pieces can be checked.
  void read_piece(const ManifestArray& array, const ManifestPiece& piece,
                  const Wanted& wanted) const {
    const auto begin = std::max(piece.offset, wanted.offset);
    const auto end = std::min(piece.offset + piece.count, wanted.offset + wanted.count);
    if (begin >= end) return;
    const std::size_t element = size_of(array.type);
    std::byte* out = wanted.out + (begin - wanted.offset) * element;
    if (end - begin == piece.count) return read_verified(array, piece, out);
    std::vector<std::byte> whole(piece.count * element);
    read_verified(array, piece, whole.data());
    std::memcpy(out, whole.data() + (begin - piece.offset) * element, (end - begin) * element);
  }
};

Checkpoint::Checkpoint(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->manifest = worker_sdk::read_manifest(path);
  for (const ManifestArray& a : impl_->manifest.arrays) {
    impl_->arrays.push_back({a.name, a.type, a.count});
  }
}
Checkpoint::~Checkpoint() = default;

std::int64_t Checkpoint::step() const noexcept { return impl_->manifest.step; }
int Checkpoint::world_size() const noexcept { return impl_->manifest.world_size; }
const std::vector<Checkpoint::Array>& Checkpoint::arrays() const noexcept { return impl_->arrays; }

const Checkpoint::Array* Checkpoint::find(std::string_view name) const noexcept {
  for (const Array& array : impl_->arrays) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

void Checkpoint::read(std::string_view name, Buffer out, std::size_t offset) const {
  const ManifestArray& array = impl_->array(name, out, offset);
  const Wanted wanted{offset, out.count, static_cast<std::byte*>(out.data)};
  for (const ManifestPiece& piece : array.pieces) impl_->read_piece(array, piece, wanted);
}

std::optional<std::string> latest_checkpoint(const std::string& folder) {
  for (const auto& found : worker_sdk::checkpoints_in(folder)) {
    if (worker_sdk::is_complete(found.path)) return found.path;
  }
  return std::nullopt;
}

std::optional<std::string> latest_checkpoint(ProcessGroup& group, const std::string& folder) {
  std::string answer;  // The path, or "!" and rank 0's error.
  if (group.rank() == 0) {
    try {
      answer = latest_checkpoint(folder).value_or("");
    } catch (const Error& error) {
      answer = std::string("!") + error.what();
    }
  }
  answer = broadcast_bytes(group, answer, 0);
  if (answer.empty()) return std::nullopt;
  if (answer[0] == '!') throw Error(ErrorKind::system, {.peer = 0}, "rank 0: " + answer.substr(1));
  return answer;
}

// The newest checkpoint may be removed before it is opened, or while it is read.
std::optional<std::int64_t> load_latest(const std::string& folder,
                                        const std::function<void(const Checkpoint&)>& load) {
  for (auto path = latest_checkpoint(folder); path;) {
    try {
      const Checkpoint checkpoint(*path);
      load(checkpoint);
      return checkpoint.step();
    } catch (const Error&) {
      const auto newest = latest_checkpoint(folder);
      if (!newest || *newest == *path) throw;
      path = newest;
    }
  }
  return std::nullopt;
}

}  // namespace ddprun
