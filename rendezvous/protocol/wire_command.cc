#include "rendezvous/protocol/wire_command.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace ddprun::rendezvous {
namespace {

using nlohmann::json;

constexpr std::size_t kNameBytesMax = 256;
constexpr std::size_t kReasonBytesMax = 4096;
constexpr std::size_t kAnswerBytesMax = std::size_t{64} << 10;
constexpr int kDepthMax = 2;  // No message of these has anything inside.

constexpr Command::Verb kVerbs[] = {
    Command::Verb::kStatus, Command::Verb::kDrain, Command::Verb::kCancel, Command::Verb::kReport,
    Command::Verb::kResize, Command::Verb::kWatch, Command::Verb::kHistory};

// Reads fields one after the other and keeps the name of the first that is not what it should be.
class Fields {
 public:
  Fields(std::string_view body, const char* is)
      : object_(json::parse(
            body, [](int depth, json::parse_event_t, json&) { return depth <= kDepthMax; },
            /*allow_exceptions=*/false)),
        is_(is) {
    if (text("is", kNameBytesMax) != is) bad_ = "is";
  }

  std::string text(const char* name, std::size_t bytes_max) {
    const json* value = find(name, &json::is_string);
    if (!value || value->get_ref<const std::string&>().size() > bytes_max) return bad(name), "";
    return value->get<std::string>();
  }
  int whole(const char* name) {
    const json* value = find(name, &json::is_number_integer);
    const auto wide = value ? value->get<std::int64_t>() : std::numeric_limits<std::int64_t>::max();
    if (wide != static_cast<int>(wide)) return bad(name), 0;
    return static_cast<int>(wide);
  }
  int whole_or(const char* name, int fallback) {
    return object_.is_object() && object_.contains(name) ? whole(name) : fallback;
  }
  bool flag(const char* name) {
    const json* value = find(name, &json::is_boolean);
    return value ? value->get<bool>() : (bad(name), false);
  }
  bool flag_or(const char* name, bool fallback) {
    return object_.is_object() && object_.contains(name) ? flag(name) : fallback;
  }
  Command::Verb verb(const char* name) {
    const std::string given = text(name, kNameBytesMax);
    for (const Command::Verb verb : kVerbs) {
      if (given == name_of(verb)) return verb;
    }
    return bad(name), Command::Verb::kStatus;
  }

  template <class Message>
  Result<Message> done(Message message) const {
    if (!bad_) return message;
    return Failure{Errc::kBadMessage, "decoding field '" + *bad_ + "' of '" + is_ + "'"};
  }

 private:
  const json* find(const char* name, bool (json::*is)() const noexcept) const {
    if (!object_.is_object()) return nullptr;
    const auto it = object_.find(name);
    return it != object_.end() && ((*it).*is)() ? &*it : nullptr;
  }
  void bad(const char* name) {
    if (!bad_) bad_ = name;
  }

  json object_;
  std::string is_;
  std::optional<std::string> bad_;
};

std::string text_of(const json& object) {
  // Reasons are typed by people: any bytes. JSON text may not be.
  return object.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

}  // namespace

const char* name_of(Command::Verb verb) {
  switch (verb) {
    case Command::Verb::kStatus: return "status";
    case Command::Verb::kDrain: return "drain";
    case Command::Verb::kCancel: return "cancel";
    case Command::Verb::kReport: return "report";
    case Command::Verb::kResize: return "resize";
    case Command::Verb::kWatch: return "watch";
    case Command::Verb::kHistory: return "history";
  }
  return "?";
}

std::string encode(const Command& command) {
  return text_of({{"is", "command"},
                  {"version", command.version},
                  {"verb", name_of(command.verb)},
                  {"run_id", command.run_id},
                  {"node", command.node},
                  {"reason", command.reason},
                  {"nodes", command.nodes},
                  {"force", command.force}});
}

std::string encode(const Answer& answer) {
  return text_of(
      {{"is", "report"}, {"error", answer.error}, {"text", answer.text}, {"more", answer.more}});
}

// Braces keep the order of the calls: the first bad field is the one that is named.
Result<Command> decode_command(std::string_view body) {
  Fields fields(body, "command");
  Command command{.version = fields.whole("version"),
                  .verb = fields.verb("verb"),
                  .run_id = fields.text("run_id", kNameBytesMax),
                  .node = fields.text("node", kNameBytesMax),
                  .reason = fields.text("reason", kReasonBytesMax),
                  .nodes = fields.whole_or("nodes", 0),
                  .force = fields.flag_or("force", false)};
  return fields.done(std::move(command));
}

Result<Answer> decode_answer(std::string_view body) {
  Fields fields(body, "report");
  Answer answer{.error = fields.text("error", kAnswerBytesMax),
                .text = fields.text("text", kAnswerBytesMax),
                .more = fields.flag("more")};
  return fields.done(std::move(answer));
}

}  // namespace ddprun::rendezvous
