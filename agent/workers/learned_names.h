#pragma once
// What a program imports, as its workers have noted it: names of modules, for the fork server of
// its next workers. Pure. ImportNotes reads and writes the files; the worker's part is
// python/startup/ddprun_preload/_notes.py, the fork server's is _learned.py.

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/time.h"

namespace ddprun::agent {

// A list as it is kept:
//
//   ddprun preload 2
//   PROGRAM, for people that read it
//   torch             a name, in the order of the imports
//   !wandb            one that must not be imported before a fork
//   =OMP_NUM_THREADS  a variable that had changed before an import
//   ~torch 2.31       seconds that the imports of a package took a fork server, if more than one
//   .                 a run of the program has come to its end, so that nothing is missing
class LearnedNames {
 public:
  static constexpr std::size_t kNamesMax = 20'000;

  // Anything but a list is an empty one; lines that are no names are left out.
  static LearnedNames parse(std::string_view text);
  std::string text(std::string_view program) const;

  // Adds what a worker has noted: "NAME" a line, "-NAME" for an import that failed, "=VARIABLE".
  // The last line is left out unless it ends. Returns how many names of modules are new.
  std::size_t add(std::string_view notes);
  void mark_whole() { whole_ = true; }

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<std::string>& forbidden() const { return forbidden_; }
  // "torch 2.31", the slowest first.
  const std::vector<std::string>& slow() const { return slow_; }
  bool whole() const { return whole_; }

 private:
  void add_variable(std::string_view name);

  std::vector<std::string> names_;
  std::vector<std::string> forbidden_;
  std::vector<std::string> variables_;
  std::vector<std::string> slow_;
  std::unordered_set<std::string> known_;  // Names and forbidden ones.
  bool whole_ = false;
};

// When what a worker has noted is to be read: once nothing was added for some time. Imports go on
// during the first steps, so that it is read again if more comes.
class NotesWatch {
 public:
  // How long after this, or after the last look, the next one is due.
  Milliseconds next() const { return interval_; }
  // A look at notes of so many bytes. True: they are to be read now.
  bool look(std::size_t bytes);

 private:
  static constexpr Milliseconds kFirst{2'000};
  static constexpr Milliseconds kLast{300'000};

  Milliseconds interval_ = kFirst;
  std::size_t seen_ = 0;
  std::size_t read_ = 0;
};

}  // namespace ddprun::agent
