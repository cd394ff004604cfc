#pragma once
// What a program must be compiled with to use this SDK. Headers that need it include this first:
// so a compiler says in one sentence what is missing, and does not get to the errors that follow.

#include <cstddef>

#if __cplusplus <= 201703L
#error "ddprun needs C++20: compile with -std=c++20 (CMake: set(CMAKE_CXX_STANDARD 20))"
#define DDPRUN_CANNOT_BE_COMPILED
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI && !defined(DDPRUN_OLD_CXX_ABI)
#error "ddprun was built for the C++11 ABI: compile without _GLIBCXX_USE_CXX11_ABI=0"
#define DDPRUN_CANNOT_BE_COMPILED
#endif

#ifdef DDPRUN_CANNOT_BE_COMPILED
#include "ddprun/see_the_error_above"  // It does not exist: that ends the compilation here.
#endif
