#include "agent/memory/memory_wire.h"

#include <algorithm>
#include <cctype>
#include <type_traits>

#include "common/assert.h"

namespace ddprun::agent::memory {
namespace {

constexpr std::size_t kPartBytesMax = 255;

// Integers are little-endian, texts have their length before them.
class Writer {
 public:
  void operator()(const std::string& text) { number(text.size(), 4), out_ += text; }
  void operator()(bool value) { number(value ? 1 : 0, 1); }
  void operator()(std::uint64_t value) { number(value, 8); }
  void operator()(std::int64_t value) { number(static_cast<std::uint64_t>(value), 8); }
  template <class T>
  void operator()(const std::vector<T>& items, std::size_t /*max*/) {
    number(items.size(), 4);
    for (const T& item : items) {
      if constexpr (std::is_same_v<T, std::string>) {
        (*this)(item);
      } else {
        fields(*this, item);
      }
    }
  }

  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}

  void operator()(std::string& text) {
    const std::uint64_t size = number(4);
    if (size > rest_.size()) return fail();
    text = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }
  void operator()(bool& value) { value = number(1) != 0; }
  void operator()(std::uint64_t& value) { value = number(8); }
  void operator()(std::int64_t& value) { value = static_cast<std::int64_t>(number(8)); }
  template <class T>
  void operator()(std::vector<T>& items, std::size_t max) {
    const std::uint64_t size = number(4);
    if (size > max) return fail();
    for (std::uint64_t i = 0; i < size && good_; ++i) {
      if constexpr (std::is_same_v<T, std::string>) {
        (*this)(items.emplace_back());
      } else {
        fields(*this, items.emplace_back());
      }
    }
  }

  std::uint64_t number(int bytes) {
    if (rest_.size() < static_cast<std::size_t>(bytes)) return fail(), 0;
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(static_cast<std::size_t>(bytes));
    return value;
  }
  bool whole() const { return good_ && rest_.empty(); }

 private:
  void fail() { good_ = false, rest_ = {}; }

  std::string_view rest_;
  bool good_ = true;
};

template <class M, class A>
concept Is = std::is_same_v<std::remove_const_t<M>, A>;

void fields(auto& a, Is<Open> auto& m) { a(m.run_id), a(m.node), a(m.fetch, kNamesMax); }
void fields(auto& a, Is<Entry> auto& m) { a(m.path), a(m.bytes), a(m.modified), a(m.keep); }
void fields(auto& a, Is<Index> auto& m) { a(m.entries, kEntriesMax), a(m.last); }
void fields(auto& a, Is<Want> auto& m) { a(m.entry), a(m.offset); }
void fields(auto& a, Is<Lacks> auto& m) { a(m.wants, kEntriesMax), a(m.last); }
void fields(auto& a, Is<Piece> auto& m) {
  a(m.entry), a(m.offset), a(m.checksum), a(m.last), a(m.bytes);
}
void fields(auto& a, Is<Skip> auto& m) { a(m.entry); }
void fields(auto&, Is<Ack> auto&) {}
void fields(auto& a, Is<Committed> auto& m) { a(m.files), a(m.bytes); }
void fields(auto& a, Is<Denial> auto& m) { a(m.reason); }

bool is_sane(const Open& open) {
  const auto fits = [](const std::string& name) {
    return !name.empty() && name.size() <= kNameBytesMax;
  };
  return fits(open.node) && open.run_id.size() <= kNameBytesMax &&
         std::all_of(open.fetch.begin(), open.fetch.end(), fits);
}
bool is_sane(const Index& index) {
  return std::all_of(index.entries.begin(), index.entries.end(), [](const Entry& entry) {
    return entry.bytes <= kFileBytesMax && is_safe_path(entry.path);
  });
}
bool is_sane(const Piece& piece) { return piece.bytes.size() <= kPieceBytes; }
bool is_sane(const Denial& refusal) { return refusal.reason.size() <= kPathBytesMax; }
bool is_sane(const auto&) { return true; }

template <std::size_t kKind = 0>
Result<Message> decode_as(std::size_t kind, Reader& reader) {
  if constexpr (kKind < std::variant_size_v<Message>) {
    if (kind != kKind) return decode_as<kKind + 1>(kind, reader);
    std::variant_alternative_t<kKind, Message> message;
    fields(reader, message);
    if (reader.whole() && is_sane(message)) return Message(std::move(message));
  }
  return Failure{Errc::kBadMessage,
                 "reading a message of a memory server, of kind " + std::to_string(kind)};
}

}  // namespace

std::string encode(const Message& message) {
  Writer writer;
  writer.number(message.index(), 1);
  std::visit([&](const auto& m) { fields(writer, m); }, message);
  return writer.take();
}

Result<Message> decode(std::string_view body) {
  Reader reader(body);
  const std::uint64_t kind = reader.number(1);
  return decode_as(body.empty() ? std::variant_size_v<Message> : kind, reader);
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kPathBytesMax) return false;
  if (path.find('\0') != std::string_view::npos) return false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kPartBytesMax) return false;
    begin = end + 1;
  }
  return true;
}

std::string folder_name(std::string_view node) {
  std::string name(node);
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  if (name.starts_with('.')) name.front() = '_';
  return name.substr(0, kPartBytesMax);
}

}  // namespace ddprun::agent::memory
