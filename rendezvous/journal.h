#pragma once
// How a daemon remembers: every event that changed a run is a record, written before its actions go
// out. A daemon that comes back feeds the records to fresh runs and has the old state. Pure; the
// file is rendezvous/server's business.
//
// A record is one line: eight hexadecimal digits of CRC-32 (IEEE 802.3) over the rest, a space,
// JSON.

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/run.h"

namespace ddprun::rendezvous {

struct Record {
  std::string run_id;
  TimePoint
      when{};  // On the machine's monotonic clock, which survives the daemon but not a reboot.
  RunEvent event;
};

// Heartbeats cannot be recorded, and need not be.
std::string encode_record(const Record& record);

struct Journal {
  std::vector<Record> records;
  std::size_t bytes_good =
      0;  // What follows is torn or damaged, and must be cut off before appending.
};

// Reads records until the end or the first one that is not whole.
Journal decode_journal(std::string_view bytes);

}  // namespace ddprun::rendezvous
