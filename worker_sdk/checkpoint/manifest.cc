#include "worker_sdk/checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/checksum.h"

namespace ddprun::worker_sdk {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "ddprun-checkpoint-1";
// A limit for sizes, so that no sum or product of two of them overflows.
constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 56;

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

std::string checksum_of(const std::string& text) { return hex(checksum(text.data(), text.size())); }

DataType type_named(const std::string& name) {
  for (const TypeFacts& known : kDataTypes) {
    if (name == known.name) return known.type;
  }
  throw Refused{"there is no element type " + name};
}

std::uint64_t size_at(const json& object, const char* key) {
  const json& value = object.at(key);
  require(value.is_number_unsigned() && value.get<std::uint64_t>() <= kSizeMax,
          std::string(key) + " is not a size");
  return value.get<std::uint64_t>();
}

std::int64_t step_at(const json& object) {
  require(object.at("step").is_number_integer(), "the step is not a number");
  return object.at("step").get<std::int64_t>();
}

json to_json(const ManifestArray& array) {
  json pieces = json::array();
  for (const ManifestPiece& p : array.pieces) {
    pieces.push_back({{"offset", p.offset},
                      {"count", p.count},
                      {"file", p.file},
                      {"at", p.at},
                      {"checksum", hex(p.checksum)}});
  }
  return {{"name", array.name},
          {"type", name_of(array.type)},
          {"count", array.count},
          {"pieces", std::move(pieces)}};
}

ManifestPiece piece_of(const json& value) {
  const auto digits = value.at("checksum").get<std::string>();
  require(digits.size() == 16 && digits.find_first_not_of("0123456789abcdef") == std::string::npos,
          "a checksum is none");
  return {.offset = size_at(value, "offset"),
          .count = size_at(value, "count"),
          .file = static_cast<std::uint32_t>(std::min<std::uint64_t>(size_at(value, "file"), ~0U)),
          .at = size_at(value, "at"),
          .checksum = std::stoull(digits, nullptr, 16)};
}

ManifestArray array_of(const json& value) {
  ManifestArray array{.name = value.at("name").get<std::string>(),
                      .type = type_named(value.at("type").get<std::string>()),
                      .count = size_at(value, "count"),
                      .pieces = {}};
  for (const json& piece : value.at("pieces")) array.pieces.push_back(piece_of(piece));
  return array;
}

std::vector<ManifestArray> arrays_of(const json& value) {
  std::vector<ManifestArray> arrays;
  for (const json& array : value.at("arrays")) arrays.push_back(array_of(array));
  return arrays;
}

json to_json(const std::vector<ManifestArray>& arrays) {
  json result = json::array();
  for (const ManifestArray& array : arrays) result.push_back(to_json(array));
  return result;
}

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
  require(value.is_object() && value.contains("checksum"), "it is not a manifest");
  const auto want = value.at("checksum").get<std::string>();
  value.erase("checksum");
  require(checksum_of(value.dump()) == want, "its checksum does not match");
  require(value.at("format") == kFormat, "its format is not " + std::string(kFormat));
  Manifest manifest{.step = step_at(value),
                    .world_size = static_cast<int>(
                        std::min<std::uint64_t>(size_at(value, "world_size"), 1U << 30)),
                    .files = {},
                    .arrays = arrays_of(value)};
  for (const json& file : value.at("files")) {
    manifest.files.push_back({file.at("name").get<std::string>(), size_at(file, "bytes")});
  }
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
  Contribution c{.failure = value.at("failure").get<std::string>(),
                 .refusal = value.at("refusal").get<std::string>(),
                 .step = step_at(value),
                 .number = size_at(value, "number"),
                 .bytes = size_at(value, "bytes"),
                 .arrays = arrays_of(value)};
  for (const ManifestArray& array : c.arrays) {
    require(array.pieces.size() == 1, "a rank saves several pieces of '" + array.name + "' as one");
  }
  return c;
}

// The result of `read`, or the text of its exception.
template <class T, class Read>
std::variant<T, std::string> attempt(const Read& read) {
  try {
    return read();
  } catch (const Refused& refused) {
    return refused.reason;
  } catch (const json::exception&) {
    return std::string("it is not the JSON that was expected");
  }
}

}  // namespace

ManifestOrReason combine(std::vector<Contribution> contributions) {
  return attempt<Manifest>([&] { return combined(std::move(contributions)); });
}

std::string encode(const Manifest& manifest) {
  json files = json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  json value = {{"format", kFormat},
                {"step", manifest.step},
                {"world_size", manifest.world_size},
                {"files", std::move(files)},
                {"arrays", to_json(manifest.arrays)}};
  const std::string sum = checksum_of(value.dump());
  value["checksum"] = sum;
  return value.dump(1) + "\n";
}

std::string encode(const Contribution& c) {
  return json{{"failure", c.failure}, {"refusal", c.refusal}, {"step", c.step},
              {"number", c.number},   {"bytes", c.bytes},     {"arrays", to_json(c.arrays)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);  // Paths may be anything.
}

ManifestOrReason decode_manifest(const std::string& text) {
  if (text.size() > kManifestBytesMax) return std::string("it is too large");
  return attempt<Manifest>([&] { return manifest_of(json::parse(text)); });
}

std::variant<Contribution, std::string> decode_contribution(const std::string& text) {
  return attempt<Contribution>([&] { return contribution_of(json::parse(text)); });
}

bool is_utf8(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::ignore)) == text;
}

std::string file_of_rank(int rank) { return "rank-" + std::to_string(rank) + ".bin"; }

}  // namespace ddprun::worker_sdk
