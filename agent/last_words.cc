#include "agent/last_words.h"

#include <nlohmann/json.hpp>

#include "agent/log_files.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kLinesMax = 12;
constexpr std::size_t kBytesMax = 4096;
constexpr std::size_t kErrorFileBytesMax = std::size_t{256} * 1024;

}  // namespace

// {"message": {"message": "ValueError: boom", "extraInfo": {...}}}, or a plain string as the
// message.
std::string error_file_message(const std::string& text) {
  using nlohmann::json;
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("message")) return "";
  const json* message = &file["message"];
  if (message->is_object() && message->contains("message")) message = &(*message)["message"];
  if (!message->is_string()) return "";
  return message->get<std::string>().substr(0, kBytesMax);
}

std::string last_words(const std::vector<std::string>& stderr_lines,
                       const std::string& error_file) {
  if (!error_file.empty()) {
    const std::string message = error_file_message(read_file_end(error_file, kErrorFileBytesMax));
    if (!message.empty()) return message;
  }
  const std::size_t begin = stderr_lines.size() > kLinesMax ? stderr_lines.size() - kLinesMax : 0;
  std::string text;
  for (std::size_t i = begin; i < stderr_lines.size(); ++i) {
    text += (text.empty() ? "" : "\n") + stderr_lines[i];
  }
  return text.size() > kBytesMax ? text.substr(text.size() - kBytesMax) : text;
}

}  // namespace ddprun::agent
