#pragma once
// See manifest_fuzz.cc.

#include <cstddef>
#include <cstdint>

namespace ddprun::fuzz {

void fuzz_manifest(const std::uint8_t* data, std::size_t size);

// The same body on real manifests with seeded damage, so that every build runs it.
void manifests_with_damage(int times);

}  // namespace ddprun::fuzz
