#pragma once
// What was measured on one node: named values, lists of such, and reasons why something could not
// be measured. A fact that is absent is not known, which is not zero. Facts travel between nodes as
// one JSON object, and decode_facts() is the only reader of it. Pure. Filled by launcher/doctor,
// read by the checks. The names are in fact_names.h.

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
inline constexpr std::size_t kValuesMax = 256;      // Of one object.
inline constexpr std::size_t kListsMax = 16;        // Of a node.
inline constexpr std::size_t kItemsMax = 4'096;     // Of a list.
inline constexpr std::size_t kNameBytesMax = 64;    // Small letters, digits, '_' and '.'.
inline constexpr std::size_t kTextBytesMax = 1024;  // Longer texts are cut when they are set.

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
  void set(Real fact, double value);  // What is not finite is not known.
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

  // Why nothing is known of `subject`, as a part of a sentence: "no answer within 2 s".
  void set_why(std::string_view subject, std::string reason);
  std::string why(std::string_view subject) const;  // Empty: nothing went wrong.

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

// Of another node, or of another process: anything may stand there. Names that are not known are
// kept, for a node may be newer.
Result<Facts> decode_facts(std::string_view text);

}  // namespace ddprun::doctor
