#pragma once
// Writes an event file for TensorBoard: numbers by step. Knows neither TensorFlow nor libtorch.
// Used by training_log.cc.
//
// The format, from TensorFlow's guide to TFRecord and core/util/event.proto, summary.proto: a file
// is a sequence of records
//
//   u64 length, u32 masked CRC of these 8 bytes, the data, u32 masked CRC of the data
//
// all little endian; the CRC is CRC-32C, rotated right by 15 bits, plus 0xa282ead8. Each record's
// data is a protobuf message Event, of which these fields are used:
//
//   Event       double wall_time = 1;  int64 step = 2;
//               string file_version = 3 | Summary summary = 5 | SessionLog session_log = 7
//   Summary     repeated Value value = 1
//   Value       string tag = 1;  float simple_value = 2
//   SessionLog  enum status = 1, of which START is 1
//
// The first event has the file_version "brain.Event:2".

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

struct Scalar {
  std::string_view tag;  // "train/loss"; TensorBoard groups tags by what precedes the slash.
  double value = 0;      // Stored as f32.
};

std::uint32_t crc32c(std::string_view bytes);
std::string record(std::string_view data);

// Events, as the data of a record. `wall_time` is in seconds since 1970.
std::string version_event(double wall_time);
std::string scalar_event(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars);
// Makes readers drop the content of earlier files of the folder at `step` and later.
std::string restart_event(double wall_time, std::int64_t step);

class EventFile {
 public:
  // Creates `folder` if need be, and a new file in it. TensorBoard reads the files of a folder in
  // the order of their names: time, then `restart_count`. Throws std::runtime_error that names the
  // file, as all functions here do if it cannot be written.
  EventFile(const std::string& folder, int restart_count);
  void write(std::int64_t step, const std::vector<Scalar>& scalars);
  void resume_at(std::int64_t step);

 private:
  void append(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

}  // namespace examples
