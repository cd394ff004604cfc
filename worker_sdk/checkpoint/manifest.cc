#include "worker_sdk/checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "common/archive/json.h"
#include "common/checksum.h"

namespace ddprun::worker_sdk {
namespace {

using archive::json;

constexpr const char* kFormat = "ddprun-checkpoint-1";
// A limit for sizes, so that no sum or product of two of them overflows.
constexpr archive::Bounds kManifestLimits{.bytes = kManifestBytesMax,
                                          .text_bytes = kManifestBytesMax,
                                          .items = kManifestBytesMax,
                                          .count = std::uint64_t{1} << 56};

struct Refused {
  std::string reason;
};

void require(bool ok, const std::string& reason) {
  if (!ok) throw Refused{reason};
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

DataType type_named(const std::string& name) {
  for (const TypeFacts& known : kDataTypes) {
    if (name == known.name) return known.type;
  }
  throw Refused{"there is no element type " + name};
}

std::string checksum_of(const std::string& text) { return hex(checksum(text.data(), text.size())); }

}  // namespace

template <class A>
void fields(A& a, archive::Is<ManifestPiece> auto& m) {
  std::string digits = hex(m.checksum);
  a("offset", m.offset), a("count", m.count), a("file", m.file), a("at", m.at);
  a("checksum", digits);
  if constexpr (A::kReads) {
    const bool good =
        digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!good) throw archive::BadField{"checksum"};
    m.checksum = std::stoull(digits, nullptr, 16);
  }
}
template <class A>
void fields(A& a, archive::Is<ManifestArray> auto& m) {
  std::string type = name_of(m.type);
  a("name", m.name), a("type", type), a("count", m.count), a("pieces", m.pieces);
  if constexpr (A::kReads) m.type = type_named(type);
}
void fields(auto& a, archive::Is<ManifestFile> auto& m) { a("name", m.name), a("bytes", m.bytes); }
void fields(auto& a, archive::Is<Manifest> auto& m) {
  a.constant("format", kFormat), a("step", m.step), a("world_size", m.world_size);
  a("files", m.files), a("arrays", m.arrays);
}
void fields(auto& a, archive::Is<Contribution> auto& m) {
  a("failure", m.failure), a("refusal", m.refusal), a("step", m.step), a("number", m.number);
  a("bytes", m.bytes), a("arrays", m.arrays);
}

namespace {

// Throws unless each element is there once, and each piece within its file.
void check(const ManifestArray& array, const std::vector<ManifestFile>& files) {
  const std::string name = "array '" + array.name + "'";
  std::uint64_t next = 0;
  for (const ManifestPiece& p : array.pieces) {
    require(p.offset == next, name +
                                  (p.offset < next ? " has elements that are saved twice, at "
                                                   : " lacks elements, from ") +
                                  std::to_string(std::min(p.offset, next)) + " on");
    next += p.count;
    require(p.file < files.size(), name + " is in a file that is not there");
    require(p.at + p.count * size_of(array.type) <= files[p.file].bytes,
            name + " ends beyond " + files[p.file].name);
  }
  require(next == array.count, name + " has " + std::to_string(array.count) +
                                   " elements, of which " + std::to_string(next) + " are saved");
}

void check(const Manifest& manifest) {
  require(manifest.step >= 0 && manifest.world_size >= 1, "the step or the world size is none");
  for (const ManifestFile& file : manifest.files) {
    require(!file.name.empty() && file.name.find('/') == std::string::npos && file.name != "..",
            "'" + file.name + "' is not the name of a file");
  }
  const std::string* before = nullptr;
  for (const ManifestArray& array : manifest.arrays) {
    require(!before || *before < array.name, "arrays are not in order");
    before = &array.name;
    check(array, manifest.files);
  }
}

Manifest manifest_of(json value) {
  require(value.contains("checksum") && value.at("checksum").is_string(), "it is not a manifest");
  const auto want = value.at("checksum").get<std::string>();
  value.erase("checksum");
  require(checksum_of(value.dump()) == want, "its checksum does not match");
  Manifest manifest;
  const archive::Reader reader(value, kManifestLimits);
  fields(reader, manifest);
  check(manifest);
  return manifest;
}

// Merges one rank's pieces into the entry of the same array.
void add(std::map<std::string, ManifestArray>& arrays, ManifestArray&& array, std::uint32_t file) {
  for (ManifestPiece& piece : array.pieces) piece.file = file;
  const auto [found, fresh] = arrays.try_emplace(array.name, array);
  if (fresh) return;
  ManifestArray& known = found->second;
  require(known.type == array.type && known.count == array.count,
          "array '" + array.name + "' is " + name_of(known.type) + " x " +
              std::to_string(known.count) + " and " + name_of(array.type) + " x " +
              std::to_string(array.count));
  known.pieces.insert(known.pieces.end(), array.pieces.begin(), array.pieces.end());
}

Manifest combined(std::vector<Contribution>&& all) {
  Manifest manifest{.step = all.at(0).step,
                    .world_size = static_cast<int>(all.size()),
                    .files = {},
                    .arrays = {}};
  std::map<std::string, ManifestArray> arrays;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    require(all[rank].step == manifest.step, "rank " + std::to_string(rank) + " saves step " +
                                                 std::to_string(all[rank].step) + ", rank 0 step " +
                                                 std::to_string(manifest.step));
    const auto file = static_cast<std::uint32_t>(manifest.files.size());
    if (all[rank].bytes > 0) {
      manifest.files.push_back({file_of_rank(static_cast<int>(rank)), all[rank].bytes});
    }
    for (ManifestArray& array : all[rank].arrays) {
      // An empty array is in no file.
      if (array.pieces.at(0).count == 0) array.pieces.clear();
      add(arrays, std::move(array), file);
    }
  }
  for (auto& [name, array] : arrays) {
    std::sort(array.pieces.begin(), array.pieces.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    manifest.arrays.push_back(std::move(array));
  }
  check(manifest);
  return manifest;
}

Contribution contribution_of(const json& value) {
  Contribution contribution;
  const archive::Reader reader(value, kManifestLimits);
  fields(reader, contribution);
  for (const ManifestArray& array : contribution.arrays) {
    require(array.pieces.size() == 1, "a rank saves several pieces of '" + array.name + "' as one");
  }
  return contribution;
}

json object_of(const std::string& text) {
  auto object = archive::parse_object(text, kManifestLimits);
  require(object.has_value(), object.error().context);
  return std::move(*object);
}

// The result of `read`, or the text of its exception.
template <class T, class Read>
std::variant<T, std::string> attempt(const Read& read) {
  try {
    return read();
  } catch (const Refused& refused) {
    return refused.reason;
  } catch (const archive::BadField& bad) {
    return "its field '" + bad.name + "' is missing or wrong";
  }
}

}  // namespace

ManifestOrReason combine(std::vector<Contribution> contributions) {
  return attempt<Manifest>([&] { return combined(std::move(contributions)); });
}

std::string encode(const Manifest& manifest) {
  json value = archive::tree_of(manifest, kManifestLimits);
  value["checksum"] = checksum_of(value.dump());
  return value.dump(1) + "\n";
}

std::string encode(const Contribution& contribution) {  // Paths may be anything.
  return archive::text_of(archive::tree_of(contribution, kManifestLimits));
}

ManifestOrReason decode_manifest(const std::string& text) {
  return attempt<Manifest>([&] { return manifest_of(object_of(text)); });
}

std::variant<Contribution, std::string> decode_contribution(const std::string& text) {
  return attempt<Contribution>([&] { return contribution_of(object_of(text)); });
}

bool is_utf8(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::ignore)) == text;
}

std::string file_of_rank(int rank) { return "rank-" + std::to_string(rank) + ".bin"; }

}  // namespace ddprun::worker_sdk
