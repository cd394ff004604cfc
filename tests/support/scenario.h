#pragma once
// Golden scenarios. A file is a list of paragraphs; each begins with one command, marked '>', and
// goes on with what the command must print. Lines that begin with '#' are for the reader.
//
//   > join a workers=2
//   0.0  a <- waiting 1/2:2 (a)
//
// DDPRUN_REWRITE=1 writes what the commands print into the files; read the diff before you believe
// it.

#include <functional>
#include <string>
#include <vector>

namespace ddprun::test {

// Carries out one command, given as words, and returns what it prints, line by line.
using Interpreter = std::function<std::vector<std::string>(const std::vector<std::string>& words)>;

// The differences between `file` and what `interpret` makes of it; empty if there are none.
std::string run_scenario(const std::string& file, const Interpreter& interpret);

}  // namespace ddprun::test
