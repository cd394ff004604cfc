#include "agent/lines/line_format.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

using nlohmann::json;

std::string quoted_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string time_text(std::int64_t time) {
  std::array<char, 48> text{};
  constexpr std::int64_t kSecond = 1'000'000;
  std::snprintf(text.data(), text.size(), "{\"time\":%lld.%06lld,",
                static_cast<long long>(time / kSecond), static_cast<long long>(time % kSecond));
  return text.data();
}

}  // namespace

Speaker make_speaker(const SpeakerFacts& facts, std::string prefix) {
  Speaker speaker{.rank = facts.rank,
                  .is_stderr = facts.is_stderr,
                  .prefix = std::move(prefix),
                  .json_head = {},
                  .json_tail = {}};
  speaker.json_head = "\"host\":" + quoted_text(facts.hostname) +
                      ",\"role\":" + quoted_text(facts.role) +
                      ",\"restart_count\":" + std::to_string(facts.restart_count) + ",";
  speaker.json_tail =
      std::string("\"stream\":\"") + (facts.is_stderr ? "stderr" : "stdout") + "\",\"line\":\"";
  return speaker;
}

std::string json_before(const Speaker& speaker, std::int64_t time) {
  return time_text(time) + speaker.json_head + "\"rank\":" + std::to_string(speaker.rank) + "," +
         speaker.json_tail;
}

std::string json_before_folded(const Speaker& speaker, const std::set<int>& ranks,
                               std::int64_t time) {
  return time_text(time) + speaker.json_head + "\"ranks\":" + json(ranks).dump() + "," +
         speaker.json_tail;
}

std::string_view json_after(bool whole) { return whole ? "\"}" : "\",\"goes_on\":true}"; }

std::string_view json_text(std::string_view text, std::string& scratch) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return byte >= 0x20 && byte < 0x7f && letter != '"' && letter != '\\';
  });
  if (plain) return text;
  scratch = quoted_text(text);
  DDPRUN_ASSERT(scratch.size() >= 2 && scratch.front() == '"' && scratch.back() == '"');
  return std::string_view(scratch).substr(1, scratch.size() - 2);
}

}  // namespace ddprun::agent
