#pragma once
// What waits to be written to our own standard output or error: whole lines, up to a bound, and
// what happens at the bound. Pure: Console does the writing, Output the reading.
//
//            bound reached            hold is over (give_up)
//   open ───────────────────► holding ───────────────────► dropping
//    ▲                          │                              │
//    └──────────────────────────┴──────────────────────────────┘   half of it is written
//
// While holding, Output stops reading workers for a moment, so that a burst reaches a reader that
// keeps moving in full. While dropping it reads on, and whole lines are thrown away and counted;
// the count is printed in their place. So a reader that stands still never stops a worker.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::agent {

class ConsoleQueue {
 public:
  enum class State { kOpen, kHolding, kDropping };

  // `name` is for the message about dropped lines: "standard output".
  ConsoleQueue(std::string name, std::size_t bytes_max)
      : name_(std::move(name)), bytes_max_(bytes_max) {}

  // Adds one line out of up to three parts; its end of line is added here.
  void add_line(std::string_view prefix, std::string_view text, std::string_view suffix = {});

  // Shows a line of at most `columns` that the next one overwrites. Left out while anything waits:
  // it would be out of date before it is seen. For terminals only.
  void add_transient(std::string_view prefix, std::string_view text, std::size_t columns);

  // Takes it away again, if nothing has overwritten it.
  void erase_transient();
  bool shows_transient() const { return transient_shown_; }

  // The bytes to write next, at most `bytes_max`: whole lines wherever one fits.
  std::string_view front(std::size_t bytes_max) const;
  void consume(std::size_t bytes);

  void give_up();    // Holding has lasted long enough.
  void close_gap();  // Prints now how much was dropped since the last time.
  void clear();      // The reader is gone: forgets everything, as if it were written.

  bool empty() const { return size() == 0; }
  std::size_t size() const { return bytes_.size() - head_; }
  State state() const { return state_; }
  std::uint64_t dropped() const { return dropped_in_all_; }

 private:
  void append(std::string_view prefix, std::string_view text, std::string_view suffix);

  std::string name_;
  std::size_t bytes_max_;
  std::string bytes_;
  std::size_t head_ = 0;  // What comes before it is written.
  State state_ = State::kOpen;
  bool transient_shown_ = false;
  std::uint64_t dropped_ = 0;  // Not reported yet.
  std::uint64_t dropped_in_all_ = 0;
};

// The beginning of `text` that fills at most `columns`, counting UTF-8 characters as one each.
std::string_view fit_columns(std::string_view text, std::size_t columns);

}  // namespace ddprun::agent
