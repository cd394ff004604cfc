#pragma once
// layers.txt read into memory: which room a file lies in and what that room may include.

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ddprun::tidy {

struct Room {
  std::set<std::string> may_include;  // Rooms, or folders of rooms.
  bool flat = false;                  // The files directly in it only, not those below.
  bool pure = false;
  bool std_only = false;
};

class Layers {
 public:
  // `text` is the content of a layers.txt.
  explicit Layers(const std::string& text);

  // The room with the folder that holds `path`, relative to the source root; "" if there is none.
  std::string room_of(const std::string& path) const;

  // A file with "Pure." in its opening comment is held to that even if its room is not pure. With a
  // header goes the .cc file of its name, and those named <name>_*.cc that have no header.
  void note(const std::string& path, const std::string& text);

  // Whether `path` must do nothing but compute.
  bool pure(const std::string& path) const;

  // Empty, or why `from` must not include `path`, both files.
  std::string objection(const std::string& from, const std::string& path) const;

  const Room& at(const std::string& name) const { return rooms_.at(name); }
  const std::map<std::string, Room>& rooms() const { return rooms_; }

 private:
  std::map<std::string, Room> rooms_;
  std::set<std::string> headers_;  // Without their extension.
  std::set<std::string> claims_;   // Headers, without extension, and .cc files.
};

// "a/{b,c}" -> "a/b", "a/c".
std::vector<std::string> expand_braces(const std::string& word);

}  // namespace ddprun::tidy
