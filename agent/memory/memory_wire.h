#pragma once
// What two memory servers send each other, as the bodies of frames (common/frames.h). Pure.
//
// One side, the source, has a folder; the other, the sink, wants the same files:
//
//   opener → other   Open       whose folder it is, and which of the two is the source
//   source → sink    Index …    all files of a snapshot, in frames of at most kEntriesMax; the last
//                               is marked
//   sink → source    Lacks …     which of them it lacks, and from where on
//   source → sink    Piece …    in that order; or Skip: the file changed meanwhile
//   sink → source    Ack        per piece, so that the source need not queue more than it may
//   sink → source    Committed  the snapshot is in place, as a whole
//
// A source that is asked for a folder that it does not know answers with Denial, a sink that has
// no room, too. After Committed the source may send the next Index on the same link.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/error.h"

namespace ddprun::agent::memory {

constexpr std::size_t kEntriesMax = 128;      // Of one Index or Lacks, ...
constexpr std::size_t kFilesMax = 1'000'000;  // ... and of one snapshot.
constexpr std::size_t kPathBytesMax = 4096;
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 43;  // So that their sum fits.
constexpr std::size_t kPieceBytes = 512 * 1024;
constexpr std::size_t kNameBytesMax = 512;
constexpr std::size_t kNamesMax = 16;

struct Open {
  std::string run_id;
  std::string node;  // The owner of the folder; of a fetch, the requester.
  // Of a fetch: the opener is the sink, and wants the copy that is filed under the first of these
  // names that the other knows. Empty: the opener is the source.
  std::vector<std::string> fetch;
  bool operator==(const Open&) const = default;
};

// A file of a snapshot. Two files of a path with the same size and time have the same bytes.
struct Entry {
  std::string path;  // Relative, see is_safe_path().
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // Nanoseconds since 1970.
  // It is being written: the sink keeps the older one that it has, if any.
  bool keep = false;
  bool operator==(const Entry&) const = default;
};

struct Index {
  std::vector<Entry> entries;
  bool last = false;
  bool operator==(const Index&) const = default;
};

struct Want {
  std::uint64_t entry = 0;   // Counts the entries of all frames of the Index.
  std::uint64_t offset = 0;  // The sink has so many bytes of it.
  bool operator==(const Want&) const = default;
};

struct Lacks {
  std::vector<Want> wants;
  bool last = false;
  bool operator==(const Lacks&) const = default;
};

struct Piece {
  std::uint64_t entry = 0;
  std::uint64_t offset = 0;
  std::uint64_t checksum = 0;  // Of the bytes, see common/checksum.h.
  bool last = false;           // Of its file.
  std::string bytes;
  bool operator==(const Piece&) const = default;
};

struct Skip {
  std::uint64_t entry = 0;
  bool operator==(const Skip&) const = default;
};

struct Ack {
  bool operator==(const Ack&) const = default;
};

struct Committed {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // Of all of them.
  bool operator==(const Committed&) const = default;
};

struct Denial {
  std::string reason;
  bool operator==(const Denial&) const = default;
};

using Message = std::variant<Open, Index, Lacks, Piece, Skip, Ack, Committed, Denial>;

std::string encode(const Message& message);
// As many of an Index, or of Lacks, as `items` need; the last one is marked.
template <class Part, class Item>
std::vector<std::string> encode_all(const std::vector<Item>& items) {
  std::vector<std::string> all;
  for (auto rest = items.begin(); all.empty() || rest != items.end();) {
    const auto end = rest + std::min<std::ptrdiff_t>(items.end() - rest, kEntriesMax);
    all.push_back(encode(Part{{rest, end}, end == items.end()}));
    rest = end;
  }
  return all;
}
// Refuses what is not whole, too long, or names a path that is not safe.
Result<Message> decode(std::string_view body);

// Relative, without empty parts, "." and "..", without a NUL, and of parts that can be file names.
bool is_safe_path(std::string_view path);

// `node` as the name of a folder: what is no letter, digit, '-' or '.' becomes '_'.
std::string folder_name(std::string_view node);

}  // namespace ddprun::agent::memory
