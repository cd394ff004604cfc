#include "agent/memory/memory_wire.h"

#include <algorithm>
#include <cctype>

#include "common/archive/packed.h"

namespace ddprun::agent::memory {
namespace {

constexpr std::size_t kPartBytesMax = 255;

using Form = archive::Binary;

void check(bool good, const char* name) {
  if (!good) throw archive::BadField{name};
}

}  // namespace

template <class A>
void fields(A& a, archive::Is<Open> auto& m) {
  a.text("run_id", m.run_id, kNameBytesMax), a.text("node", m.node, kNameBytesMax);
  a.list("fetch", m.fetch, kNamesMax);
  if constexpr (!A::kReads) return;
  check(!m.node.empty(), "node");
  for (const std::string& name : m.fetch) {
    check(!name.empty() && name.size() <= kNameBytesMax, "fetch");
  }
}
template <class A>
void fields(A& a, archive::Is<Entry> auto& m) {
  a("path", m.path), a("bytes", m.bytes), a("modified", m.modified), a("keep", m.keep);
  if constexpr (!A::kReads) return;
  check(is_safe_path(m.path), "path"), check(m.bytes <= kFileBytesMax, "bytes");
}
void fields(auto& a, archive::Is<Index> auto& m) {
  a.list("entries", m.entries, kEntriesMax), a("last", m.last);
}
void fields(auto& a, archive::Is<Want> auto& m) { a("entry", m.entry), a("offset", m.offset); }
void fields(auto& a, archive::Is<Lacks> auto& m) {
  a.list("wants", m.wants, kEntriesMax), a("last", m.last);
}
void fields(auto& a, archive::Is<Piece> auto& m) {
  a("entry", m.entry), a("offset", m.offset), a("checksum", m.checksum), a("last", m.last);
  a.text("bytes", m.bytes, kPieceBytes);
}
void fields(auto& a, archive::Is<Skip> auto& m) { a("entry", m.entry); }
void fields(auto&, archive::Is<Ack> auto&) {}
void fields(auto& a, archive::Is<Committed> auto& m) { a("files", m.files), a("bytes", m.bytes); }
void fields(auto& a, archive::Is<Denial> auto& m) { a.text("reason", m.reason, kPathBytesMax); }

namespace {

template <std::size_t kKind = 0>
Result<Message> decode_as(std::size_t kind, std::string_view fields_of_it) {
  const std::string what = "message " + std::to_string(kind) + " of a memory server";
  if constexpr (kKind < std::variant_size_v<Message>) {
    using Kind = std::variant_alternative_t<kKind, Message>;
    if (kind != kKind) return decode_as<kKind + 1>(kind, fields_of_it);
    auto message = archive::unpacked<Form, Kind>(fields_of_it, what.c_str());
    if (!message) return message.error();
    return Message(std::move(*message));
  }
  return archive::failure_of({"kind"}, what);
}

}  // namespace

std::string encode(const Message& message) {
  archive::Packer<Form> packer;
  packer("kind", static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& m) { fields(packer, m); }, message);
  return packer.take();
}

Result<Message> decode(std::string_view body) {
  if (body.empty()) return archive::failure_of({"kind"}, "a message of a memory server");
  return decode_as(static_cast<unsigned char>(body.front()), body.substr(1));
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
