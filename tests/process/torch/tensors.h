#pragma once
// What tests of libtorch's tensors share. Ranks are threads, where Catch2 may not be used.

#include <torch/torch.h>

#include <string>
#include <vector>

#include "ddprun/error.h"

namespace ddprun::test {

inline void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::mismatch, {}, text);
}

inline void require_equal(const at::Tensor& is, const at::Tensor& should, const std::string& text) {
  require(is.scalar_type() == should.scalar_type(), text + ": the type");
  require(is.sizes() == should.sizes(), text + ": the shape");
  require(is.to(at::kComplexDouble).eq(should.to(at::kComplexDouble)).all().item<bool>(), text);
}

template <class Call>
void require_refused(ErrorKind kind, const std::string& part, const Call& call) {
  std::string text = "nothing";
  try {
    call();
  } catch (const Error& error) {
    text = error.what();
    if (error.kind() == kind && text.find(part) != std::string::npos) return;
  }
  require(false, "'" + text + "' instead of '" + part + "'");
}

// Those of all versions of libtorch.
inline const std::vector<at::ScalarType> kTypes = {
    at::kBool, at::kChar,     at::kShort, at::kByte,   at::kInt,          at::kLong,
    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};

}  // namespace ddprun::test
