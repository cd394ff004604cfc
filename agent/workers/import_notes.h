#pragma once
// The files of what a program imports: the notes of the worker of local rank 0, which belong to the
// run, and the list in the user's cache folder, which outlives it. A worker notes an import as it
// happens, so that one that is killed leaves a list, too. Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/workers/learned_names.h"
#include "common/system/record_folder.h"

namespace ddprun::agent {

// Interpreter and program, for people; of a command as is_python_command() accepts it.
std::string program_text(const std::vector<std::string>& argv);

// The list of the program that the command starts, as resolve_command() has it; nothing: it is not
// Python's, or has none.
std::optional<LearnedNames> learned_of(const std::vector<std::string>& argv);

class ImportNotes {
 public:
  // `notes`: where the workers note; empty: nothing is learned. `argv`: their command.
  ImportNotes(boost::asio::io_context& loop, std::string notes,
              const std::vector<std::string>& argv);

  // Variables of the fork server, and of a worker of local rank 0: where its list is, and where to
  // note.
  std::vector<std::string> variables_of_server() const;
  std::vector<std::string> variables_of_worker() const;

  // Whether there is a list.
  bool knows() const { return knows_; }

  // A worker of local rank 0 starts. Keeps what the one before has noted.
  void begin();
  // It has ended; `well`: by itself, with 0.
  void ended(bool well);
  // No worker comes any more.
  void close();

  // From the loop: while a worker runs, its imports have come to an end for the time being, and the
  // list has gained `added` names since a fork server was last given it.
  std::function<void(std::size_t added)> on_settled;
  // A fork server gets the list as it is now.
  void given() { added_ = 0; }

 private:
  std::string path_of_list() const;
  bool learns() const { return !notes_.empty() && !name_.empty(); }
  void watch();
  void keep(bool whole);
  // Once: there will be no list, so that the program's next run starts cold, too.
  void warn(const std::string& why);

  boost::asio::steady_timer timer_;
  std::string notes_;
  RecordFolder folder_;
  std::string name_;     // Of the list; empty: there is no place for it.
  std::string program_;  // As the list names it.
  NotesWatch settling_;
  std::size_t added_ = 0;
  bool knows_ = false;
  bool whole_ = false;  // And the program is older than its list.
  bool warned_ = false;
};

}  // namespace ddprun::agent
