#include "launcher/options/help.h"

#include <catch2/catch.hpp>

#include "common/text/words.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("Suggest: the distance counts insertions, losses, changes and swaps", "[suggest]") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("tee", "tee") == 0);
  CHECK(edit_distance("te", "tee") == 1);
  CHECK(edit_distance("toe", "tee") == 1);
  CHECK(edit_distance("ndoe", "node") == 1);
  CHECK(edit_distance("abcd", "badc") == 2);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("Suggest: the nearest word wins, and nothing is better than nonsense", "[suggest]") {
  const std::vector<std::string> known = {"--nnodes", "--node-rank", "--nproc-per-node", "--tee"};
  CHECK(nearest("--nnode", known) == "--nnodes");
  CHECK(nearest("--noderank", known) == "--node-rank");
  CHECK(nearest("--nproc_per_nod", known) == "--nproc-per-node");
  CHECK(nearest("--banana", known) == "");
  CHECK(nearest("", known) == "");
  CHECK(nearest("--tee", {}) == "");
}

TEST_CASE("Suggest: an abbreviation finds the word that it begins", "[suggest]") {
  CHECK(nearest("--nproc", {"--nnodes", "--nproc-per-node"}) == "--nproc-per-node");
  CHECK(nearest("-", {"--nnodes"}) == "");
}

TEST_CASE("Suggest: the end of a sentence", "[suggest]") {
  CHECK(did_you_mean("auht", {"auth"}) == "; did you mean auth?");
  CHECK(did_you_mean("zzzz", {"auth"}) == "");
}

}  // namespace
}  // namespace ddprun::launcher
