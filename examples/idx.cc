#include "examples/idx.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace examples {
namespace {

constexpr std::size_t kMaxExtents = 4;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr unsigned kReadChunk = 256 * 1024;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what +
                           "; the files of Fashion-MNIST come with: apt-get install "
                           "dataset-fashion-mnist (or name their folder with --data)");
}

struct Close {
  void operator()(gzFile file) const { gzclose(file); }
};
using File = std::unique_ptr<gzFile_s, Close>;

File open(const std::string& path) {
  errno = 0;
  File file(gzopen(path.c_str(), "rbe"));
  if (!file) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  gzbuffer(file.get(), kReadChunk);
  return file;
}

void read(gzFile file, const std::string& path, void* to, std::size_t size) {
  errno = 0;
  const int got = gzread(file, to, static_cast<unsigned>(size));
  if (got >= 0 && static_cast<std::size_t>(got) == size) return;
  int code = Z_OK;
  const char* text = gzerror(file, &code);
  if (code == Z_ERRNO) fail(path, std::string("cannot be read: ") + std::strerror(errno));
  if (code != Z_OK && code != Z_BUF_ERROR && code != Z_STREAM_END) {
    fail(path, std::string("is corrupt: ") + text);
  }
  fail(path, "is truncated");
}

std::uint32_t big_endian(const std::uint8_t* p) {
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}

std::vector<std::size_t> read_extents(gzFile file, const std::string& path) {
  std::uint8_t magic[4];
  read(file, path, magic, sizeof magic);
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte || magic[3] == 0 ||
      magic[3] > kMaxExtents) {
    fail(path, "is not an IDX file of bytes");
  }
  std::vector<std::size_t> extents;
  std::size_t total = 1;
  for (int d = 0; d < magic[3]; ++d) {
    std::uint8_t raw[4];
    read(file, path, raw, sizeof raw);
    extents.push_back(big_endian(raw));
    total *= std::max<std::size_t>(extents.back(), 1);
    if (total > kMaxBytes) fail(path, "claims to hold more than 1 GiB");
  }
  return extents;
}

}  // namespace

IdxArray read_idx(const std::string& path) {
  const File file = open(path);
  IdxArray array;
  array.extents = read_extents(file.get(), path);
  std::size_t size = 1;
  for (const std::size_t extent : array.extents) size *= extent;
  array.bytes.resize(size);
  read(file.get(), path, array.bytes.data(), size);
  std::uint8_t beyond = 0;  // Reading up to the end also makes zlib verify the checksum.
  const int more = gzread(file.get(), &beyond, 1);
  if (more > 0) fail(path, "is longer than its header says");
  if (more < 0) {
    int code = Z_OK;
    fail(path, std::string("is corrupt: ") + gzerror(file.get(), &code));
  }
  return array;
}

LabelledImages read_fashion_mnist(const std::string& directory, const std::string& stem) {
  const std::string image_path = directory + "/" + stem + "-images-idx3-ubyte.gz";
  const std::string label_path = directory + "/" + stem + "-labels-idx1-ubyte.gz";
  LabelledImages set{read_idx(image_path), {}};
  IdxArray labels = read_idx(label_path);
  const auto& shape = set.images.extents;
  if (shape.size() != 3 || shape[1] != 28 || shape[2] != 28) {
    fail(image_path, "does not hold images of 28 x 28");
  }
  if (labels.extents.size() != 1 || labels.extents[0] != shape[0]) {
    fail(label_path, "does not hold one label for each of the " + std::to_string(shape[0]) +
                         " images beside it");
  }
  if (std::any_of(labels.bytes.begin(), labels.bytes.end(), [](auto l) { return l > 9; })) {
    fail(label_path, "holds a label above 9");
  }
  set.labels = std::move(labels.bytes);
  return set;
}

}  // namespace examples
