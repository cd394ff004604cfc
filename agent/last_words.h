#pragma once
// What a failed worker had to say: its error file, as PyTorch's @record writes it, else the end of
// its standard error. Goes into the verdict.

#include <string>
#include <vector>

namespace ddprun::agent {

// At most a few KiB, without a final newline; empty if there is nothing.
std::string last_words(const std::vector<std::string>& stderr_lines, const std::string& error_file);

// The message in the text of an error file; empty if it is not one. Takes any bytes.
std::string error_file_message(const std::string& text);

}  // namespace ddprun::agent
