// etcd's answers under any bytes: they are read or refused, and what is read makes sense.

#include "tests/fuzz/etcd_fuzz.h"

#include <string_view>

#include "common/assert.h"
#include "rendezvous/etcd/etcd_messages.h"

namespace ddprun::fuzz {

using namespace rendezvous;

void fuzz_etcd(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto lease = etcd::read_lease(bytes)) DDPRUN_ASSERT(lease->ttl_seconds >= 0);
  if (const auto login = etcd::read_login(bytes)) {
    DDPRUN_ASSERT(login->find_first_of("\r\n ") == std::string::npos);
  }
  if (const auto outcome = etcd::read_outcome(bytes)) DDPRUN_ASSERT(outcome->revision > 0);
  if (const auto manifest = etcd::read_manifest(bytes)) {
    const auto again = etcd::read_manifest(etcd::manifest_text(*manifest));
    DDPRUN_ASSERT(again && again->term == manifest->term && again->first == manifest->first);
  }
  (void)etcd::read_range(bytes);
  if (const auto decoded = etcd::from_base64(bytes)) {
    DDPRUN_ASSERT(etcd::from_base64(etcd::base64(*decoded)).value() == *decoded);
  }
  DDPRUN_ASSERT(etcd::from_base64(etcd::base64(bytes)).value() == bytes);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_etcd(data, size);
  return 0;
}
#endif
