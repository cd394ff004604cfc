#pragma once
// Words as programs meet them: near misses of a known one, quoting for a shell, names of hosts.
// Pure.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ddprun {

// How near a mistyped word comes to a known one: how many letters must be inserted, dropped,
// changed or swapped with their neighbour to make `b` of `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// `text` as one word of a POSIX shell.
std::string shell_quote(std::string_view text);
// The words of a command so, with blanks between them.
std::string shell_line(std::span<const std::string> words);

std::string_view first_line(std::string_view text);  // Without its end.

// What follows from a host's name or address alone.

// "localhost", 127.0.0.0/8 written in digits and dots, or ::1. Does not resolve names.
bool is_loopback(std::string_view host);

// Of ASCII letters, as host names are compared.
bool equal_names(std::string_view a, std::string_view b);

// An address, not a name.
bool is_numeric(std::string_view host);

}  // namespace ddprun
