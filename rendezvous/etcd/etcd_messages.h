#pragma once
// The daemon's requests to etcd and etcd's answers, as the JSON of etcd's v3 gateway. Pure: the
// bytes are etcd_client's. Keys and values travel in base64, 64-bit numbers as strings.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::rendezvous::etcd {

std::string base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);

// For a key: 16 digits, in the order of the numbers. Not for negative ones.
std::string sortable(std::int64_t number);

// A path of the gateway and the body to post there.
struct Request {
  std::string path;
  std::string body;
};

Request log_in(const std::string& user, const std::string& password);
Request grant_lease(std::int64_t seconds);
Request renew_lease(std::int64_t lease);
Request revoke_lease(std::int64_t lease);  // With the keys under it.
Request get(const std::string& key);
// At most `limit` keys from `first` up to but not including `end`, in their order.
Request get_range(const std::string& first, const std::string& end, int limit);
// Creates `key` under `lease` unless it is there.
Request create(const std::string& key, const std::string& value, std::int64_t lease);

struct Put {
  std::string key, value;
};
struct DeleteRange {
  std::string first, end;
};
// All of it, or nothing if `guard` was not created by revision `term`.
Request write_if(const std::string& guard, std::int64_t term, const std::vector<Put>& puts,
                 const std::vector<DeleteRange>& deletes);

struct Lease {
  std::int64_t id = 0, ttl_seconds = 0;  // 0 s: there is no such lease any more.
};
struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0;
};
struct Range {
  std::vector<KeyValue> found;
  bool more = false;
};
struct Outcome {
  bool succeeded = false;
  std::int64_t revision = 0;  // Of the store, afterwards.
};

// A failure contains etcd's complaint, or the name of the field that is wrong.
Result<std::string> read_login(std::string_view body);  // Fit for a header.
Result<Lease> read_lease(std::string_view body);
Result<Range> read_range(std::string_view body);
Result<Outcome> read_outcome(std::string_view body);

// Where a journal in etcd begins.
struct JournalStart {
  std::int64_t term = 0, first = 0;
};
std::string manifest_text(const JournalStart& manifest);
Result<JournalStart> read_manifest(std::string_view text);

}  // namespace ddprun::rendezvous::etcd
