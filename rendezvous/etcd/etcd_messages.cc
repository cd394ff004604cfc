#include "rendezvous/etcd/etcd_messages.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/text/figures.h"

namespace ddprun::rendezvous::etcd {
namespace {

using nlohmann::json;

constexpr int kManifestFormat = 1;
constexpr std::size_t kLoginBytesMax = 8192;  // A JWT has some hundred.
constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

Failure bad(const std::string& what) {
  return {Errc::kBadMessage, "reading etcd's answer: " + what};
}

// The answer's object; what etcd complains of is a failure.
Result<json> parse(std::string_view body) {
  json object = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("it is not a JSON object");
  const auto error = object.find("error");
  if (error == object.end()) return object;
  std::string text = error->is_string() ? error->get<std::string>() : error->dump();
  return Failure{Errc::kBadMessage, "etcd says: " + text.substr(0, 200)};
}

// Absent means 0, as everywhere in this format. etcd writes 64-bit numbers as strings.
std::optional<std::int64_t> number(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return 0;
  if (it->is_number_integer()) return it->get<std::int64_t>();
  if (!it->is_string()) return std::nullopt;
  return as_number<std::int64_t>(it->get_ref<const std::string&>());
}

std::optional<std::string> bytes(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return std::string();
  if (!it->is_string()) return std::nullopt;
  auto decoded = from_base64(it->get_ref<const std::string&>());
  if (!decoded) return std::nullopt;
  return std::move(*decoded);
}

bool flag(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

json created_by(const std::string& key, std::int64_t revision) {
  return {{"key", base64(key)},
          {"target", "CREATE"},
          {"result", "EQUAL"},
          {"create_revision", std::to_string(revision)}};
}

}  // namespace

std::string base64(std::string_view input) {
  std::string text;
  text.reserve((input.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < input.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t n = std::min<std::size_t>(3, input.size() - i);
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < n ? static_cast<unsigned char>(input[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= n ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

Result<std::string> from_base64(std::string_view text) {
  const Failure failure = bad("a text is not base64");
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return failure;
  std::string output;
  output.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t group = 0;
  int bits = 0;
  for (const char letter : text) {
    const auto* const end = kDigits + 64;
    const auto* const at = std::find(kDigits, end, letter);
    if (at == end) return failure;
    group = group << 6 | static_cast<std::uint32_t>(at - kDigits);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    output += static_cast<char>(group >> bits & 0xff);
  }
  return output;
}

std::string sortable(std::int64_t number) {
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; number >>= 4) {
    text[i] = "0123456789abcdef"[number & 15];
  }
  return text;
}

Request log_in(const std::string& user, const std::string& password) {
  // Text that is not UTF-8 cannot be encoded in JSON; etcd will refuse the replacement.
  return {"/v3/auth/authenticate", json{{"name", user}, {"password", password}}.dump(
                                       -1, ' ', false, json::error_handler_t::replace)};
}

Request grant_lease(std::int64_t seconds) {
  return {"/v3/lease/grant", json{{"TTL", std::to_string(seconds)}}.dump()};
}

Request renew_lease(std::int64_t lease) {
  return {"/v3/lease/keepalive", json{{"ID", std::to_string(lease)}}.dump()};
}

Request revoke_lease(std::int64_t lease) {
  return {"/v3/lease/revoke", json{{"ID", std::to_string(lease)}}.dump()};
}

Request get(const std::string& key) { return {"/v3/kv/range", json{{"key", base64(key)}}.dump()}; }

Request get_range(const std::string& first, const std::string& end, int limit) {
  return {"/v3/kv/range",
          json{{"key", base64(first)}, {"range_end", base64(end)}, {"limit", std::to_string(limit)}}
              .dump()};
}

Request create(const std::string& key, const std::string& value, std::int64_t lease) {
  const json put = {
      {"key", base64(key)}, {"value", base64(value)}, {"lease", std::to_string(lease)}};
  const json body = {{"compare", json::array({created_by(key, 0)})},
                     {"success", json::array({json{{"request_put", put}}})}};
  return {"/v3/kv/txn", body.dump()};
}

Request write_if(const std::string& guard, std::int64_t term, const std::vector<Put>& puts,
                 const std::vector<DeleteRange>& deletes) {
  json operations = json::array();
  for (const DeleteRange& range : deletes) {
    operations.push_back({{"request_delete_range",
                           {{"key", base64(range.first)}, {"range_end", base64(range.end)}}}});
  }
  for (const Put& put : puts) {
    operations.push_back(
        {{"request_put", {{"key", base64(put.key)}, {"value", base64(put.value)}}}});
  }
  const json body = {{"compare", json::array({created_by(guard, term)})},
                     {"success", std::move(operations)}};
  return {"/v3/kv/txn", body.dump()};
}

Result<std::string> read_login(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  const auto token = object->find("token");
  if (token == object->end() || !token->is_string()) return bad("there is no token in it");
  const auto& text = token->get_ref<const std::string&>();
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (text.empty() || text.size() > kLoginBytesMax || !printable) return bad("its token is none");
  return text;
}

Result<Lease> read_lease(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  // The gateway wraps the answers of a stream, of which a renewal is one.
  const auto result = object->find("result");
  const json& answer = result != object->end() && result->is_object() ? *result : *object;
  const auto id = number(answer, "ID");
  const auto ttl = number(answer, "TTL");
  if (!id || !ttl || *ttl < 0 || *ttl > 86'400) return bad("a lease is invalid");
  return Lease{*id, *ttl};
}

Result<Range> read_range(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  Range range;
  range.more = flag(*object, "more");
  const auto list = object->find("kvs");
  if (list == object->end()) return range;
  if (!list->is_array()) return bad("'kvs' is not a list");
  for (const json& item : *list) {
    if (!item.is_object()) return bad("a key is not an object");
    auto key = bytes(item, "key");
    auto value = bytes(item, "value");
    const auto revision = number(item, "create_revision");
    if (!key || !value || !revision) return bad("a key is invalid");
    range.found.push_back({std::move(*key), std::move(*value), *revision});
  }
  return range;
}

Result<Outcome> read_outcome(std::string_view body) {
  const Result<json> object = parse(body);
  if (!object) return object.error();
  const auto header = object->find("header");
  if (header == object->end() || !header->is_object()) return bad("it has no header");
  const auto revision = number(*header, "revision");
  if (!revision || *revision <= 0) return bad("its revision is invalid");
  return Outcome{flag(*object, "succeeded"), *revision};
}

std::string manifest_text(const JournalStart& manifest) {
  return json{{"format", kManifestFormat}, {"term", manifest.term}, {"first", manifest.first}}
      .dump();
}

Result<JournalStart> read_manifest(std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("the journal's manifest is not a JSON object");
  if (number(object, "format") != kManifestFormat) {
    return Failure{Errc::kBadMessage,
                   "the journal in etcd was written by another version of ddprun-rendezvous; start "
                   "that one again, or give another --etcd-prefix"};
  }
  const auto term = number(object, "term");
  const auto first = number(object, "first");
  if (!term || !first || *term < 0 || *first < 0 || *term == INT64_MAX) {
    return bad("the journal's manifest is invalid");
  }
  return JournalStart{*term, *first};
}

}  // namespace ddprun::rendezvous::etcd
