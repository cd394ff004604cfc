#pragma once
// Files that are there as a whole or not at all, however long their contents are: what is behind
// ddprun/atomic_file.h.

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

namespace ddprun::worker_sdk {

// ddprun::replace_file() of what `contents` writes, part by part, to a file of this mode. What it
// throws passes through.
using WritePart = std::function<void(std::string_view)>;
void replace_file_by_parts(const std::string& path,
                           const std::function<void(const WritePart&)>& contents, mode_t mode);

}  // namespace ddprun::worker_sdk
