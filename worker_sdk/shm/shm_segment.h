#pragma once
// Memory that the ranks of one host share, and how they hand it to each other.
//
// Segments are memfds: they have no name in any file system, so a kill at any moment leaves nothing
// behind, and the size of /dev/shm (64 MiB in many containers) does not matter. A peer opens its
// creator's descriptor through /proc/<pid>/fd, which needs the same user and the same pid
// namespace; locality.h has compared both. The creator keeps the descriptor open until all have
// mapped it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/system/descriptors.h"

namespace ddprun::worker_sdk {

// How to find a segment. Travels between processes.
struct SegmentName {
  std::int32_t pid = 0;
  std::int32_t fd = -1;
  std::uint64_t inode = 0;  // Guards against a descriptor number that was reused.
  std::uint64_t bytes = 0;

  bool operator==(const SegmentName&) const = default;
};

// One mapping. It cannot be moved: others hold pointers into it.
class Segment {
 public:
  Segment(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_;
  std::size_t bytes_;
};

// A segment of this process that peers may still open.
struct OfferedSegment {
  SegmentName name;
  std::shared_ptr<Segment> segment;
  UniqueFd fd;  // Close it when all have mapped.
};

// The seam that lets a test give several ranks of one process one and the same mapping, which is
// what ThreadSanitizer can judge.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Both throw std::system_error with errno.
  virtual OfferedSegment create(std::size_t bytes) = 0;  // Zeroed.
  virtual std::shared_ptr<Segment> open(const SegmentName& name) = 0;
};

class MemfdSource : public SegmentSource {
 public:
  OfferedSegment create(std::size_t bytes) override;
  std::shared_ptr<Segment> open(const SegmentName& name) override;
};

}  // namespace ddprun::worker_sdk
