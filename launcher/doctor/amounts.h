#pragma once
// Amounts as the screens show them: "1,048,576", "64 KiB", "24.1 GB/s". Pure.

#include <cstdint>
#include <string>

namespace ddprun::doctor {

inline constexpr std::int64_t kMega = 1'000'000;

std::string count_text(std::int64_t count);  // "1,048,576"
std::string bytes_text(std::int64_t bytes);  // "310 MB"; powers of ten
std::string limit_text(std::int64_t bytes);  // "64 KiB", "unlimited" below 0
std::string number_text(double number);      // Three digits at most: "24.1", "0.2", "850"
std::string ms_text(double milliseconds);    // "0.2 ms", "4.1 s"

}  // namespace ddprun::doctor
