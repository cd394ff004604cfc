#include "agent/output/last_words.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "agent/lines/lines.h"
#include "agent/output/log_files.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kLinesMax = 12;
constexpr std::size_t kBytesMax = 4096;
constexpr std::size_t kErrorFileBytesMax = std::size_t{256} * 1024;
constexpr std::size_t kStackBytesMax = 3072;

// The end of Python's stack is where it happened, of ours the beginning.
std::string part_of_stack(const std::string& stack, bool python) {
  return python ? tail_of(stack, kStackBytesMax) : head_of(stack, kStackBytesMax);
}

std::string without_last_newlines(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// A line of the stack that PyTorch puts behind the message of an error of its C++, or of the report
// of Python's fault handler behind that.
bool is_of_stack(const std::string& line) {
  for (const char* part : {"frame #", "Exception raised from ", "Fatal Python error: ", "Thread 0x",
                           "Current thread 0x", "  File \"", "Extension modules: "}) {
    if (line.find(part) != std::string::npos) return true;
  }
  return line.find_first_not_of(' ') == std::string::npos;
}

struct Part {
  std::size_t begin = 0;
  bool head = false;  // Its first lines explain most, so that the last ones are left out.
};

// From the head of our crash report, which may be long; else a dozen lines before the end, or
// before the stack of C++ that ends the text.
Part where_it_begins(const std::vector<std::string>& lines) {
  for (std::size_t i = lines.size(); i > 0; --i) {
    const std::string& line = lines[i - 1];
    if (line.starts_with("ddprun: rank ") && line.ends_with("; call stack:")) return {i - 1, true};
  }
  std::size_t end = lines.size();
  while (end > 0 && is_of_stack(lines[end - 1])) --end;
  const bool stack = std::any_of(
      lines.begin() + static_cast<std::ptrdiff_t>(end), lines.end(),
      [](const std::string& line) { return line.find("frame #") != std::string::npos; });
  if (!stack) end = lines.size();
  return {end > kLinesMax ? end - kLinesMax : 0, stack};
}

// So many bytes of each line that all together fit: short lines stay whole.
std::size_t share_of_each(std::vector<std::size_t> sizes, std::size_t bytes) {
  std::sort(sizes.begin(), sizes.end());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t share = bytes / (sizes.size() - i);
    if (sizes[i] > share) return share;
    bytes -= sizes[i];
  }
  return sizes.back();
}

// An exception's type is at the beginning of a line, however long its text is.
std::string with_all_lines(std::span<const std::string> lines, std::size_t bytes) {
  std::vector<std::size_t> sizes;
  for (const std::string& line : lines) sizes.push_back(line.size() + 1);
  if (sizes.empty()) return "";
  const std::size_t share = share_of_each(std::move(sizes), bytes + 1) - 1;  // The last has no end.
  std::string text;
  for (const std::string& line : lines) {
    text += (&line == lines.data() ? "" : "\n") + shortened(line, share);
  }
  return text;
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

std::string error_file_text(const std::string& text) {
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
    std::string words = error_file_text(read_file_end(error_file, kErrorFileBytesMax));
    if (!words.empty()) return words;
  }
  const Part part = where_it_begins(last_lines);
  const std::span<const std::string> lines = std::span(last_lines).subspan(part.begin);
  if (!part.head) return demangled(with_all_lines(lines, kBytesMax));
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return demangled(head_of(text, kBytesMax));
}

}  // namespace ddprun::agent
