// Frames under any bytes, cut anywhere: the bodies that come out must not depend on the cuts, and
// none may exceed the limit. The first byte is the length of the pieces.

#include "tests/fuzz/frames_fuzz.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "common/assert.h"
#include "common/frames.h"

namespace ddprun::fuzz {
namespace {

constexpr std::size_t kBodyBytesMax = 300;

struct Outcome {
  std::string frames;  // The bodies, framed again.
  std::string failure;

  bool operator==(const Outcome&) const = default;
};

Outcome read_all(std::string_view bytes, std::size_t piece) {
  FrameReader reader(kBodyBytesMax);
  Outcome outcome;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    reader.feed(bytes.substr(at, piece));
    for (;;) {
      const auto body = reader.next();
      if (!body) {
        outcome.failure = body.error().context;
        return outcome;
      }
      if (!*body) break;
      DDPRUN_ASSERT((*body)->size() <= kBodyBytesMax);
      append_frame(outcome.frames, **body);
    }
  }
  return outcome;
}

}  // namespace

void fuzz_frames(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = read_all(bytes, std::max<std::size_t>(bytes.size(), 1));
  const Outcome cut = read_all(bytes, 1 + data[0] % 16);
  DDPRUN_ASSERT(whole == cut);
  DDPRUN_ASSERT(bytes.starts_with(whole.frames));
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_frames(data, size);
  return 0;
}
#endif
