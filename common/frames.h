#pragma once
// Frames of the control link: a 4-byte big-endian length and that many bytes (docs/protocol.md §2).
// Pure: bytes in, bodies out. Used by the daemon and by its client.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun {

constexpr std::size_t kFrameBytesMax = std::size_t{1} << 20;

// Appends the frame that carries `body` to `out`. `body` must not exceed kFrameBytesMax.
void append_frame(std::string& out, std::string_view body);

// Cuts a stream of bytes, which may arrive in pieces of any size, into bodies.
class FrameReader {
 public:
  explicit FrameReader(std::size_t body_bytes_max = kFrameBytesMax) : max_(body_bytes_max) {}

  void feed(std::string_view bytes) { buffer_.append(bytes); }

  // The next whole body; nothing if more bytes are needed; a Failure once a length is above the
  // limit, after which the stream cannot be read any further.
  Result<std::optional<std::string>> next();

  // What has been fed and belongs to no body yet. Afterwards there is nothing of it left here.
  std::string take_rest();

 private:
  std::size_t max_;
  std::string buffer_;
  std::size_t consumed_ = 0;
};

}  // namespace ddprun
