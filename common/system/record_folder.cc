#include "common/system/record_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>

#include "common/assert.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/system/secrets.h"
#include "common/system/user_file.h"

namespace ddprun {
namespace {

constexpr std::string_view kUnfinished = ".new-";  // Then it has not got its name yet.
constexpr std::time_t kForgottenAfter = 3600;      // Seconds; no write takes so long.

// Its names. Some file systems cannot: then they are as safe as they get.
void sync_folder(const std::string& path) {
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) (void)::fsync(folder.get());
}

}  // namespace

std::string record_name() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm fields{};
  std::array<char, 32> day{}, fraction{};
  std::strftime(day.data(), day.size(), "%Y%m%dT%H%M%S", ::gmtime_r(&now.tv_sec, &fields));
  std::snprintf(fraction.data(), fraction.size(), ".%06ldZ", now.tv_nsec / 1000);
  return std::string(day.data()) + fraction.data() + "-" + random_hex(4) + ".json";
}

Result<void> RecordFolder::put(const std::string& name, std::string_view text,
                               Safety safety) const {
  DDPRUN_ASSERT(!name.empty() && name.front() != '.' && name.find('/') == std::string::npos);
  if (text.size() > limits_.record_bytes) {
    return Failure{Errc::kFrameTooLarge,
                   "keeping a record of " + std::to_string(text.size()) + " bytes"};
  }
  constexpr std::size_t kRandomBytes = 8;
  const AsideOptions aside{
      .aside = path_ + "/" + std::string(kUnfinished) + random_hex(kRandomBytes),
      .sync = safety == Safety::kMachine};
  const std::string path = path_ + "/" + name;
  Result<void> written = write_aside(path, text, aside);
  if (!written && written.error().code == std::errc::no_such_file_or_directory) {
    if (const auto made = make_private_folders(path_); !made)
      return made.error();  // The first record.
    written = write_aside(path, text, aside);
  }
  if (!written) return written;
  if (safety == Safety::kMachine) sync_folder(path_);
  return {};
}

std::vector<std::string> RecordFolder::names() const {
  std::vector<std::string> names = names_in(path_).names;
  std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
  return names;
}

std::optional<std::string> RecordFolder::read(const std::string& name) const {
  auto text = read_regular_end(path_ + "/" + name, limits_.record_bytes + 1);
  if (text && text->size() > limits_.record_bytes) return std::nullopt;
  return text;
}

// Another process may do the same at this moment: what is gone already is gone.
void RecordFolder::make_room(const std::string& newest) const {
  struct Old {
    timespec written;
    std::size_t bytes;
    std::string name;
  };
  std::vector<Old> all;
  for (const std::string& name : names_in(path_).names) {
    struct stat status {};
    if (::lstat((path_ + "/" + name).c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    const bool abandoned = status.st_mtim.tv_sec + kForgottenAfter < std::time(nullptr);
    if (name.starts_with(kUnfinished) && abandoned) ::unlink((path_ + "/" + name).c_str());
    if (name.starts_with('.')) continue;
    all.push_back({status.st_mtim, static_cast<std::size_t>(status.st_size), name});
  }
  std::sort(all.begin(), all.end(), [&](const Old& a, const Old& b) {
    if ((a.name == newest) != (b.name == newest)) return a.name == newest;
    if (a.written.tv_sec != b.written.tv_sec) return a.written.tv_sec > b.written.tv_sec;
    return a.written.tv_nsec > b.written.tv_nsec;
  });
  std::size_t records = 0, bytes = 0;
  for (const Old& old : all) {
    ++records, bytes += old.bytes;
    const bool fits = records <= limits_.records && bytes <= limits_.bytes;
    if (!fits && old.name != newest) ::unlink((path_ + "/" + old.name).c_str());
  }
}

}  // namespace ddprun
