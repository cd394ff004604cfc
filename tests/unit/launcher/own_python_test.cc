// Which interpreter a ddprun in an environment's bin prefers, with files that are not there.

#include "launcher/plan/own_files.h"

#include <catch2/catch.hpp>
#include <map>

namespace ddprun::launcher {
namespace {

using agent::FileKind;

struct Files : agent::FileProbe {
  explicit Files(std::map<std::string, FileKind> given) : kinds(std::move(given)) {}
  FileKind kind(const std::string& path) const override {
    const auto found = kinds.find(path);
    return found == kinds.end() ? FileKind::kAbsent : found->second;
  }
  std::vector<std::string> names_in(const std::string&) const override { return {}; }
  bool is_application(const std::string&) const override { return false; }

  const std::map<std::string, FileKind> kinds;
};

TEST_CASE("Own python: a ddprun of an environment prefers the python3 beside it") {
  const Files environments({{"/venv/pyvenv.cfg", FileKind::kFile},
                            {"/venv/bin/python3", FileKind::kExecutable},
                            {"/conda/conda-meta", FileKind::kFolder},
                            {"/conda/bin/python3", FileKind::kExecutable}});
  CHECK(own_python("/venv/bin", environments) == "/venv/bin/python3");
  CHECK(own_python("/conda/bin", environments) == "/conda/bin/python3");
}

TEST_CASE("Own python: elsewhere PATH decides") {
  CHECK(own_python("/usr/bin", Files({{"/usr/bin/python3", FileKind::kExecutable}})).empty());
  CHECK(own_python("/venv/bin", Files({{"/venv/pyvenv.cfg", FileKind::kFile}})).empty());
  CHECK(own_python("/venv/bin", Files({{"/venv/pyvenv.cfg", FileKind::kFile},
                                       {"/venv/bin/python3", FileKind::kFile}}))
            .empty());
}

}  // namespace
}  // namespace ddprun::launcher
