#include "worker_sdk/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace ddprun::worker_sdk {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::shared_ptr<Segment> map(int fd, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) throw_errno("mapping " + std::to_string(bytes) + " shared bytes");
  return std::make_shared<Segment>(data, bytes);
}

}  // namespace

Segment::~Segment() { ::munmap(data_, bytes_); }

OfferedSegment MemfdSource::create(std::size_t bytes) {
  UniqueFd fd(::memfd_create("ddprun", MFD_CLOEXEC));
  if (!fd) throw_errno("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw_errno("sizing a memfd");
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno("fstat of a memfd");
  const SegmentName name{.pid = static_cast<std::int32_t>(::getpid()),
                         .fd = fd.get(),
                         .inode = status.st_ino,
                         .bytes = bytes};
  auto segment = map(fd.get(), bytes);
  return {name, std::move(segment), std::move(fd)};
}

std::shared_ptr<Segment> MemfdSource::open(const SegmentName& name) {
  const std::string path = "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.fd);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) throw_errno("opening " + path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno("fstat of " + path);
  if (status.st_ino != name.inode || static_cast<std::uint64_t>(status.st_size) != name.bytes) {
    errno = ESTALE;
    throw_errno(path + " is not the segment it was");
  }
  return map(fd.get(), name.bytes);
}

}  // namespace ddprun::worker_sdk
