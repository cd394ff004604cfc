#include "launcher/plan/own_python.h"

#include <filesystem>

namespace ddprun::launcher {

std::string own_python(const std::string& bin, const agent::FileProbe& files) {
  using agent::FileKind;
  const std::filesystem::path folder = bin, prefix = folder.parent_path();
  const bool is_virtual = files.kind(prefix / "pyvenv.cfg") != FileKind::kAbsent;
  const bool is_conda = files.kind(prefix / "conda-meta") == FileKind::kFolder;
  if (!is_virtual && !is_conda) return "";
  const std::string python = folder / "python3";
  return files.kind(python) == FileKind::kExecutable ? python : "";
}

}  // namespace ddprun::launcher
