// Manifests of checkpoints, and the ranks' parts of them, under any bytes. What is accepted must be
// in order, and the same when it is written and read again. Damage is given a checksum that fits,
// so that what comes after the checksum is reached, too.

#include "tests/fuzz/manifest_fuzz.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "common/assert.h"
#include "common/checksum.h"
#include "worker_sdk/checkpoint/manifest.h"

namespace ddprun::fuzz {
namespace {

using namespace ddprun::worker_sdk;
using nlohmann::json;

std::string with_checksum(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) return text;
  value.erase("checksum");
  try {
    const std::string body = value.dump();
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx",
                  static_cast<unsigned long long>(checksum(body.data(), body.size())));
    value["checksum"] = digits;
    return value.dump();
  } catch (const json::exception&) {
    return text;
  }
}

void check(const std::string& text) {
  const auto decoded = decode_manifest(text);
  if (const auto* reason = std::get_if<std::string>(&decoded)) {
    DDPRUN_ASSERT(!reason->empty());
    return;
  }
  const auto& manifest = std::get<Manifest>(decoded);
  for (const ManifestArray& array : manifest.arrays) {
    std::uint64_t next = 0;
    for (const ManifestPiece& piece : array.pieces) {
      DDPRUN_ASSERT(piece.offset == next);
      next += piece.count;
      DDPRUN_ASSERT(piece.at + piece.count * size_of(array.type) <=
                    manifest.files.at(piece.file).bytes);
    }
    DDPRUN_ASSERT(next == array.count);
  }
  const auto again = decode_manifest(encode(manifest));
  DDPRUN_ASSERT(encode(std::get<Manifest>(again)) == encode(manifest));
}

Manifest example() {
  return {.step = 12,
          .world_size = 2,
          .files = {{"rank-0.bin", 44}, {"rank-1.bin", 8}},
          .arrays = {{"a", DataType::f32, 7, {{0, 5, 0, 0, 77}, {5, 2, 1, 0, 78}}},
                     {"b/c", DataType::u8, 24, {{0, 24, 0, 20, 79}}},
                     {"none", DataType::i64, 0, {}}}};
}

}  // namespace

void fuzz_manifest(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check(text);
  check(with_checksum(text));
  auto result = decode_contribution(text);
  if (auto* contribution = std::get_if<Contribution>(&result)) {
    const auto combined = combine({*contribution, *contribution});
    if (const auto* manifest = std::get_if<Manifest>(&combined)) check(encode(*manifest));
  }
}

void manifests_with_damage(int times) {
  Contribution contribution;
  contribution.step = 3;
  contribution.number = 3;
  contribution.bytes = 8;
  contribution.arrays = {{"a", DataType::f64, 1, {{0, 1, 0, 0, 5}}}};
  const std::string real[] = {encode(example()), encode(contribution), "[]", "{}", ""};
  std::mt19937 random(7);
  for (int i = 0; i < times; ++i) {
    std::string bytes = real[random() % 5];
    for (unsigned n = random() % 4; n > 0 && !bytes.empty(); --n) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes[at] = static_cast<char>('0' + random() % 10); break;
        case 2: bytes.insert(at, 1, static_cast<char>('0' + random() % 10)); break;
        default: bytes.erase(at, 1 + random() % 9);
      }
    }
    fuzz_manifest(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_manifest(data, size);
  return 0;
}
#endif
