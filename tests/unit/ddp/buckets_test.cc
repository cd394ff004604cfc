// Bucket assignment against PyTorch's (tests/golden/buckets.txt), and the layout inside a bucket.

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "worker_sdk/ddp/buckets.h"

namespace {

using ddprun::DataType;
using ddprun::worker_sdk::assign_buckets;
using ddprun::worker_sdk::assign_buckets_in_order;
using ddprun::worker_sdk::lay_out;
using ddprun::worker_sdk::PackItem;
using Buckets = std::vector<std::vector<std::size_t>>;

DataType type_named(const std::string& name) {
  for (const DataType t : {DataType::f32, DataType::f64, DataType::f16, DataType::bf16}) {
    if (name == ddprun::name_of(t)) return t;
  }
  throw std::runtime_error("no type " + name);
}

std::vector<std::size_t> limits_in(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream in(text);
  std::vector<std::size_t> limits;
  for (std::size_t limit = 0; in >> limit;) limits.push_back(limit);
  return limits;
}

std::vector<PackItem> items_in(const std::string& text) {
  std::istringstream in(text);
  std::vector<PackItem> items;
  for (std::string word; in >> word;) {
    const auto colon = word.find(':');
    items.push_back({type_named(word.substr(0, colon)), std::stoul(word.substr(colon + 1))});
  }
  return items;
}

Buckets buckets_in(const std::string& text) {
  Buckets buckets(1);
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (word == ";") {
      buckets.emplace_back();
    } else {
      buckets.back().push_back(std::stoul(word));
    }
  }
  return buckets;
}

}  // namespace

TEST_CASE("Buckets: 500 random orders of arrival are packed as PyTorch rebuilds them") {
  std::ifstream file("tests/golden/rebuilt_buckets.txt");
  REQUIRE(file);
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    std::vector<std::string> fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, '|');) fields.push_back(field);
    REQUIRE(fields.size() == 4);
    std::vector<PackItem> items;
    for (const std::size_t count : limits_in(fields[1])) items.push_back({DataType::f32, count});
    CHECK(assign_buckets_in_order(items, limits_in(fields[2]), limits_in(fields[0])) ==
          buckets_in(fields[3]));
    ++cases;
  }
  CHECK(cases == 500);
}

TEST_CASE("Buckets: a tail lies behind the last gradient and inside the bucket") {
  const auto layout = lay_out({{DataType::f16, 5}, {DataType::f16, 9}}, 3, 40);
  CHECK(layout.offsets == std::vector<std::size_t>{0, 16});
  CHECK(layout.tail == 48);
  CHECK(layout.bytes == 96);
}

TEST_CASE("Buckets: 500 random models are packed as PyTorch packs them") {
  std::ifstream file("tests/golden/buckets.txt");
  REQUIRE(file);
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    INFO(line);
    std::istringstream in(line);
    std::string limits;
    std::string items;
    std::string buckets;
    std::getline(std::getline(std::getline(in, limits, '|'), items, '|'), buckets);
    CHECK(assign_buckets(items_in(items), limits_in(limits)) == buckets_in(buckets));
    ++cases;
  }
  CHECK(cases == 500);
}

TEST_CASE("Buckets: the first is closed at its own limit, and a bucket may overshoot") {
  const std::vector<PackItem> items(6, {DataType::f32, 10});  // 40 bytes each.
  CHECK(assign_buckets(items, {1, 100}) == Buckets{{0}, {1, 2, 3}, {4, 5}});
  CHECK(assign_buckets(items, {100}) == Buckets{{0, 1, 2}, {3, 4, 5}});
  CHECK(assign_buckets({}, {100}).empty());
}

TEST_CASE("Buckets: types never share one") {
  const std::vector<PackItem> items{
      {DataType::f32, 1}, {DataType::f16, 1}, {DataType::f32, 1}, {DataType::f16, 1}};
  CHECK(assign_buckets(items, {1000}) == Buckets{{0, 2}, {1, 3}});
}

TEST_CASE("Buckets: gradients are aligned and the whole divides among the ranks") {
  const auto layout = lay_out({{DataType::f32, 1}, {DataType::f32, 4}, {DataType::f32, 5}}, 3);
  CHECK(layout.offsets == std::vector<std::size_t>{0, 16, 32});
  CHECK(layout.bytes == 96);  // 64 needed; 3 ranks times 16 bytes, twice.
  CHECK(lay_out({}, 4).bytes == 0);
}
