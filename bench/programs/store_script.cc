#include "bench/programs/store_script.h"

#include "tests/support/store_requests.h"

namespace ddprun::bench {
namespace {

// PyTorch's TCPStore, either dialect.
Scripts tcp_store(bool new_dialect, const std::string& operation, const std::string& key,
                  const std::string& value) {
  const test::StoreRequests to(new_dialect);
  const Step set_and_check = {{to.set(key, value), to.check({key})}, 1};
  Scripts scripts;
  if (new_dialect) scripts.hello = {{{to.validate(), to.ping(1)}, 4}};
  if (operation == "set") scripts.turn = {set_and_check};
  if (operation == "add") scripts.turn = {{{to.add(key, 1)}, 8}};
  if (operation == "get" || operation == "wait") {
    // In one piece: a server that answers each piece, whatever is in it, must not answer twice
    // here.
    scripts.begin = {{{to.set(key, value) + to.check({key})}, 1}};
    scripts.turn = {{{to.wait({key})}, 1}};
  }
  if (operation == "get") scripts.turn.push_back({{to.get(key)}, 8 + value.size()});
  return scripts;
}

Scripts redis(const std::string& operation, const std::string& key, const std::string& value) {
  const Step set = {{resp({"SET", key, value})}, 0};
  Scripts scripts;
  if (operation == "set") scripts.turn = {set};
  if (operation == "add") scripts.turn = {{{resp({"INCR", key})}, 0}};
  if (operation == "get") {
    const std::size_t head = 3 + std::to_string(value.size()).size();
    scripts.turn = {{{resp({"GET", key})}, head + value.size() + 2}};
  }
  if (operation == "wait") scripts.turn = {{{resp({"EXISTS", key})}, 0}};
  if (operation == "get" || operation == "wait") scripts.begin = {set};
  return scripts;
}

}  // namespace

std::string resp(const std::vector<std::string>& words) {
  std::string out = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) {
    out += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
  }
  return out;
}

Scripts scripts_of(const std::string& protocol, const std::string& operation, int client,
                   std::size_t value_bytes) {
  const std::string key = "/bench/" + operation + "/" + std::to_string(client);
  const std::string value(value_bytes, 'v');
  if (protocol == "redis") return redis(operation, key, value);
  return tcp_store(protocol == "new", operation, key, value);
}

}  // namespace ddprun::bench
