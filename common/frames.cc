#include "common/frames.h"

#include "common/assert.h"

namespace ddprun {
namespace {

constexpr std::size_t kHeadBytes = 4;

std::size_t decode_length(std::string_view head) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < kHeadBytes; ++i)
    length = length << 8 | static_cast<unsigned char>(head[i]);
  return length;
}

}  // namespace

void append_frame(std::string& out, std::string_view body) {
  DDPRUN_ASSERT(body.size() <= kFrameBytesMax);
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>(body.size() >> shift & 0xff);
  out += body;
}

std::string FrameReader::take_rest() {
  std::string rest = buffer_.substr(consumed_);
  buffer_.clear();
  consumed_ = 0;
  return rest;
}

Result<std::optional<std::string>> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(consumed_);
  if (rest.size() < kHeadBytes) return std::optional<std::string>();
  const std::size_t length = decode_length(rest);
  if (length > max_) {
    return Failure{Errc::kFrameTooLarge, "reading a frame of " + std::to_string(length) + " bytes"};
  }
  if (rest.size() < kHeadBytes + length) return std::optional<std::string>();
  std::optional<std::string> body(rest.substr(kHeadBytes, length));
  consumed_ += kHeadBytes + length;
  if (consumed_ == buffer_.size() || consumed_ > kFrameBytesMax) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return body;
}

}  // namespace ddprun
