#include "launcher/doctor/node_facts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/assert.h"
#include "common/text/figures.h"

namespace ddprun::doctor {
namespace {

using Json = nlohmann::json;
using Value = Facts::Value;

constexpr const char* kWhy = "why";  // The one member that is an object.

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

std::string cut(std::string text) {
  if (text.size() > kTextBytesMax) text.resize(kTextBytesMax);
  return text;
}

Failure damaged(const std::string& what) { return {Errc::kBadMessage, "facts: " + what}; }

std::optional<Value> read_value(const Json& json) {
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  if (json.is_number_integer()) return Value(json.get<std::int64_t>());
  if (json.is_number_float()) {
    const double number = json.get<double>();
    return std::isfinite(number) ? std::optional<Value>(number) : std::nullopt;
  }
  if (!json.is_string()) return std::nullopt;
  std::string text = json.get<std::string>();
  if (text.size() > kTextBytesMax) return std::nullopt;
  return Value(std::move(text));
}

using Values = std::map<std::string, Value, std::less<>>;

// With `nested_too`, skips members that are arrays or objects: the caller reads those.
bool read_values(const Json& object, Values& values, bool nested_too) {
  for (const auto& [name, member] : object.items()) {
    if (member.is_structured() && nested_too) continue;
    std::optional<Value> value = read_value(member);
    if (!value || !is_name(name) || values.size() >= kValuesMax) return false;
    values.emplace(name, std::move(*value));
  }
  return true;
}

Json to_json(const Values& values) {
  Json object = Json::object();
  for (const auto& [name, value] : values) {
    std::visit([&, key = name](const auto& held) { object[key] = held; }, value);
  }
  return object;
}

}  // namespace

void Facts::set(Real fact, double value) {
  if (std::isfinite(value)) values_.insert_or_assign(std::string(fact.name), value);
}

void Facts::set(Text fact, std::string value) {
  values_.insert_or_assign(std::string(fact.name), cut(std::move(value)));
}

void Facts::set_why(std::string_view name, std::string reason) {
  DDPRUN_ASSERT(is_name(name) && !reason.empty());
  why_.insert_or_assign(std::string(name), cut(std::move(reason)));
}

std::string Facts::why(std::string_view name) const {
  const auto found = why_.find(name);
  return found == why_.end() ? "" : found->second;
}

void Facts::add(std::string_view list, Facts item) {
  DDPRUN_ASSERT(is_name(list) && list != kWhy && item.lists_.empty() && item.why_.empty());
  std::vector<Facts>& items = lists_[std::string(list)];
  if (items.size() < kItemsMax) items.push_back(std::move(item));
}

const std::vector<Facts>& Facts::list(std::string_view name) const {
  static const std::vector<Facts> kNone;
  const auto found = lists_.find(name);
  return found == lists_.end() ? kNone : found->second;
}

void Facts::merge(Facts other) {
  for (auto& [name, value] : other.values_) values_.insert_or_assign(name, std::move(value));
  for (auto& [subject, reason] : other.why_) why_.insert_or_assign(subject, std::move(reason));
  for (auto& [name, items] : other.lists_) {
    for (Facts& item : items) add(name, std::move(item));
  }
}

std::string encode(const Facts& facts) {
  Json object = to_json(facts.values_);
  for (const auto& [subject, reason] : facts.why_) object[kWhy][subject] = reason;
  for (const auto& [name, items] : facts.lists_) {
    Json& list = object[name] = Json::array();
    for (const Facts& item : items) list.push_back(to_json(item.values_));
  }
  return object.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

Result<Facts> decode_facts(std::string_view text) {
  if (text.size() > kFactsBytesMax) return damaged("too many");
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return damaged("no JSON object");
  Facts facts;
  if (!read_values(object, facts.values_, true)) return damaged("a bad value");
  for (const auto& [name, member] : object.items()) {
    if (!member.is_structured()) continue;
    if (name == kWhy && member.is_object()) {
      Values reasons;
      if (!read_values(member, reasons, false)) return damaged("a bad reason");
      for (auto& [subject, reason] : reasons) {
        if (const auto* words = std::get_if<std::string>(&reason); words && !words->empty()) {
          facts.why_.emplace(subject, *words);
        }
      }
      continue;
    }
    const bool too_many = facts.lists_.size() >= kListsMax || member.size() > kItemsMax;
    if (!member.is_array() || !is_name(name) || too_many) return damaged("a bad list");
    std::vector<Facts>& items = facts.lists_[name];
    for (const Json& item : member) {
      Facts values;
      if (!item.is_object() || !read_values(item, values.values_, false)) {
        return damaged("a bad item of " + name);
      }
      items.push_back(std::move(values));
    }
  }
  return facts;
}

std::string hash_text(std::string_view bytes) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  std::uint64_t hash = kOdd ^ bytes.size();
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t size = bytes.size() < sizeof word ? bytes.size() : sizeof word;
    std::memcpy(&word, bytes.data(), size);
    hash = std::rotl((hash ^ word) * kOdd, 29);
    bytes.remove_prefix(size);
  }
  hash = (hash ^ (hash >> 32)) * kOdd;
  hash ^= hash >> 29;
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace ddprun::doctor

namespace ddprun::launcher {
namespace {

using Kind = DoctorRequest::Kind;

enum class Part { kSubnet, kName, kHost, kPort, kNonce };

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
      {Kind::kSendOver, "send-over", {kSubnet, kName, kHost, kPort, kNonce}},
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
  const auto number = as_number<std::uint16_t>(text);
  port = number.value_or(0);
  return number.has_value();
}

bool read(Part part, const std::string& word, DoctorRequest& request) {
  if (word.empty()) return false;
  switch (part) {
    case Part::kSubnet: request.subnet = word; return true;
    case Part::kName: request.name = word; return true;
    case Part::kHost: request.host = word; return true;
    case Part::kNonce: request.nonce = word; return true;
    case Part::kPort: break;
  }
  return read_port(word, request.port);
}

std::string text_of(Part part, const DoctorRequest& request) {
  switch (part) {
    case Part::kSubnet: return request.subnet;
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
