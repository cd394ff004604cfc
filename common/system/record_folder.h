#pragma once
// A folder of records, each a file of its own that is whole or not there, whenever the machine
// stops. It holds the newest of them, in number and in bytes. Several processes may write to it at
// once. Used for the history of runs, by those that end and by those that read it later.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun {

// A new one, by the time: names are in the order in which they were made.
std::string record_name();

class RecordFolder {
 public:
  struct Limits {
    std::size_t records = 50;
    std::size_t bytes = std::size_t{32} << 20;        // Of all records.
    std::size_t record_bytes = std::size_t{2} << 20;  // Of one.
  };
  enum class Safety {
    kProcess,  // The record survives the end of this process, ...
    kMachine,  // ... and that of the machine.
  };

  // Nothing is made yet.
  explicit RecordFolder(std::string path) : RecordFolder(std::move(path), Limits()) {}
  RecordFolder(std::string path, Limits limits) : path_(std::move(path)), limits_(limits) {}

  const std::string& path() const { return path_; }

  // Replaces a record of that name, and makes the folder, for this user only.
  Result<void> put(const std::string& name, std::string_view text, Safety safety) const;

  // Removes the records beyond the limits, those written longest ago first, but never `newest`.
  void make_room(const std::string& newest) const;

  std::vector<std::string> names() const;  // In order. None: there is no folder.
  std::optional<std::string> read(const std::string& name) const;

 private:
  std::string path_;
  Limits limits_;
};

}  // namespace ddprun
