#include "agent/lines/line_splitter.h"

#include "common/assert.h"

namespace ddprun::agent {
namespace {

// Where to cut `text`, which is longer than kLineBytesMax, so that no UTF-8 character is torn.
std::size_t cut_position(std::string_view text) {
  DDPRUN_ASSERT(text.size() > kLineBytesMax);
  std::size_t position = kLineBytesMax;
  for (int i = 0; i < 3 && (text[position] & 0xc0) == 0x80; ++i) --position;
  return (text[position] & 0xc0) == 0x80 ? kLineBytesMax : position;
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, LineSink& sink) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) break;
    end_line(bytes.substr(0, newline), sink);
    bytes.remove_prefix(newline + 1);
  }
  bytes = take_progress(bytes, sink);
  partial_.append(bytes);
  if (partial_.size() > kLineBytesMax) {
    const std::size_t kept = cut(partial_, sink).size();
    partial_.erase(0, partial_.size() - kept);
  }
  DDPRUN_ASSERT(partial_.size() <= kLineBytesMax);
}

void LineSplitter::finish(LineSink& sink) {
  if (!partial_.empty() || !progress_.empty()) end_line({}, sink);
}

// `rest` is what comes before a '\n'.
void LineSplitter::end_line(std::string_view rest, LineSink& sink) {
  if (rest.ends_with('\r')) rest.remove_suffix(1);
  rest = take_progress(rest, sink);
  if (!partial_.empty()) {
    partial_.append(rest);
    rest = partial_;
    if (rest.ends_with('\r')) rest.remove_suffix(1);
  }
  if (rest.empty()) rest = progress_;
  sink.on_line(cut(rest, sink));
  partial_.clear();
  progress_.clear();
}

// Deals with all that ends in '\r'; returns what follows the last one.
std::string_view LineSplitter::take_progress(std::string_view bytes, LineSink& sink) {
  for (std::size_t end; (end = bytes.find('\r')) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    partial_.append(bytes.substr(0, end));
    if (!partial_.empty()) {
      progress_.assign(cut(partial_, sink));
      sink.on_progress(progress_);
    }
    partial_.clear();
  }
  return bytes;
}

// Gives away whole pieces; returns what is left.
std::string_view LineSplitter::cut(std::string_view text, LineSink& sink) {
  while (text.size() > kLineBytesMax) {
    const std::size_t position = cut_position(text);
    sink.on_piece(text.substr(0, position));
    text.remove_prefix(position);
  }
  return text;
}

}  // namespace ddprun::agent
