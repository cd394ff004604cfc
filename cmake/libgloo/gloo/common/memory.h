#pragma once
// Debian's libgloo-dev leaves this header out, to which its headers of TCP pairs refer. These are
// the classes that they name, with the members that they have in the library, and without any
// function: ddprun derives from classes that have such members, and leaves them alone
// (worker_sdk/gloo/gloo_mesh.h). A test compares the sizes with the library's. cmake/gloo.cmake
// names this folder where the system has no such header.

#include <memory>

namespace gloo {

template <class T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <class T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> ptr_;
};

template <class T>
class ShareableNonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
