#pragma once
// The JSON forms of messages and records: see archive.h. A Writer puts fields into a sink: a
// JsonText, in the order of `fields` and fast, or a Tree, which orders them as its Json does. Only
// for sources: this includes all of nlohmann/json. Pure.

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/archive/archive.h"
#include "common/time.h"

namespace ddprun::archive {

// Writes JSON field by field straight into text, for what is written thousands of times in a
// moment: messages, records and snapshots. It builds no tree, and reads nothing. A sink of a
// Writer.
class JsonText {
 public:
  // Names are ours and need no escapes. A value follows.
  void name(std::string_view name);

  // Any bytes: what is not UTF-8 is replaced, because JSON text may not hold it.
  void text(std::string_view bytes);
  void whole(std::int64_t number);
  void count(std::uint64_t number) { whole(static_cast<std::int64_t>(number)); }  // Below 2^63.
  void truth(bool value);

  void open(char bracket);   // '{' or '['.
  void close(char bracket);  // Its partner.

  std::string take() { return std::move(out_); }

 private:
  void comma();  // Before a name, or a value of a list, that is not the first.

  std::string out_;
  bool first_ = true;   // Of what was opened last.
  bool named_ = false;  // The next value belongs to a name.
};

using nlohmann::json;

template <class Json = json>
class Tree {
 public:
  void name(std::string_view name) { name_ = name; }
  void text(std::string_view bytes) { put(std::string(bytes)); }
  void whole(std::int64_t number) { put(number); }
  void count(std::uint64_t number) { put(number); }
  void real(double number) { put(number); }
  void truth(bool value) { put(value); }
  void null() { put(nullptr); }
  void value(Json any) { put(std::move(any)); }
  void open(char bracket) {
    open_.push_back(&put(bracket == '{' ? Json::object() : Json::array()));
  }
  void close(char /*bracket*/) { open_.pop_back(); }
  Json take() { return std::move(root_); }

 private:
  Json& put(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& into = *open_.back();
    if (!into.is_array()) return into[name_] = std::move(value);
    into.push_back(std::move(value));
    return into.back();
  }

  Json root_;
  std::vector<Json*> open_;  // From the outermost on; only the last one grows.
  std::string name_;
};

// The object that it writes is open from the beginning; take() closes it.
template <class Sink>
class Writer {
 public:
  static constexpr bool kReads = false;

  // Points of time are written as nanoseconds from `at`.
  explicit Writer(TimePoint at = {}, const Bounds& bounds = {}) : bounds_(bounds), at_(at) {
    out_.open('{');
  }
  explicit Writer(const Bounds& bounds) : Writer(TimePoint{}, bounds) {}

  auto take() {
    out_.close('}');
    return out_.take();
  }

  template <class T>
  void operator()(const char* name, const T& v) {
    out_.name(name);
    put(v);
  }
  template <class T>
  bool operator()(const char* name, const std::optional<T>& v) {
    if (v) (*this)(name, *v);
    return v.has_value();
  }
  void text(const char* name, const std::string& v, std::size_t /*bytes_max*/) { (*this)(name, v); }
  void list(const char* name, const auto& v, std::size_t /*items_max*/) { (*this)(name, v); }
  template <class E>
  void enumerator(const char* name, const E& v, E /*last*/) {
    (*this)(name, static_cast<int>(v));
  }
  void constant(const char* name, const std::string& text) { (*this)(name, text); }
  void added(const char* name, const auto& v) { (*this)(name, v); }
  void sparse(const char* name, const auto& v) {
    if (v != std::decay_t<decltype(v)>{}) (*this)(name, v);
  }
  template <class T>
  void sparse(const char* name, const std::vector<T>& v) {
    if (!v.empty()) (*this)(name, v);
  }
  template <class T>
  void nullable(const char* name, const std::optional<T>& v) {
    out_.name(name);
    v ? put(*v) : out_.null();
  }

  // What `fields` cannot describe: `write` is called for each item, and writes one value.
  void list_of(const char* name, const auto& items, const auto& write) {
    out_.name(name);
    out_.open('[');
    for (const auto& item : items) write(item);
    out_.close(']');
  }
  void object(const auto& write) {
    out_.open('{');
    write();
    out_.close('}');
  }
  void object(const char* name, const auto& write) {
    out_.name(name);
    object(write);
  }
  Sink& sink() { return out_; }

 private:
  template <class T>
  void put(const T& v) {
    if constexpr (Converted<T>) {
      put(to_archive(v));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      const std::string_view text = v;
      out_.text(bounds_.cuts_texts ? text.substr(0, bounds_.text_bytes) : text);
    } else if constexpr (std::is_same_v<T, bool>) {
      out_.truth(v);
    } else if constexpr (std::is_floating_point_v<T>) {
      out_.real(v);
    } else if constexpr (std::is_unsigned_v<T>) {
      out_.count(std::min<std::uint64_t>(v, bounds_.count));
    } else if constexpr (std::is_integral_v<T>) {
      out_.whole(v);
    } else if constexpr (std::is_same_v<T, TimePoint>) {
      out_.whole((v - at_).count());
    } else if constexpr (is_duration<T>) {
      out_.whole(v.count());
    } else {
      object([&] { fields(*this, v); });
    }
  }
  template <class T>
  void put(const std::vector<T>& v) {
    out_.open('[');
    for (const T& item : v) put(item);
    out_.close(']');
  }
  template <class Key>
  void put(const std::map<Key, std::string>& v) {
    out_.open('[');
    for (const auto& item : v) {
      object([&] { (*this)("key", item.first), (*this)("text", item.second); });
    }
    out_.close(']');
  }

  const Bounds bounds_;
  Sink out_;
  const TimePoint at_;
};

// Of an object that outlives it. If it `forgives`, a field that is missing or of another type
// leaves its default, and an item of a list that is no object is left out.
template <class Json = json, bool kForgives = false>
class Reader {
 public:
  static constexpr bool kReads = true;

  explicit Reader(const Json& object, const Bounds& bounds = {}, TimePoint at = {})
      : object_(object), bounds_(bounds), at_(at) {}

  template <class T>
  bool operator()(const char* name, T& v) const {
    const Json* item = find(name);
    if (!kForgives && !item) throw BadField{name};
    if (item) read(*item, name, v);
    return item != nullptr;
  }
  template <class T>
  bool operator()(const char* name, std::optional<T>& v) const {
    const Json* item = find(name);
    if (item && !item->is_null()) read(*item, name, v.emplace());
    return v.has_value();
  }
  void text(const char* name, std::string& v, std::size_t bytes_max) const {
    (*this)(name, v);
    if (v.size() > bytes_max) throw BadField{name};
  }
  void list(const char* name, auto& v, std::size_t items_max) const {
    (*this)(name, v);
    if (v.size() > items_max) throw BadField{name};
  }
  template <class E>
  void enumerator(const char* name, E& v, E last) const {
    int number = static_cast<int>(v);
    (*this)(name, number);
    if (number < 0 || number > static_cast<int>(last)) throw BadField{name};
    v = static_cast<E>(number);
  }
  void constant(const char* name, std::string_view text) const {
    std::string found;
    (*this)(name, found);
    if (found != text) throw BadField{name};
  }
  void added(const char* name, auto& v) const {
    if (find(name)) (*this)(name, v);
  }
  void sparse(const char* name, auto& v) const { added(name, v); }
  void nullable(const char* name, auto& v) const { added(name, v); }

  const Json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  const Json& value(const char* name) const {
    const Json* item = find(name);
    return item ? *item : throw BadField{name};
  }
  Reader inner(const char* name) const { return of(value(name), name); }
  // `item` is one of a list of this name.
  Reader of(const Json& item, const char* name) const {
    return item.is_object() ? Reader(item, bounds_, at_) : throw BadField{name};
  }

 private:
  template <class T>
  void read(const Json& item, const char* name, T& v) const {
    if constexpr (!kForgives) return get(item, name, v);
    try {
      T found = v;
      get(item, name, found);
      v = std::move(found);
    } catch (const BadField&) {
    }
  }

  template <class T>
  void get(const Json& item, const char* name, T& v) const {
    if constexpr (Converted<T>) {
      decltype(to_archive(v)) form{};
      get(item, name, form);
      if (!from_archive(form, v)) throw BadField{name};
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!item.is_string()) throw BadField{name};
      const auto& text = item.template get_ref<const std::string&>();
      if (text.size() > bounds_.text_bytes) throw BadField{name};
      v = text;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!item.is_boolean()) throw BadField{name};
      v = item.template get<bool>();
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!item.is_number()) throw BadField{name};
      v = item.template get<T>();
    } else if constexpr (std::is_integral_v<T>) {
      v = whole<T>(item, name);
    } else if constexpr (std::is_same_v<T, TimePoint>) {
      const Duration distance(whole<std::int64_t>(item, name));
      if (distance > kDistanceMax || distance < -kDistanceMax) throw BadField{name};
      v = at_ + distance;
    } else if constexpr (is_duration<T>) {
      v = T(whole<std::int64_t>(item, name));
      constexpr bool kIsSum = std::is_same_v<T, std::chrono::microseconds>;
      if (v < T::zero() || v > (kIsSum ? kSumMax : bounds_.longest)) throw BadField{name};
    } else {
      const Reader inner = of(item, name);
      fields(inner, v);
    }
  }
  template <class T>
  void get(const Json& item, const char* name, std::vector<T>& v) const {
    for (const Json& one : items_of(item, name)) {
      if (kForgives && !one.is_object()) continue;
      get(one, name, v.emplace_back());
    }
  }
  template <class Key>
  void get(const Json& item, const char* name, std::map<Key, std::string>& v) const {
    for (const Json& one : items_of(item, name)) {
      const Reader inner = of(one, name);
      Key key{};
      inner("key", key);
      inner("text", v[key]);
    }
  }
  const Json& items_of(const Json& item, const char* name) const {
    if (!item.is_array() || item.size() > bounds_.items) throw BadField{name};
    return item;
  }
  template <class T>
  T whole(const Json& item, const char* name) const {
    if constexpr (std::is_unsigned_v<T>) {
      const auto most = std::min<std::uint64_t>(bounds_.count, std::numeric_limits<T>::max());
      if (!item.is_number_unsigned() || item.template get<std::uint64_t>() > most) {
        throw BadField{name};
      }
      return static_cast<T>(item.template get<std::uint64_t>());
    } else {
      if (!item.is_number_integer()) throw BadField{name};
      const auto wide = item.template get<std::int64_t>();
      const bool too_large = item.is_number_unsigned() && wide < 0;
      const auto least = std::max<std::int64_t>(bounds_.least, std::numeric_limits<T>::min());
      if (too_large || wide < least || wide > std::numeric_limits<T>::max()) throw BadField{name};
      return static_cast<T>(wide);
    }
  }

  const Json& object_;
  const Bounds bounds_;
  const TimePoint at_;
};

// The object of a text, or why there is none.
Result<json> parse_object(std::string_view text, const Bounds& bounds);

inline json tree_of(const auto& message, const Bounds& bounds = {}) {
  Writer<Tree<>> writer(bounds);
  fields(writer, message);
  return writer.take();
}

// Texts may be any bytes, and JSON text may not: what is not UTF-8 is replaced.
inline std::string text_of(const json& object) {
  return object.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

// `what`: "a report of the memory server".
template <class Message>
Result<Message> read_message(std::string_view text, const std::string& what,
                             const Bounds& bounds = {}) {
  const Result<json> object = parse_object(text, bounds);
  if (!object) return object.error();
  try {
    Message message;
    const Reader reader(*object, bounds);
    fields(reader, message);
    return message;
  } catch (const BadField& bad) {
    return failure_of(bad, what);
  }
}

// A variant of messages that have a kName each, which is in the field `kind`.
template <class Message, std::size_t I = 0>
Result<Message> read_kind(const json& object, const char* kind, const std::string& is,
                          const Bounds& bounds) {
  if constexpr (I == std::variant_size_v<Message>) {
    return Failure{Errc::kBadMessage,
                   "decoding a message of unknown kind '" + is.substr(0, 40) + "'"};
  } else {
    std::variant_alternative_t<I, Message> message;
    if (is != message.kName) return read_kind<Message, I + 1>(object, kind, is, bounds);
    try {
      const Reader reader(object, bounds);
      fields(reader, message);
    } catch (const BadField& bad) {
      return failure_of(bad, "'" + is + "'");
    }
    return Message(std::move(message));
  }
}
template <class Message>
Result<Message> read_variant(std::string_view text, const char* kind, const Bounds& bounds = {}) {
  const Result<json> object = parse_object(text, bounds);
  if (!object) return object.error();
  const auto is = object->find(kind);
  if (is == object->end() || !is->is_string()) return failure_of({kind}, "a message");
  return read_kind<Message>(*object, kind, is->template get<std::string>(), bounds);
}

// Ends in what the sink takes: a text or a tree.
template <class Sink, class Message>
auto write_variant(const Message& message, const char* kind, const Bounds& bounds = {}) {
  return std::visit(
      [&](const auto& m) {
        Writer<Sink> writer(bounds);
        writer(kind, std::string_view(m.kName));
        fields(writer, m);
        return writer.take();
      },
      message);
}

}  // namespace ddprun::archive
