#include "launcher/doctor/doctor_request.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "common/assert.h"

namespace ddprun::launcher {
namespace {

using Kind = DoctorRequest::Kind;

enum class Part { kName, kHost, kPort, kNonce };

struct Form {
  Kind kind;
  std::string_view word;
  std::vector<Part> parts;
};

const std::vector<Form>& forms() {
  using enum Part;
  static const std::vector<Form> kForms = {
      {Kind::kFacts, "facts", {}},
      {Kind::kClock, "clock", {}},
      {Kind::kListen, "listen", {kNonce, kPort}},
      {Kind::kMeet, "meet", {kHost, kPort, kNonce}},
      {Kind::kReach, "reach", {kName, kHost, kPort, kNonce}},
      {Kind::kSend, "send", {kName, kHost, kPort, kNonce}},
  };
  return kForms;
}

std::vector<std::string> words_of(std::string_view text) {
  constexpr std::size_t kWordsMax = 8;
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size() && words.size() <= kWordsMax;) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool read_port(const std::string& text, std::uint16_t& port) {
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, port);
  return error == std::errc() && end == last && !text.empty();
}

bool read(Part part, const std::string& word, DoctorRequest& request) {
  if (word.empty()) return false;
  switch (part) {
    case Part::kName: request.name = word; return true;
    case Part::kHost: request.host = word; return true;
    case Part::kNonce: request.nonce = word; return true;
    case Part::kPort: break;
  }
  return read_port(word, request.port);
}

std::string text_of(Part part, const DoctorRequest& request) {
  switch (part) {
    case Part::kName: return request.name;
    case Part::kHost: return request.host;
    case Part::kNonce: return request.nonce;
    case Part::kPort: break;
  }
  return std::to_string(request.port);
}

}  // namespace

std::string encode(const DoctorRequest& request) {
  for (const Form& form : forms()) {
    if (form.kind != request.kind) continue;
    std::string text(form.word);
    for (const Part part : form.parts) text += " " + text_of(part, request);
    return text;
  }
  DDPRUN_ASSERT(false);
  return "";
}

std::optional<DoctorRequest> decode_request(std::string_view text) {
  const std::vector<std::string> words = words_of(text);
  for (const Form& form : forms()) {
    if (words.front() != form.word || words.size() != form.parts.size() + 1) continue;
    DoctorRequest request{.kind = form.kind};
    for (std::size_t i = 0; i < form.parts.size(); ++i) {
      if (!read(form.parts[i], words[i + 1], request)) return std::nullopt;
    }
    return request;
  }
  return std::nullopt;
}

std::optional<Result<doctor::Facts>> answer_in(std::string_view line) {
  if (!line.starts_with(kAnswer)) return std::nullopt;
  return doctor::decode_facts(line.substr(kAnswer.size()));
}

}  // namespace ddprun::launcher
