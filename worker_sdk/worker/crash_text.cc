#include "worker_sdk/worker/crash_text.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <memory>
#include <typeinfo>

namespace ddprun::worker_sdk {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

}  // namespace

void CrashText::add(char letter) {
  if (used_ == size_) flush();
  if (used_ < size_) buffer_[used_++] = letter;
}

void CrashText::add(std::string_view text) {
  for (const char letter : text) add(letter);
}

void CrashText::add_number(std::int64_t number) {
  char digits[24];
  std::size_t count = 0;
  const bool negative = number < 0;
  auto left =
      negative ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
  do {
    digits[count++] = kDigits[left % 10];
    left /= 10;
  } while (left > 0);
  if (negative) add('-');
  while (count > 0) add(digits[--count]);
}

void CrashText::add_hex(std::uintptr_t number) {
  add("0x");
  bool begun = false;
  for (int shift = static_cast<int>(sizeof number) * 8 - 4; shift >= 0; shift -= 4) {
    const auto digit = number >> shift & 0xf;
    begun = begun || digit != 0 || shift == 0;
    if (begun) add(kDigits[digit]);
  }
}

// Bytes that are no ASCII become '?': what the file holds must be JSON whatever a path is called.
void CrashText::add_escaped(std::string_view text) {
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '\n') {
      add("\\n");
    } else if (letter == '"' || letter == '\\') {
      add('\\');
      add(letter);
    } else {
      add(byte < 0x20 || byte > 0x7e ? '?' : letter);
    }
  }
}

void CrashText::flush() {
  if (fd_ < 0) return;
  for (std::size_t done = 0; done < used_;) {
    const ssize_t written = ::write(fd_, buffer_ + done, used_ - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  used_ = 0;
}

std::string describe_current_exception() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (!type) return "";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  std::string text = std::string("uncaught ") + (status == 0 ? name.get() : type->name());
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& exception) {
    text += std::string(": ") + exception.what();
  } catch (...) {
  }
  return text;
}

}  // namespace ddprun::worker_sdk
