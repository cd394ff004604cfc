#pragma once
// The measurements of one node: named values, lists of items with values, and reasons why something
// could not be measured. An absent fact is unknown, which is not zero. Facts travel between nodes
// as one JSON object, and decode_facts() is its only reader. Each subject (subject.h) names its own
// facts, fills them in and reads them. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/error.h"

namespace ddprun::doctor {

inline constexpr std::size_t kFactsBytesMax = 1024 * 1024;
inline constexpr std::size_t kValuesMax = 256;      // Per object.
inline constexpr std::size_t kListsMax = 16;        // Per node.
inline constexpr std::size_t kItemsMax = 4'096;     // Per list.
inline constexpr std::size_t kNameBytesMax = 64;    // Small letters, digits, '_' and '.'.
inline constexpr std::size_t kTextBytesMax = 1024;  // set() cuts longer texts.

// T is std::int64_t, double or std::string.
template <class T>
struct Fact {
  std::string_view name;
};
using Whole = Fact<std::int64_t>;
using Real = Fact<double>;
using Text = Fact<std::string>;

class Facts {
 public:
  using Value = std::variant<std::int64_t, double, std::string>;

  void set(Whole fact, std::int64_t value) {
    values_.insert_or_assign(std::string(fact.name), value);
  }
  void set(Real fact, double value);  // Ignores a value that is not finite.
  void set(Text fact, std::string value);

  template <class T>
  std::optional<T> get(Fact<T> fact) const {
    const auto found = values_.find(fact.name);
    if (found == values_.end()) return std::nullopt;
    const T* value = std::get_if<T>(&found->second);
    return value ? std::optional<T>(*value) : std::nullopt;
  }
  template <class T>
  T get_or(Fact<T> fact, T otherwise) const {
    return get(fact).value_or(std::move(otherwise));
  }

  std::string text(Fact<std::string> fact) const { return get_or(fact, std::string()); }

  // Why the probe `name` measured nothing, as a part of a sentence: "no answer within 2 s".
  void set_why(std::string_view name, std::string reason);
  std::string why(std::string_view name) const;  // Empty: there was no failure.

  // Items have values only. Asserts that `item` has no lists itself.
  void add(std::string_view list, Facts item);
  const std::vector<Facts>& list(std::string_view name) const;

  void merge(Facts other);  // Values of `other` win; lists are appended.

  bool operator==(const Facts&) const = default;

 private:
  friend std::string encode(const Facts& facts);
  friend Result<Facts> decode_facts(std::string_view text);

  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, std::string, std::less<>> why_;
  std::map<std::string, std::vector<Facts>, std::less<>> lists_;
};

std::string encode(const Facts& facts);  // One line.

// `text` comes from another node or process and may be damaged. Keeps facts of unknown names,
// because the other node may be newer.
Result<Facts> decode_facts(std::string_view text);

// A hash by which nodes find that their files or results differ: 16 hexadecimal digits. It is as
// fast as memory, and no defence against an attacker.
std::string hash_text(std::string_view bytes);

}  // namespace ddprun::doctor

namespace ddprun::launcher {

// A request of `ddprun doctor --hosts` to a far end, and the lines that answer it.
//
//   facts                                all facts of the node
//   clock                                the time of day
//   listen NONCE PORT                    serve links on any port, and on PORT if that is not 0
//   meet HOST PORT NONCE                 connect to the endpoint
//   reach NAME HOST PORT NONCE           connect to a node
//   send NAME HOST PORT NONCE            connect to a node, and send for a while
//   send-over SUBNET NAME HOST PORT NONCE   the same, over a network beside that of the names
struct DoctorRequest {
  enum class Kind { kFacts, kClock, kListen, kMeet, kReach, kSend, kSendOver };
  Kind kind = Kind::kFacts;
  std::string subnet = {};  // kSendOver.
  std::string name = {};    // kReach, kSend, kSendOver: of the peer.
  std::string host = {};
  std::uint16_t port = 0;
  std::string nonce = {};
  bool operator==(const DoctorRequest&) const = default;
};

std::string encode(const DoctorRequest& request);
std::optional<DoctorRequest> decode_request(std::string_view text);

inline constexpr std::string_view kAnswer = "ddprun-doctor ";  // Before the facts of an answer.

// The facts of a line that is an answer; nothing: it is another program's.
std::optional<Result<doctor::Facts>> answer_in(std::string_view line);

}  // namespace ddprun::launcher
