#pragma once
// Messages and records whose fields follow each other without names: see archive.h. The Form has
// where a field ends: Counted, Ended or Binary. Used where bytes are counted, or
// where a text is what a person or another program reads. Pure.

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/archive/archive.h"
#include "common/text/figures.h"

namespace ddprun::archive {

// Numbers as decimal text, in a Form that has texts.
template <class Form>
struct Decimal {
  static void put_number(std::string& out, auto v) { Form::put(out, std::to_string(v)); }
  static void put_size(std::string& out, std::size_t size) { put_number(out, size); }
  template <class T>
  static std::optional<T> take_number(std::string_view& rest) {
    const auto field = Form::take(rest);
    if constexpr (std::is_same_v<T, bool>) {
      if (field != "0" && field != "1") return std::nullopt;
      return field == "1";
    } else {
      return field ? as_number<T>(*field) : std::nullopt;
    }
  }
  static std::optional<std::size_t> take_size(std::string_view& rest) {
    return take_number<std::size_t>(rest);
  }
};

// "5:hello3:you": texts of any bytes, each with its length. An item of a list that is a struct is
// one such text.
struct Counted : Decimal<Counted> {
  static constexpr bool kNests = true;
  static void put(std::string& out, std::string_view text) {
    (out += std::to_string(text.size()) + ":") += text;
  }
  static std::optional<std::string_view> take(std::string_view& rest) {
    std::size_t size = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    const auto head = static_cast<std::size_t>(end - rest.data()) + 1;
    if (error != std::errc() || head > rest.size() || *end != ':' || size > rest.size() - head) {
      return std::nullopt;
    }
    const std::string_view text = rest.substr(head, size);
    rest.remove_prefix(head + size);
    return text;
  }
};

// Texts that do not have the byte with which each ends.
template <char kEnd>
struct Ended : Decimal<Ended<kEnd>> {
  static constexpr bool kNests = false;
  static void put(std::string& out, std::string_view text) { (out += text) += kEnd; }
  static std::optional<std::string_view> take(std::string_view& rest) {
    const std::size_t end = rest.find(kEnd);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    return text;
  }
};

// Integers are little-endian, of their own width; a text has its length before it, of 32 bits.
struct Binary {
  static constexpr bool kNests = false;
  static void put(std::string& out, std::string_view text) {
    put_size(out, text.size());
    out += text;
  }
  static std::optional<std::string_view> take(std::string_view& rest) {
    const auto size = take_size(rest);
    if (!size || *size > rest.size()) return std::nullopt;
    const std::string_view text = rest.substr(0, *size);
    rest.remove_prefix(*size);
    return text;
  }
  template <class T>
  static void put_number(std::string& out, T v) {
    const auto bits = static_cast<std::uint64_t>(v);
    for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(bits >> (8 * i) & 0xff);
  }
  static void put_size(std::string& out, std::size_t size) {
    put_number(out, static_cast<std::uint32_t>(size));
  }
  template <class T>
  static std::optional<T> take_number(std::string_view& rest) {
    if (rest.size() < sizeof(T)) return std::nullopt;
    std::uint64_t bits = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) {
      bits = bits << 8 | static_cast<unsigned char>(rest[i]);
    }
    rest.remove_prefix(sizeof(T));
    return static_cast<T>(bits);
  }
  static std::optional<std::size_t> take_size(std::string_view& rest) {
    return take_number<std::uint32_t>(rest);
  }
};

template <class Form>
class Packer {
 public:
  static constexpr bool kReads = false;

  template <class T>
  void operator()(const char* /*name*/, const T& v) {
    put(v);
  }
  void text(const char* /*name*/, const std::string& v, std::size_t /*bytes_max*/) { put(v); }
  void list(const char* /*name*/, const auto& v, std::size_t /*items_max*/) { put(v); }
  template <class E>
  void enumerator(const char* /*name*/, const E& v, E /*last*/) {
    put(static_cast<int>(v));
  }
  void constant(const char* /*name*/, std::string_view text) { Form::put(out_, text); }
  // All further items, without their number; only as the last field.
  void items(const char* /*name*/, const auto& v) {
    for (const auto& item : v) put(item);
  }
  // All further bytes, as they are.
  void remainder(const char* /*name*/, std::string_view v) { out_ += v; }

  std::string take() { return std::move(out_); }

 private:
  template <class T>
  void put(const T& v) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      Form::put(out_, v);
    } else if constexpr (std::is_same_v<T, bool> && !std::is_same_v<Form, Binary>) {
      Form::put_number(out_, static_cast<int>(v));
    } else if constexpr (std::is_integral_v<T>) {
      Form::put_number(out_, v);
    } else if constexpr (is_duration<T>) {
      Form::put_number(out_, v.count());
    } else if constexpr (Form::kNests) {
      Packer inner;
      fields(inner, v);
      Form::put(out_, inner.take());
    } else {
      fields(*this, v);
    }
  }
  template <class T>
  void put(const std::vector<T>& v) {
    Form::put_size(out_, v.size());
    for (const T& item : v) put(item);
  }

  std::string out_;
};

template <class Form>
class Unpacker {
 public:
  static constexpr bool kReads = true;

  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  void operator()(const char* name, T& v) {
    get(name, v);
  }
  void text(const char* name, std::string& v, std::size_t bytes_max) {
    get(name, v);
    if (v.size() > bytes_max) throw BadField{name};
  }
  template <class T>
  void list(const char* name, std::vector<T>& v, std::size_t items_max) {
    const auto size = found(name, Form::take_size(rest_));
    if (size > items_max) throw BadField{name};
    for (std::size_t i = 0; i < size; ++i) get(name, v.emplace_back());
  }
  template <class E>
  void enumerator(const char* name, E& v, E last) {
    int number = 0;
    get(name, number);
    if (number < 0 || number > static_cast<int>(last)) throw BadField{name};
    v = static_cast<E>(number);
  }
  void constant(const char* name, std::string_view text) {
    if (Form::take(rest_) != text) throw BadField{name};
  }
  template <class T>
  void items(const char* name, std::vector<T>& v) {
    while (!rest_.empty()) get(name, v.emplace_back());
  }
  void remainder(const char* /*name*/, std::string& v) { v = std::exchange(rest_, {}); }

  void end() const {
    if (!rest_.empty()) throw BadField{"after the last"};
  }

 private:
  template <class T>
  static T found(const char* name, std::optional<T> field) {
    return field ? *field : throw BadField{name};
  }
  template <class T>
  void get(const char* name, T& v) {
    if constexpr (std::is_same_v<T, std::string>) {
      v = found(name, Form::take(rest_));
    } else if constexpr (std::is_integral_v<T>) {
      v = found(name, Form::template take_number<T>(rest_));
    } else if constexpr (is_duration<T>) {
      v = T(found(name, Form::template take_number<typename T::rep>(rest_)));
      if (v < T::zero() || v > kDistanceMax) throw BadField{name};
    } else if constexpr (Form::kNests) {
      Unpacker inner(found(name, Form::take(rest_)));
      fields(inner, v);
      inner.end();
    } else {
      fields(*this, v);
    }
  }
  template <class T>
  void get(const char* name, std::vector<T>& v) {
    list(name, v, Bounds().items);
  }

  std::string_view rest_;
};

template <class Form>
std::string packed(const auto& message) {
  Packer<Form> packer;
  fields(packer, message);
  return packer.take();
}

// `what`: "a table of ranks".
template <class Form, class Message>
Result<Message> unpacked(std::string_view bytes, const char* what) {
  return decoded(what, [&] {
    Message message;
    Unpacker<Form> unpacker(bytes);
    fields(unpacker, message);
    unpacker.end();
    return message;
  });
}

}  // namespace ddprun::archive
