#pragma once
// One of ddprun's own flags behind PROGRAM, the likeliest mistake of a first hour: there it is
// PROGRAM's, which refuses it. Pure; node.cc calls it when a run has failed.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// The hint for the user, or an empty text. `last_words` is the last output of the worker that
// failed first: only a flag that the worker itself complained about is mentioned, since PROGRAM may
// well have a flag of the same name.
std::string misplaced_flag_hint(const std::string& program,
                                const std::vector<std::string>& arguments,
                                std::string_view last_words);

// The hint for a program that has put MASTER_ADDR into a URL unchanged though it is an IPv6
// address.
std::string bare_ipv6_hint(std::string_view last_words);

}  // namespace ddprun::launcher
