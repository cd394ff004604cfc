#pragma once
// This ddprun for a host that has none, or one of another release: its programs and the files
// beside them, as a tar archive that goes through ssh to /bin/sh there. Its SHA-256 names the
// folder below the user's cache folder in which it is unpacked, so that it is sent once and never
// takes the place of anything else. Used by SshNode.
//
//   far end  -> "ddprun-control wants x86_64"   no ddprun of this release is there
//   launcher -> "<SHA-256> <bytes>\n"           unless that machine is of another kind
//   far end  -> "ddprun-control send"           unless a folder of that name is there already
//   launcher -> the archive
//   far end  -> "ddprun-control 2"              as of any other ddprun (remote_node.h)

#include <memory>
#include <string>

#include "common/error.h"

namespace ddprun::launcher {

struct OwnCopy {
  std::string sha256;  // In hexadecimal digits.
  std::string archive;
};

// Made when it is first needed, and shared by all that it is being sent to.
Result<std::shared_ptr<const OwnCopy>> own_copy();

// As `uname -m` prints it: "x86_64".
std::string own_machine();

// The command for the host, where the user may have any shell: /bin/sh with far_end.sh. It runs the
// ddprun at the path `program`, else that of PATH, if it is of this release; else one that it
// requests as above. One line.
std::string far_end_command_line(const std::string& program);

}  // namespace ddprun::launcher
