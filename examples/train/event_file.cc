#include "examples/train/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace examples {
namespace {

constexpr std::uint32_t kCastagnoli = 0x82f63b78;  // Bits reversed.
constexpr std::uint32_t kMask = 0xa282ead8;

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i));
}

// Protobuf: a number in groups of seven bits, the least first.
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
}

enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string begin_event(double wall_time, std::int64_t step) {
  std::string event;
  put_key(event, 1, Wire::fixed64);
  put(event, std::bit_cast<std::uint64_t>(wall_time));
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

double now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::string name_of_file(int restart_count) {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  char name[400];
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.%04d.%s.%ld",
                static_cast<long long>(now()), restart_count, host, static_cast<long>(getpid()));
  return name;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_table();
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(c)) & 255U];
  return ~crc;
}

std::string record(std::string_view data) {
  const auto masked = [](std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + kMask; };
  std::string out;
  put<std::uint64_t>(out, data.size());
  put(out, masked(out));
  out += data;
  put(out, masked(data));
  return out;
}

std::string version_event(double wall_time) {
  std::string event = begin_event(wall_time, 0);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalar_event(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, Wire::fixed32);
    put(value, std::bit_cast<std::uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, 1, value);
  }
  std::string event = begin_event(wall_time, step);
  put_bytes(event, 5, summary);
  return event;
}

std::string restart_event(double wall_time, std::int64_t step) {
  std::string log;
  put_key(log, 1, Wire::varint);
  put_varint(log, 1);
  std::string event = begin_event(wall_time, step);
  put_bytes(event, 7, log);
  return event;
}

EventFile::EventFile(const std::string& folder, int restart_count)
    : path_(folder + "/" + name_of_file(restart_count)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw std::runtime_error("cannot create " + folder + ": " + error.message());
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::trunc);
  append(version_event(now()));
}

void EventFile::write(std::int64_t step, const std::vector<Scalar>& scalars) {
  append(scalar_event(now(), step, scalars));
}

void EventFile::resume_at(std::int64_t step) { append(restart_event(now(), step)); }

// Flushed, so that readers see each step.
void EventFile::append(std::string_view event) {
  if (file_) errno = 0;
  file_ << record(event) << std::flush;
  if (!file_) throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
}

}  // namespace examples
