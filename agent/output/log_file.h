#pragma once
// One file of a worker's lines on disk: rotation, and what happens when the disk is full. Written
// to by LogWriter's thread only.
//
// A line is never split between two files, nor by a gap. Where bytes are lost, a line says how
// many.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "agent/lines/log_rotation.h"
#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {

class LogFile {
 public:
  // Opens `path` for appending: a second round of the same attempt does not erase the first one's
  // lines.
  static Result<LogFile> open(std::string path, LogRotation rotation);

  // `lost_before`: bytes that should have come before these.
  void write(std::uint64_t lost_before, std::string_view bytes);

  const std::string& path() const { return path_; }
  std::uint64_t lost() const { return lost_; }
  int error() const { return error_; }  // errno of the last write that failed; 0: none has.

 private:
  LogFile(std::string path, LogRotation rotation, UniqueFd file, std::uint64_t size)
      : path_(std::move(path)), rotation_(rotation), file_(std::move(file)), size_(size) {}

  bool close_gap(std::string_view& bytes);
  void put(std::string_view bytes);
  bool put_all(std::string_view& bytes);
  void rotate();

  std::string path_;
  LogRotation rotation_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  bool in_line_ = false;    // The last byte written ends no line.
  std::uint64_t gap_ = 0;   // Lost, and not said yet.
  bool skipping_ = false;   // What is left of a line whose beginning was lost.
  std::uint64_t lost_ = 0;  // In all.
  int error_ = 0;
};

}  // namespace ddprun::agent
