#pragma once
// `ddprun --report`: a folder of this node in which workers leave their summaries, and the table
// made of them at the end. Called by main.cc.

#include <string>

#include "common/error.h"

namespace ddprun::launcher {

class Report {
 public:
  // Makes the folder and names it to the workers by DDPRUN_REPORT_DIR, through this process's own
  // environment: call it before anything is forked.
  static Result<Report> open();
  Report(Report&& other) noexcept;
  Report& operator=(Report&&) = delete;
  ~Report();  // Removes the folder.

  void print() const;  // To standard output.

 private:
  explicit Report(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

}  // namespace ddprun::launcher
