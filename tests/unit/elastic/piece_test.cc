#include "worker_sdk/job/shard_plan.h"

#include <catch2/catch.hpp>

namespace ddprun::elastic {
namespace {

TEST_CASE("Piece: a seat names those that are skipped, and no others", "[piece]") {
  const std::string skip = piece_of(7, 3) + "; " + piece_of(17, 30);
  CHECK(has_piece(skip, piece_of(7, 3)));
  CHECK(has_piece(skip, piece_of(17, 30)));
  CHECK_FALSE(has_piece(skip, piece_of(7, 30)));
  CHECK_FALSE(has_piece(skip, piece_of(17, 3)));
  CHECK_FALSE(has_piece("", piece_of(7, 3)));
}

TEST_CASE("Piece: its samples are listed as far as there is room", "[piece]") {
  CHECK(text_of({}).empty());
  CHECK(text_of({{.index = 5}}) == "sample 5");
  CHECK(text_of({{.index = 5}, {.set = 1, .index = 9}}) == "samples 5, 9 of set 1");
  const std::string many = text_of(std::vector<Sample>(1000, {.index = std::int64_t{1} << 61}));
  CHECK(many.size() < 480);
  CHECK(many.ends_with(" more"));
}

}  // namespace
}  // namespace ddprun::elastic
