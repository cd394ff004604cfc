#pragma once
// Low numbers in our table of descriptors, through which the ends of a worker's streams and link
// reach it. A child shares our table at first, puts its ends there, and takes with it only what
// lies below table_end(): however many descriptors we keep for the workers that live already, none
// of them has to be copied and closed for the next. Owned by Spawner.

#include <array>
#include <cstddef>
#include <vector>

#include "common/system/descriptors.h"

namespace ddprun::agent {

class EndSlots {
 public:
  using Numbers = std::array<int, 3>;  // For standard output, standard error, link.

  // For so many children at once. There are none where the table is full, or the kernel
  // (before 5.9) or a container's filter has no close_range().
  explicit EndSlots(std::size_t children);

  // Those of one child; null: there are none, and it has to take the whole table with it.
  const Numbers* of_child(std::size_t child) const;
  unsigned table_end() const { return table_end_; }
  int null() const { return null_.get(); }  // /dev/null, below table_end(), too.

  // Closes what children have put there. Nobody is being born meanwhile.
  void clear() const;

  // Whether our table has room for numbers well above `number`. While it is shared, the kernel
  // would spend milliseconds on making it larger.
  bool has_room_after(int number) const { return numbers_.empty() || number + kMargin < room_; }
  // Makes it large enough, as far as its limit lets it. Nobody is being born meanwhile.
  void make_room_after(int number);

 private:
  static constexpr int kMargin = 64;  // A worker takes less than ten.

  UniqueFd null_;
  std::vector<UniqueFd> places_;
  std::vector<Numbers> numbers_;
  unsigned table_end_ = 0;
  int room_ = 0;  // Of our table: numbers below it fit.
};

}  // namespace ddprun::agent
