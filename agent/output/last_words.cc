#include "agent/output/last_words.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "agent/output/log_files.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kLinesMax = 12;
constexpr std::size_t kBytesMax = 4096;
constexpr std::size_t kErrorFileBytesMax = std::size_t{256} * 1024;
constexpr std::size_t kStackBytesMax = 3072;

bool continues_letter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// The beginning or end of `text`, at most so long, without a part of a letter of UTF-8, which is
// four bytes at most: more that look so are no text and stay.
constexpr int kRestOfLetterMax = 3;

std::string head_of(const std::string& text, std::size_t max) {
  if (text.size() <= max) return text;
  for (int i = 0; i < kRestOfLetterMax && continues_letter(text[max]); ++i) --max;
  return text.substr(0, max);
}

std::string tail_of(const std::string& text, std::size_t max) {
  if (text.size() <= max) return text;
  std::size_t begin = text.size() - max;
  for (int i = 0; i < kRestOfLetterMax && continues_letter(text[begin]); ++i) ++begin;
  return text.substr(begin);
}

// The end of Python's stack is where it happened, of ours the beginning.
std::string part_of_stack(const std::string& stack, bool python) {
  return python ? tail_of(stack, kStackBytesMax) : head_of(stack, kStackBytesMax);
}

std::string without_last_newlines(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// At the head of our crash report, which may be long, else a dozen lines before the end.
std::size_t where_it_begins(const std::vector<std::string>& lines) {
  for (std::size_t i = lines.size(); i > 0; --i) {
    const std::string& line = lines[i - 1];
    if (line.starts_with("ddprun: rank ") && line.ends_with("; call stack:")) return i - 1;
  }
  return lines.size() > kLinesMax ? lines.size() - kLinesMax : 0;
}

std::string demangled_name(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? plain.get() : name;
}

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
  return head_of(message->get<std::string>(), kBytesMax);
}

std::string error_file_words(const std::string& text) {
  using nlohmann::json;
  const std::string message = error_file_message(text);
  if (message.empty()) return "";
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json& inner = file["message"];
  if (!inner.is_object() || !inner.contains("extraInfo") || !inner["extraInfo"].is_object()) {
    return message;
  }
  for (const char* name : {"py_callstack", "cpp_callstack"}) {
    const json& extra = inner["extraInfo"];
    if (!extra.contains(name) || !extra[name].is_string()) continue;
    const bool python = std::string_view(name) == "py_callstack";
    const std::string stack =
        part_of_stack(without_last_newlines(extra[name].get<std::string>()), python);
    // Python's ends in the message.
    if (python) return stack.ends_with(message) ? stack : stack + "\n" + message;
    return head_of(message, kBytesMax - kStackBytesMax) + "\n" + demangled(stack);
  }
  return message;
}

std::string demangled(std::string_view text) {
  std::string out;
  for (std::size_t at; (at = text.find("(_Z")) != std::string_view::npos;) {
    out.append(text.substr(0, at + 1));
    text.remove_prefix(at + 1);
    const std::size_t end = std::min(text.find_first_of("+)\n"), text.size());
    out += demangled_name(std::string(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return out.append(text);
}

std::string last_words(const std::vector<std::string>& last_lines, const std::string& error_file) {
  if (!error_file.empty()) {
    std::string words = error_file_words(read_file_end(error_file, kErrorFileBytesMax));
    if (!words.empty()) return words;
  }
  const std::size_t begin = where_it_begins(last_lines);
  std::string text;
  for (std::size_t i = begin; i < last_lines.size(); ++i) {
    text += (text.empty() ? "" : "\n") + last_lines[i];
  }
  return demangled(tail_of(text, kBytesMax));
}

}  // namespace ddprun::agent
