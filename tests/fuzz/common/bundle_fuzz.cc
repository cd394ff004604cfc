// Bundles under any bytes: what is accepted fits into the file, and is the same when it is written
// and read again. The bytes are also tried as a head behind a start that fits.

#include "tests/fuzz/common/bundle_fuzz.h"

#include <string>

#include "common/assert.h"
#include "common/bundle.h"
#include "common/checksum.h"

namespace ddprun::fuzz {
namespace {

void check(const std::string& file, std::uint64_t size) {
  const auto found = decode_start(file, size);
  if (!found) {
    DDPRUN_ASSERT(!found.error().context.empty());
    return;
  }
  const Bundle& bundle = found->bundle;
  DDPRUN_ASSERT(found->items_at + bundle.item_bytes() + kChecksumBytes == size);
  const auto start = encode_start(bundle);
  if (!start) return;  // What was not UTF-8 or needs no escape has become longer.
  const auto again = decode_start(*start, start->size() + bundle.item_bytes() + kChecksumBytes);
  DDPRUN_ASSERT(again);
  DDPRUN_ASSERT(again->bundle.items.size() == bundle.items.size());
  DDPRUN_ASSERT(again->bundle.step == bundle.step && again->bundle.shard == bundle.shard);
  DDPRUN_ASSERT(!compare(bundle, {.work = bundle.work, .found = bundle.why}).text.empty());
}

}  // namespace

void fuzz_bundle(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes, size);
  if (size > kBundleHeadMax) return;
  std::string file = "ddprunB1";
  for (int i = 0; i < 8; ++i) file += static_cast<char>(size >> (8 * i) & 0xff);
  check(file + bytes, file.size() + size + kChecksumBytes);
  check(file + bytes, file.size() + size + kChecksumBytes + 10);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_bundle(data, size);
  return 0;
}
#endif
