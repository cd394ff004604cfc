#pragma once
// Reads gzip'd IDX files, the format of MNIST and Fashion-MNIST, as in Debian's
// dataset-fashion-mnist. Independent of libtorch. Used by train.

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

// An array of bytes with its extents: {60000, 28, 28} for images, {60000} for labels.
struct IdxArray {
  std::vector<std::size_t> extents;
  std::vector<std::uint8_t> bytes;
};

// Throws std::runtime_error naming the file, what is wrong with it and what to do about it.
IdxArray read_idx(const std::string& path);

// Images and as many labels.
struct LabelledImages {
  IdxArray images;
  std::vector<std::uint8_t> labels;
  std::size_t size() const { return labels.size(); }
};

// `stem` is "train" or "t10k". Throws like read_idx(); also if the files do not fit together, if
// images are not 28 x 28 or a label is not a digit.
LabelledImages read_fashion_mnist(const std::string& directory, const std::string& stem);

}  // namespace examples
