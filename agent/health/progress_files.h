#pragma once
// One file a worker, in memory, in which it reports its progress: a page that the SDK writes, or a
// file that anything else touches. It has no name that could be left behind: workers open it as
// /proc/<agent>/fd/<n>. Used by ProgressMonitor.

#include <cstdint>
#include <map>
#include <string>

#include "agent/health/fault.h"
#include "agent/health/stall_watch.h"
#include "common/error.h"
#include "common/progress_page.h"
#include "common/system/descriptors.h"

namespace ddprun::agent {

// What a page reports; a page may hold anything.
ProgressSample read_page(const ProgressPage& page);
WorkerCounts read_sync(const ProgressPage& page);

WorkerFate read_fate(const ProgressPage& page);

// The agent's notice: once for each page. Wakes its listener.
void write_loss(ProgressPage& page, int lost_rank, const std::string& why);

class ProgressFile {
 public:
  static Result<ProgressFile> make(int local_rank);
  ProgressFile(ProgressFile&& other) noexcept;
  ProgressFile& operator=(ProgressFile&&) = delete;
  ~ProgressFile();

  std::string path() const;
  void notify_loss(int lost_rank, const std::string& why);  // Once.
  bool request_bundle();                                    // False: it has begun no step of a job.
  WorkerCounts sync();                                      // Zeros, if it is not a page.
  WorkerFate fate();                                        // The same.
  ProgressSample read();  // Reads memory only, unless only touching can have changed it.

 private:
  ProgressFile(UniqueFd file, ProgressPage* page) : file_(std::move(file)), page_(page) {}
  bool is_page();
  ProgressSample read_touches();

  UniqueFd file_;
  ProgressPage* page_ = nullptr;
  bool is_page_ = false;  // It may be read.
  // Of a file that is touched.
  std::int64_t made_ns_ = 0;
  std::int64_t touched_ns_ = 0;
  std::uint64_t touches_ = 0;
  Duration longest_{};
};

}  // namespace ddprun::agent
