#pragma once
// The compiler settings that this SDK requires. Headers that depend on them include this header
// first, so that a compiler reports one error with the missing setting instead of many others.

#include <cstddef>

#if __cplusplus <= 201703L
#error "ddprun needs C++20: compile with -std=c++20 (CMake: set(CMAKE_CXX_STANDARD 20))"
#define DDPRUN_CANNOT_BE_COMPILED
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI && !defined(DDPRUN_OLD_CXX_ABI)
#error "ddprun was built for the C++11 ABI: compile without _GLIBCXX_USE_CXX11_ABI=0"
#define DDPRUN_CANNOT_BE_COMPILED
#endif

#ifdef DDPRUN_CANNOT_BE_COMPILED
#include "ddprun/see_the_error_above"  // Does not exist: compilation stops here.
#endif
