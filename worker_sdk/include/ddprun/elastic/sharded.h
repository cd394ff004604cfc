#pragma once
// State of a job of which every rank has only a part, such as that of a sharded optimizer, with a
// copy of each part on another rank. Created by Job::keep_sharded().
//
//   auto& moments = job.keep_sharded("moments", {.count = weights.size(), .shards = 64});
//   job.run(10'000, [&](ddprun::elastic::Step& step) {
//     ... step.group().all_reduce(gradient) ...
//     const auto before = moments.now<float>();
//     const auto after = moments.next<float>();
//     for (std::size_t i = 0; i < after.size(); ++i) {
//       after[i] = 0.9F * before[i] + gradient[moments.first() + i];
//     }
//     moments.gather_next(step.group(), ddprun::buffer(all.data(), all.size()));
//     step.commit([&] { update(weights, all); });
//   });

#include "ddprun/cxx20.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "ddprun/process_group.h"

namespace ddprun::elastic {

/// The same on all ranks.
struct ShardedOptions {
  std::size_t count = 0;  ///< Elements, of all ranks together.
  DataType type = DataType::f32;
  /// The elements are divided into this many shards, in order; ranks have equally many shards, or
  /// one more. Fixed for the run, and at least the largest number of ranks: run() throws
  /// Error(bad_argument) in a round of more ranks.
  int shards = 64;
  /// Writes the elements from `first` on, of the state after the steps given to Job::resume(), or
  /// before the first step: the same on every rank. Empty: all are 0.
  std::function<void(std::size_t first, Buffer part)> fill = {};
};

/// Call it only in the body of a step and in the functions of Job::between(); results are valid
/// until the round ends. In host memory.
class Sharded {
 public:
  explicit Sharded(std::unique_ptr<class ShardedState> state);  ///< Of a Job.
  ~Sharded();
  Sharded(const Sharded&) = delete;
  Sharded& operator=(const Sharded&) = delete;

  std::size_t first() const noexcept;  ///< The number of this rank's first element.
  std::size_t size() const noexcept;   ///< Its elements; may be 0 if `count` is below `shards`.

  /// This rank's elements as of the last committed step. Must not be written to: under a launcher
  /// that assigns seats commit() compares them with their checksums, and throws `corrupt` on this
  /// rank if they have changed; then another rank has the sound copy.
  Buffer now() const noexcept;
  /// This rank's elements after this step; initially those of now(). Write to it before commit(),
  /// which makes it now(); if the step is not committed, it is discarded. Throws `bad_argument`
  /// within `apply`.
  Buffer next();

  template <class T>
  std::span<const T> now() const {
    return span_of<const T>(now());
  }
  template <class T>
  std::span<T> next() {
    return span_of<T>(next());
  }

  /// Collective: all elements of all ranks, as of now() or of next(), into `whole`, host memory.
  void gather(ProcessGroup& group, Buffer whole) const;
  void gather_next(ProcessGroup& group, Buffer whole);

 private:
  friend class JobInside;
  template <class T>
  std::span<T> span_of(const Buffer& part) const {
    require_type(DataTypeOf<std::remove_const_t<T>>::value);
    return {static_cast<T*>(part.data), part.count};
  }
  void require_type(DataType type) const;

  std::unique_ptr<ShardedState> state_;
};

}  // namespace ddprun::elastic
