# What ddprun stands on. Debian 12's package for each is named where its absence is reported.

find_package(Threads REQUIRED)
if(DDPRUN_STATIC_RUNTIME)
  set(OPENSSL_USE_STATIC_LIBS ON)
  if(OPENSSL_SSL_LIBRARY MATCHES "\\.so$")  # Found before the option was there.
    unset(OPENSSL_SSL_LIBRARY CACHE)
    unset(OPENSSL_CRYPTO_LIBRARY CACHE)
  endif()
endif()
find_package(OpenSSL 3.0 REQUIRED)          # libssl-dev
find_package(Boost 1.81 REQUIRED)           # libboost1.81-dev; headers only
find_package(CLI11 REQUIRED)                # libcli11-dev
find_package(spdlog REQUIRED)               # libspdlog-dev
find_package(nlohmann_json REQUIRED)        # nlohmann-json3-dev

include(cmake/gloo.cmake)                   # libgloo-dev

# Its headers only: the library is loaded when somebody asks for a binding.
find_path(HWLOC_INCLUDE_DIR hwloc.h)        # libhwloc-dev
if(NOT HWLOC_INCLUDE_DIR)
  message(FATAL_ERROR "hwloc not found. On Debian: apt-get install libhwloc-dev")
endif()
add_library(ddprun_hwloc INTERFACE)
target_include_directories(ddprun_hwloc SYSTEM INTERFACE ${HWLOC_INCLUDE_DIR})

if(DDPRUN_BUILD_TESTS)
  find_package(Catch2 2.13 REQUIRED)        # catch2
endif()
