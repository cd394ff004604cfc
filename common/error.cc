#include "common/error.h"

#include <cerrno>
#include <system_error>

namespace ddprun {
namespace {

class Category : public std::error_category {
 public:
  const char* name() const noexcept override { return "ddprun"; }

  std::string message(int value) const override {
    switch (static_cast<Errc>(value)) {
      case Errc::kFrameTooLarge: return "frame too large";
      case Errc::kPeerSilent: return "peer silent";
      case Errc::kBadMessage: return "bad message";
      case Errc::kBadToken: return "token refused";
      case Errc::kBadOption: return "bad option";
      case Errc::kNotFound: return "not found";
    }
    return "unknown";
  }
};

}  // namespace

const std::error_category& error_category() noexcept {
  static const Category category;
  return category;
}

std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), error_category()};
}

Failure errno_failure(std::string context) {
  return {{errno, std::system_category()}, std::move(context)};
}

std::string to_string(const Failure& failure) {
  return failure.context + ": " + failure.code.message();
}

void throw_failure(const Failure& failure) {
  throw std::system_error(failure.code, failure.context);
}

}  // namespace ddprun
