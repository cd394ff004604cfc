#pragma once
// What the kernel meant when it refused to execute a file that is there: its ENOENT is then of the
// interpreter that the file names.

#include <string>

namespace ddprun::agent {

// " (the interpreter /opt/python that its first line names is not there)"; empty: errno says it
// all. Reads the first bytes of the file.
std::string exec_hint(const std::string& path, int error);

}  // namespace ddprun::agent
