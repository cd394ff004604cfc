#include "common/store/store_wire.h"

#include <catch2/catch.hpp>

#include "tests/support/bytes.h"
#include "tests/support/store_requests.h"

namespace ddprun::store {
namespace {

using test::bytes;
using test::StoreRequests;

std::string describe(const StoreRequest& request) {
  std::string out = std::to_string(static_cast<int>(request.op));
  for (const std::string& key : request.keys) out += " k:" + key;
  for (const std::string& value : request.values) out += " v:" + value;
  if (request.number != 0) out += " n:" + std::to_string(request.number);
  return out;
}

// Everything that can be read, one request a line, and the failure that ended it if one did.
std::string read_all(StoreReader& reader) {
  std::string out;
  for (;;) {
    const Result<StoreRequest*> request = reader.next();
    if (!request) return out + "! " + request.error().context + "\n";
    if (!*request) return out;
    out += describe(**request) + "\n";
  }
}

std::string read_at_once(const std::string& input, StoreLimits limits = {}) {
  StoreReader reader(limits);
  reader.feed(input);
  return read_all(reader);
}

std::string op(StoreOp code) { return std::to_string(static_cast<int>(code)); }

std::string every_new_request() {
  const StoreRequests to;
  return to.validate() + to.ping(7) + to.set("/k", "v") + to.compare_set("/k", "v", "w") +
         to.get("/k") + to.add("/n", -2) + to.check({"/k", "/z"}) + to.wait({"/k"}) +
         to.key_count() + to.remove("/k") + to.append("/a", "12") + to.multi_get({"/x", "/y"}) +
         to.multi_set({{"/x", "1"}, {"/y", ""}}) + to.cancel_wait() + to.queue_push("/q", "e") +
         to.queue_pop("/q") + to.queue_length("/q") + to.list_keys() + to.barrier("/b", 3);
}

std::string every_old_request() {
  const StoreRequests to(false);
  return to.set("/k", "v") + to.compare_set("/k", "v", "w") + to.get("/k") + to.add("/n", -2) +
         to.check({"/k", "/z"}) + to.wait({}) + to.key_count() + to.watch("/k") + to.remove("/k");
}

TEST_CASE("Store wire: reads every request of 2.2 and later", "[store]") {
  CHECK(read_at_once(every_new_request()) ==
        op(StoreOp::kValidate) + " n:1015412686\n" +          //
            op(StoreOp::kPing) + " n:7\n" +                   //
            op(StoreOp::kSet) + " k:/k v:v\n" +               //
            op(StoreOp::kCompareSet) + " k:/k v:v v:w\n" +    //
            op(StoreOp::kGet) + " k:/k\n" +                   //
            op(StoreOp::kAdd) + " k:/n n:-2\n" +              //
            op(StoreOp::kCheck) + " k:/k k:/z\n" +            //
            op(StoreOp::kWait) + " k:/k\n" +                  //
            op(StoreOp::kKeyCount) + "\n" +                   //
            op(StoreOp::kDelete) + " k:/k\n" +                //
            op(StoreOp::kAppend) + " k:/a v:12\n" +           //
            op(StoreOp::kMultiGet) + " k:/x k:/y\n" +         //
            op(StoreOp::kMultiSet) + " k:/x k:/y v:1 v:\n" +  //
            op(StoreOp::kCancelWait) + "\n" +                 //
            op(StoreOp::kQueuePush) + " k:/q v:e\n" +         //
            op(StoreOp::kQueuePop) + " k:/q\n" +              //
            op(StoreOp::kQueueLength) + " k:/q\n" +           //
            op(StoreOp::kListKeys) + "\n" + op(StoreOp::kBarrier) + " k:/b n:3\n");
}

TEST_CASE("Store wire: reads every request of 1.13", "[store]") {
  CHECK(read_at_once(every_old_request()) ==
        op(StoreOp::kSet) + " k:/k v:v\n" + op(StoreOp::kCompareSet) + " k:/k v:v v:w\n" +
            op(StoreOp::kGet) + " k:/k\n" + op(StoreOp::kAdd) + " k:/n n:-2\n" +
            op(StoreOp::kCheck) + " k:/k k:/z\n" + op(StoreOp::kWait) + "\n" +
            op(StoreOp::kKeyCount) + "\n" + op(StoreOp::kWatch) + " k:/k\n" + op(StoreOp::kDelete) +
            " k:/k\n");
}

TEST_CASE("Store wire: requests are encoded as clients of 2.2 and later send them", "[store]") {
  const std::string requests = every_new_request();
  const StoreLimits limits;
  StoreReader reader(limits);
  reader.feed(requests);
  std::string encoded;
  while (const StoreRequest* request = *reader.next()) encoded += encode(*request);
  CHECK(test::hex(encoded) == test::hex(requests));
}

TEST_CASE("Store wire: a cut at any byte, or at every byte, changes nothing", "[store]") {
  for (const std::string& input : {every_new_request(), every_old_request()}) {
    const std::string whole = read_at_once(input);
    for (std::size_t cut = 0; cut <= input.size(); ++cut) {
      const StoreLimits limits;
      StoreReader reader(limits);
      reader.feed(std::string_view(input).substr(0, cut));
      std::string seen = read_all(reader);
      reader.feed(std::string_view(input).substr(cut));
      seen += read_all(reader);
      CAPTURE(cut);
      REQUIRE(seen == whole);
    }
    const StoreLimits limits;
    StoreReader reader(limits);
    std::string seen;
    for (const char byte : input) {
      reader.feed({&byte, 1});
      seen += read_all(reader);
    }
    CHECK(seen == whole);
  }
}

TEST_CASE("Store wire: the first bytes tell the dialect", "[store]") {
  const auto is_new = [](const std::string& input) {
    const StoreLimits limits;
    StoreReader reader(limits);
    reader.feed(input);
    REQUIRE(reader.next().has_value());
    return reader.new_dialect();
  };
  CHECK(is_new(bytes("00 ce f7 85 3c")));
  CHECK_FALSE(is_new(bytes("06")));
  CHECK_FALSE(is_new(bytes("00 02 00*7 2f 6b 01 00*7 78")));
  // A key with a length that begins like the magic: distinguished at the third byte.
  CHECK_FALSE(is_new(bytes("00 ce 00*7 2f*206 01 00*7 78")));
}

TEST_CASE("Store wire: the limits are those of PyTorch's server where nothing else is said",
          "[store]") {
  const std::string hello = StoreRequests::validate();
  for (const auto& [request, why] : std::vector<std::pair<const char*, const char*>>{
           {"13", "reading a store request with opcode 19"},
           {"01 01 20 00*6", "reading a store key of 8193 bytes"},
           {"01 01 00*7 61 01 00*2 80 00*4", "reading a store value of 2147483649 bytes"},
           {"05 01 00*1 02 00*5", "reading a store request for 131073 keys"},
           {"0a 01 00*2 80 00*4", "reading a store request for 2147483649 keys"}}) {
    CAPTURE(request);
    const std::string seen = read_at_once(hello + bytes(request));
    CHECK(seen.substr(seen.find('!')) == "! " + std::string(why) + "\n");
  }
  CHECK(read_at_once("GET / HTTP/1.1\r\n") == "! reading a store request with opcode 71\n");
}

TEST_CASE("Store wire: what is no request is refused with a reason", "[store]") {
  StoreLimits limits;
  limits.key_bytes_max = 10;
  limits.value_bytes_max = 20;
  limits.request_keys_max = 3;
  limits.request_bytes_max = 60;
  const StoreRequests to;
  const std::string hello = to.validate();
  const auto ends_with = [&](const std::string& input) {
    const std::string seen = read_at_once(input, limits);
    return seen.substr(std::min(seen.find('!'), seen.size()));
  };
  CHECK(ends_with(hello + test::u8(19)) == "! reading a store request with opcode 19\n");
  CHECK(ends_with(test::u8(9)) == "! reading a store request with opcode 9\n");
  CHECK(ends_with(hello + bytes("00 01 02 03 04")) == "! reading a VALIDATE with a wrong number\n");
  CHECK(ends_with(hello + to.get("/123456789")) == "");
  CHECK(ends_with(hello + to.get("/1234567890")) == "! reading a store key of 11 bytes\n");
  CHECK(ends_with(hello + to.set("/k", std::string(20, 'x'))) == "");
  CHECK(ends_with(hello + to.set("/k", std::string(21, 'x'))) ==
        "! reading a store value of 21 bytes\n");
  CHECK(ends_with(hello + to.check({"a", "b", "c"})) == "");
  CHECK(ends_with(hello + to.check({"a", "b", "c", "d"})) ==
        "! reading a store request for 4 keys\n");
  CHECK(
      ends_with(hello + to.multi_set({{"a", std::string(20, 'x')}, {"b", std::string(20, 'x')}})) ==
      "! reading a store request of more than 60 bytes\n");
  // Lengths no memory could hold, refused before anything is kept for them.
  CHECK(ends_with(hello + bytes("03 ff*8")) ==
        "! reading a store key of 18446744073709551615 bytes\n");
  CHECK(ends_with(hello + bytes("0a ff*8")) ==
        "! reading a store request for 18446744073709551615 keys\n");
}

}  // namespace
}  // namespace ddprun::store
