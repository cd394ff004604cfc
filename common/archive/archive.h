#pragma once
// One description of a message or record serves all directions and forms: `fields(a, m)`, a
// template beside the type, passes each field of `m` and its name to an archive. A Writer encodes
// the field, a Reader fills it in, or throws BadField with its name.
//
//   void fields(auto& a, archive::Is<Fence> auto& m) { a("round", m.round), a("why", m.why); }
//
// The archives are in json.h (fields with names) and packed.h (fields in order, without names). All
// offer
//   a(name, v)                    a number, text, truth, duration, list, or a struct with `fields`
//   a.text(name, v, bytes_max)    a text with a limit of its own
//   a.list(name, v, items_max)    likewise a list
//   a.enumerator(name, v, last)   an enumerator as its number, at most that of `last`
//   a.constant(name, text)        the same text in each message of the type
// and those for JSON
//   a(name, optional)             absent if it is empty; whether it is there
//   a.added(name, v)              a peer of an earlier version lacks it: its default stays
//   a.sparse(name, v)             the same; absent if it is 0 or empty
// A type with `to_archive(v)` and `bool from_archive(form, v)` is written as that form: an
// enumerator as a word, for example. `A::kReads` of an archive A is true if it is a Reader. Pure.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "common/error.h"

namespace ddprun::archive {

// Which type a `fields` is for, whether const or not.
template <class M, class T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

// What a Reader of JSON accepts; of these, packed forms have only `items`. A field has a limit of
// its own only if it is below these.
struct Bounds {
  std::size_t bytes = std::numeric_limits<std::size_t>::max();  // Of the whole message.
  std::size_t text_bytes = std::size_t{64} * 1024;
  std::size_t items = 200'000;  // Of one list.
  int depth = 8;                // Of objects and lists in each other.
  std::int64_t least = std::numeric_limits<std::int64_t>::min();  // Of a whole number.
  // So little that thousands of such counts can be added up. A Writer stops there, too.
  std::uint64_t count = std::uint64_t{1} << 53;
  // Longer than anything waits, and far from where points of time overflow.
  std::chrono::hours longest{24 * 365};
  bool cuts_texts = false;  // A Writer cuts texts at text_bytes.
};

// Far from where points of time overflow, and longer than any machine stays up.
constexpr std::chrono::hours kDistanceMax{24 * 365 * 100};
// Sums of times, which are in microseconds, may be this long.
constexpr std::chrono::hours kSumMax{24 * 365 * 10};

// Thrown by Readers, caught in decode functions: the field that is not what it should be.
struct BadField {
  std::string name;
};

// "decoding field 'round' of 'fence'"
inline Failure failure_of(const BadField& bad, const std::string& what) {
  return {Errc::kBadMessage, "decoding field '" + bad.name + "' of " + what};
}

// What `read` returns, or its BadField as a Failure. `what`: "a table of ranks".
template <class Read>
auto decoded(const char* what, const Read& read) -> Result<decltype(read())> {
  try {
    return read();
  } catch (const BadField& bad) {
    return failure_of(bad, what);
  }
}

template <class T>
concept Converted = requires(const T& value) {
  to_archive(value);
};

template <class T>
inline constexpr bool is_duration = false;
template <class Rep, class Period>
inline constexpr bool is_duration<std::chrono::duration<Rep, Period>> = true;

}  // namespace ddprun::archive
