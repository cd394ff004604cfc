#include "launcher/hosts/own_copy.h"

#include <openssl/sha.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "agent/node/command.h"
#include "common/embedded_file.h"
#include "common/release.h"
#include "common/system/own_process.h"
#include "common/text/words.h"
#include "launcher/plan/own_files.h"

DDPRUN_EMBEDDED_FILE(ddprun_far_end_script, DDPRUN_FAR_END_SCRIPT);

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = 512;
constexpr std::size_t kNameMax = 99;

void put(std::string& header, std::size_t at, std::string_view text) {
  std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(at));
}

std::string octal(std::size_t number, int digits) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%0*zo", digits, number);
  return text.data();
}

// The header of POSIX's ustar format. Owner and time are left out: the archive has the same bytes
// wherever and whenever it is made of the same files.
std::string tar_header(const std::string& name, std::size_t bytes, bool is_program) {
  std::string header(kBlock, '\0');
  put(header, 0, name);
  put(header, 100, is_program ? "0000755" : "0000644");
  put(header, 108, "0000000");
  put(header, 116, "0000000");
  put(header, 124, octal(bytes, 11));
  put(header, 136, octal(0, 11));
  put(header, 148, "        ");
  put(header, 156, "0");
  put(header, 257, "ustar");
  put(header, 263, "00");
  std::size_t sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  put(header, 148, octal(sum, 6) + '\0');
  return header;
}

struct OwnFile {
  std::string name;  // In the archive.
  fs::path path;
};

// As `bin` of an installation that looks for them beside its programs.
std::vector<OwnFile> own_files() {
  const fs::path bin = fs::path(own_program()).parent_path();
  std::vector<OwnFile> files = {{"bin/ddprun", "/proc/self/exe"},
                                {"bin/ddprun-rendezvous", bin / "ddprun-rendezvous"}};
  for (const std::string& folder : agent::current_command_context().own_folders) {
    if (!fs::exists(fs::path(folder) / kPythonStartupFile)) continue;
    for (const char* library : {"libddprun-watch.so", kNcclPluginFile}) {
      files.push_back({"bin/" + std::string(library), fs::path(folder) / library});
    }
    const fs::path python = (fs::path(folder) / kPythonStartupFile).parent_path();
    for (const auto& entry : fs::recursive_directory_iterator(python)) {
      if (entry.path().extension() != ".py") continue;
      files.push_back({"bin/python/" + entry.path().lexically_relative(python).string(), entry});
    }
    break;
  }
  std::ranges::sort(files, {}, &OwnFile::name);
  return files;
}

bool is_needed(const OwnFile& file) {
  return file.name == "bin/ddprun" || file.name == "bin/ddprun-rendezvous";
}

Result<std::string> archive_of(const std::vector<OwnFile>& files) {
  std::string archive;
  for (const OwnFile& file : files) {
    std::ifstream in(file.path, std::ios::binary);
    if (!in && !is_needed(file)) continue;  // This installation has not got it.
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (!in || in.bad()) return errno_failure("reading " + file.path.string());
    if (file.name.size() > kNameMax) continue;
    archive += tar_header(file.name, bytes.size(), file.path.extension() != ".py");
    archive += bytes;
    archive.resize((archive.size() + kBlock - 1) / kBlock * kBlock);
  }
  archive.resize(archive.size() + 2 * kBlock);
  return archive;
}

std::string sha256_text(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string text;
  for (const unsigned char byte : digest) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

// far_end.sh without comments and line breaks, which csh does not take between quotes.
std::string far_end_script() {
  std::string_view text(ddprun_far_end_script, ddprun_far_end_script_end);
  std::string script;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line.empty() || line.front() == '#') continue;
    script += (script.empty() ? "" : " ") + std::string(line);
  }
  return script;
}

}  // namespace

Result<std::shared_ptr<const OwnCopy>> own_copy() {
  static std::weak_ptr<const OwnCopy> made;
  if (auto copy = made.lock()) return copy;
  auto archive = archive_of(own_files());
  if (!archive) return archive.error();
  OwnCopy copy{.sha256 = sha256_text(*archive), .archive = std::move(*archive)};
  const auto shared = std::make_shared<const OwnCopy>(std::move(copy));
  made = shared;
  return shared;
}

std::string own_machine() {
  utsname names{};
  ::uname(&names);
  return names.machine;
}

std::string far_end_command_line(const std::string& program) {
  return "exec /bin/sh -c " + shell_quote(far_end_script()) + " sh " + shell_quote(program) + " " +
         shell_quote(std::string("ddprun ") + release());
}

}  // namespace ddprun::launcher
