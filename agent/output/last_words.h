#pragma once
// What a failed worker reported of its failure: its error file, as PyTorch's @record and our SDK's
// crash report write it, else the end of its standard error, else of its standard output. Goes into
// the verdict.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// At most a few KiB, without a final newline; empty if there is nothing.
std::string last_words(const std::vector<std::string>& last_lines, const std::string& error_file);

// The message in the text of an error file; empty if it is not one. Takes any bytes.
std::string error_file_message(const std::string& text);

// The message, then the call stack that the file has beside it.
std::string error_file_text(const std::string& text);

// With the C++ names in "./train(_ZN5model4lossEv+0x1f) [0x4012]" as people write them.
std::string demangled(std::string_view text);

}  // namespace ddprun::agent
