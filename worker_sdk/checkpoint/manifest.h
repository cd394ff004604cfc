#pragma once
// The manifest of a checkpoint: the file and place of each part of each array. Its text is JSON
// that ends in a checksum of the rest. Pure. Written by checkpoint_writer.cc, read by
// checkpoint.cc.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "ddprun/types.h"

namespace ddprun::worker_sdk {

constexpr std::size_t kManifestBytesMax = std::size_t{256} << 20;

struct ManifestPiece {
  std::uint64_t offset = 0;  // Element index in the array.
  std::uint64_t count = 0;
  std::uint32_t file = 0;  // Into Manifest::files.
  std::uint64_t at = 0;    // Byte offset in the file.
  std::uint64_t checksum = 0;
};

struct ManifestArray {
  std::string name;
  DataType type = DataType::f32;
  std::uint64_t count = 0;
  std::vector<ManifestPiece> pieces;  // Ordered by offset; together all of the array.
};

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
};

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;
  std::vector<ManifestFile> files;
  std::vector<ManifestArray> arrays;  // Ordered by name.
};

// What one rank has to save, sent to the others before it does.
struct Contribution {
  std::string failure;  // Error of the last checkpoint; nothing is saved.
  std::string refusal;  // Why what was passed cannot be saved.
  std::int64_t step = 0;
  std::uint64_t number = 0;           // The highest of a checkpoint that it sees.
  std::uint64_t bytes = 0;            // Size of its file; 0: it has none.
  std::vector<ManifestArray> arrays;  // With one piece each; its `file` is not used.
};

// Either, or a sentence about what is wrong.
using ManifestOrReason = std::variant<Manifest, std::string>;

// By rank.
ManifestOrReason combine(std::vector<Contribution> contributions);

// Names must be UTF-8.
std::string encode(const Manifest& manifest);
std::string encode(const Contribution& contribution);

ManifestOrReason decode_manifest(const std::string& text);
// Decodes the text of a rank of the same job.
std::variant<Contribution, std::string> decode_contribution(const std::string& text);

bool is_utf8(const std::string& text);
std::string file_of_rank(int rank);  // "rank-3.bin"

}  // namespace ddprun::worker_sdk
