#pragma once
#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

// Feeds `data` to every reader of what etcd answers. Aborts where one breaks a promise.
void fuzz_etcd(const std::uint8_t* data, std::size_t size);

}  // namespace ddprun::fuzz
