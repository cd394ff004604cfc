#include "worker_sdk/base/shared_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <sstream>

#include "common/system/variable.h"

namespace ddprun::worker_sdk {
namespace {

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

std::string last_error() {
  const char* text = ::dlerror();
  return text ? text : "unknown error";
}

std::string path_of(const Library& library, const std::string& name) {
  char folder[4096] = {};
  if (::dlinfo(library.handle, RTLD_DI_ORIGIN, folder) != 0) return name;
  return name.find('/') == std::string::npos ? std::string(folder) + "/" + name : name;
}

bool open(Library& library, const std::string& name, int more = 0) {
  library.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | more);
  if (library.handle) library.path = path_of(library, name);
  return library.handle != nullptr;
}

std::vector<std::string> candidates(const LibraryRequest& request) {
  std::vector<std::string> paths;
  for (const std::string& inside : request.in_folders) {
    std::vector<std::string> patterns{inside};
    if (inside.front() != '/') {
      patterns = python_package_patterns();
      for (std::string& folder : patterns) folder += "/" + inside;
    }
    for (const std::string& pattern : patterns) {
      for (std::string& path : matches(pattern)) paths.push_back(std::move(path));
    }
  }
  return paths;
}

std::string missing_text(const LibraryRequest& request, const std::string& broken) {
  std::string text =
      "no " + request.title + " found: " + request.variable + " is not set, the loader has";
  for (const std::string& name : request.names) {
    text += (&name == &request.names.front() ? " no " : " or ") + name;
  }
  text += ", and";
  for (const std::string& inside : request.in_folders) {
    text += (&inside == &request.in_folders.front() ? " there is no " : " or ") + inside;
  }
  text += " (looked below " + std::to_string(python_package_patterns().size()) +
          " Python package folders)";
  return broken.empty() ? text : text + "; " + broken;
}

}  // namespace

void* Library::find(const char* symbol) const { return ::dlsym(handle, symbol); }

std::vector<std::string> python_package_patterns() {
  std::vector<std::string> patterns;
  for (const char* prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string root = environment_variable(prefix);
    if (!root.empty()) patterns.push_back(root + "/lib/python3*/site-packages");
  }
  std::istringstream paths(environment_variable("PYTHONPATH"));
  for (std::string path; std::getline(paths, path, ':');) {
    if (!path.empty()) patterns.push_back(path);
  }
  std::istringstream programs(
      environment_variable("PATH"));  // A virtual environment that is not activated.
  for (std::string path; std::getline(programs, path, ':');) {
    const bool environment = path.ends_with("/bin") && !matches(path + "/python3").empty();
    if (environment) patterns.push_back(path + "/../lib/python3*/site-packages");
  }
  const std::string home = environment_variable("HOME");
  if (!home.empty()) patterns.push_back(home + "/.local/lib/python3*/site-packages");
  patterns.insert(patterns.end(),
                  {"/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages",
                   "/usr/lib/python3/dist-packages"});
  return patterns;
}

Library open_library(const LibraryRequest& request) {
  Library library;
  const std::string given = environment_variable(request.variable.c_str());
  if (!given.empty()) {
    if (!open(library, given))
      library.missing = request.variable + " cannot be loaded: " + last_error();
    return library;
  }
  for (const int loaded_already : {RTLD_NOLOAD, 0}) {  // First the program's own library.
    for (const std::string& name : request.names) {
      if (open(library, name, loaded_already)) return library;
    }
  }
  std::string broken;  // The library is there, but a dependency is missing.
  for (const std::string& path : candidates(request)) {
    if (open(library, path)) return library;
    broken = last_error();
  }
  library.missing = missing_text(request, broken);
  return library;
}

}  // namespace ddprun::worker_sdk
