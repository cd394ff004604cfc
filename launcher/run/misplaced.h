#pragma once
// One of ddprun's own flags behind PROGRAM, the likeliest mistake of a first hour: it is PROGRAM's
// there, which refuses it. Pure; node.cc asks when a run has failed.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// What to tell the user, or nothing. `last_words` are those of the worker that failed first: only a
// flag that the worker itself complained about is mentioned, since PROGRAM may well have a flag of
// the same name.
std::string misplaced_flag_hint(const std::string& program,
                                const std::vector<std::string>& arguments,
                                std::string_view last_words);

// The same for a program that has put MASTER_ADDR into a URL as it is, where it is an IPv6 address.
std::string bare_ipv6_hint(std::string_view last_words);

}  // namespace ddprun::launcher
