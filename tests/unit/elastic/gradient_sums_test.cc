#include "ddprun/elastic/gradient_sums.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ddprun/elastic/random_stream.h"
#include "tests/support/ranks.h"
#include "worker_sdk/elastic/sum_layout.h"

namespace ddprun::test {
namespace {

using Kind = GradientSums::Kind;
using Result = GradientSums::Result;
using Tensors = std::vector<std::vector<float>>;

constexpr int kShards = 11;
const std::vector<std::size_t> kSizes = {700, 1, 0, 3000, 17};

// What a shard's pass gives in a step: the sizes differ between tensors and steps, the last tensor
// has no gradient in some shards.
Tensors gradients_of(std::int64_t step, int shard, float scale = 1) {
  RandomStream random(5, static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(shard));
  Tensors all;
  for (std::size_t t = 0; t < kSizes.size(); ++t) {
    all.emplace_back(kSizes[t]);
    const float size = scale * std::exp2(-7.0f * static_cast<float>(t));
    for (float& x : all.back()) x = size * (random.uniform() - 0.5f) * random.uniform();
  }
  if (shard % 4 == 1) all.back().clear();
  return all;
}

std::vector<std::span<const float>> views(const Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}
std::vector<std::span<float>> writable(Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

Tensors empty_ones() {
  Tensors all;
  for (const std::size_t size : kSizes) all.emplace_back(size);
  return all;
}

std::uint64_t hash_of(const Tensors& tensors, std::uint64_t h) {
  for (const auto& tensor : tensors) {
    for (const float x : tensor) h = (h ^ std::bit_cast<std::uint32_t>(x)) * 0x100000001b3U;
  }
  return h;
}

// Which rank computes a shard in a step: any rank, some have none, in an order of its own.
std::vector<int> random_shards(const ProcessGroup& group, std::int64_t step) {
  RandomStream owners(23, static_cast<std::uint64_t>(step),
                      static_cast<std::uint32_t>(group.world_size()));
  std::vector<int> mine;
  for (int shard = 0; shard < kShards; ++shard) {
    const auto owner = owners() % static_cast<unsigned>(group.world_size());
    if (static_cast<int>(owner) == group.rank()) mine.push_back(shard);
  }
  std::shuffle(mine.begin(), mine.end(), owners);
  return mine;
}

struct Trained {
  std::uint64_t hash = 0xcbf29ce484222325U;
  std::string kinds;  // Of each attempt of a step: "g", "o", "n".
};

// One attempt of a step: its sums are good, or not.
Result attempt(GradientSums& sums, ProcessGroup& group, std::int64_t step, Tensors& out,
               float scale = 1) {
  sums.begin();
  for (const int shard : random_shards(group, step)) {
    sums.add(views(gradients_of(step, shard, scale)));
  }
  return sums.reduce(group, writable(out), {.divide_by = 96});
}

// Steps 3 and 4 have gradients 1e6 times as large: one of them is over.
Trained train(GradientSums& sums, ProcessGroup& group, std::int64_t from, std::int64_t to,
              Trained trained = {}) {
  for (std::int64_t step = from; step < to;) {
    Tensors out = empty_ones();
    const Result result = attempt(sums, group, step, out, step == 3 || step == 4 ? 1e6f : 1);
    trained.kinds += result.kind == Kind::good ? "g" : result.kind == Kind::over ? "o" : "n";
    if (result.kind == Kind::over) continue;
    trained.hash = hash_of(out, trained.hash);
    sums.commit();
    ++step;
  }
  return trained;
}

// What all ranks of a world computed; they agree, or there are several.
class Answers {
 public:
  void add(const Trained& trained) {
    const std::lock_guard lock(mutex_);
    ++all_[std::to_string(trained.hash) + " " + trained.kinds];
  }
  std::string text() const {
    std::string text;
    for (const auto& [answer, ranks] : all_) text += answer + " x" + std::to_string(ranks) + "; ";
    return text;
  }
  std::string only() const { return all_.size() == 1 ? all_.begin()->first : "differ: " + text(); }

 private:
  std::mutex mutex_;
  std::map<std::string, int> all_;
};

std::string trained_on(const Ranks& ranks, const GradientSumOptions& options = {}) {
  Answers answers;
  const auto errors = ranks.run([&](ProcessGroup& group) {
    GradientSums sums(kSizes, options);
    sums.use(group);
    answers.add(train(sums, group, 0, 8));
  });
  return outcome(errors) == "all well" ? answers.only() : outcome(errors);
}

TEST_CASE("Gradient sums: any number of ranks, whoever has which shard, gives the same bits",
          "[elastic]") {
  const std::string alone = trained_on({.world_size = 1});
  CHECK(alone.ends_with(" ogggoggggg"));
  for (int world_size = 2; world_size <= 8; ++world_size) {
    CHECK(trained_on({.world_size = world_size, .backend = "shm"}) == alone);
  }
  CHECK(trained_on({.world_size = 2, .backend = "gloo"}) == alone);
  CHECK(trained_on({.world_size = 5, .backend = "gloo"}) == alone);
  CHECK(trained_on({.world_size = 3, .backend = "cpu"}) == alone);
  CHECK(trained_on({.world_size = 6, .backend = "cpu"}) == alone);
  CHECK(trained_on({.world_size = 3, .backend = "shm"}, {.bucket_bytes = 4096}) == alone);
}

// Three shards a step, rank by rank. In step 2 a tensor is not finite, in step 3 gradients grow.
Trained train_three(GradientSums& sums, ProcessGroup& group) {
  Trained trained;
  for (std::int64_t step = 0; step < 5;) {
    Tensors out = empty_ones();
    sums.begin();
    for (int shard = group.rank(); shard < 3; shard += group.world_size()) {
      Tensors in = gradients_of(step, shard, step == 3 ? 1e6f : 1);
      if (step == 2 && shard == 1) in[3][2000] = std::numeric_limits<float>::infinity();
      sums.add(views(in));
    }
    const Result result = sums.reduce(group, writable(out), {.divide_by = 3});
    trained.kinds += result.kind == Kind::good ? "g" : result.kind == Kind::over ? "o" : "n";
    if (result.kind == Kind::over) continue;
    trained.hash = hash_of(out, trained.hash);
    sums.commit();
    ++step;
  }
  return trained;
}

TEST_CASE("Gradient sums: ranks of one host with a shard each get the bits that others get",
          "[elastic]") {
  const auto trained = [](const Ranks& ranks, const GradientSumOptions& options = {}) {
    Answers answers;
    const auto errors = ranks.run([&](ProcessGroup& group) {
      GradientSums sums(kSizes, options);
      sums.use(group);
      answers.add(train_three(sums, group));
    });
    return outcome(errors) == "all well" ? answers.only() : outcome(errors);
  };
  const std::string alone = trained({.world_size = 1});
  CHECK(alone.ends_with(" oggnogg"));
  for (const int world_size : {2, 3, 5}) {  // Some have several, all have one, some have none.
    CHECK(trained({.world_size = world_size, .backend = "shm"}) == alone);
    CHECK(trained({.world_size = world_size, .backend = "shm"}, {.bucket_bytes = 4096}) == alone);
  }
  CHECK(trained({.world_size = 3, .backend = "gloo"}) == alone);
}

TEST_CASE("Gradient sums: plain ones have the same calls, and depend on the ranks", "[elastic]") {
  const GradientSumOptions plain{.exact = false, .bucket_bytes = 4096};
  const std::string alone = trained_on({.world_size = 1}, plain);
  CHECK(alone.ends_with(" gggggggg"));
  bool differ = false;
  for (const int world_size : {2, 3, 4}) {
    const std::string text = trained_on({.world_size = world_size, .backend = "shm"}, plain);
    CHECK(text.ends_with(" gggggggg"));
    differ = differ || text != alone;
  }
  CHECK(differ);  // Else these numbers would show nothing.
}

TEST_CASE("Gradient sums: both kinds are near the true sum", "[elastic]") {
  for (const bool exact : {true, false}) {
    const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
      GradientSums sums(kSizes, {.exact = exact});
      sums.use(group);
      Tensors out = empty_ones();
      while (attempt(sums, group, 0, out).kind == Kind::over) continue;
      std::vector<Tensors> shards;
      for (int shard = 0; shard < kShards; ++shard) shards.push_back(gradients_of(0, shard));
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        for (std::size_t i = 0; i < kSizes[t]; ++i) {
          double truth = 0;
          for (const Tensors& one : shards) {
            if (!one[t].empty()) truth += static_cast<double>(one[t][i]);
          }
          if (std::abs(out[t][i] * 96 - truth) > 1e-6)
            throw Error(ErrorKind::corrupt, {}, "wrong sums");
        }
      }
    });
    CHECK(outcome(errors) == "all well");
  }
}

// Step k in one world, step k + 1 in another, as after a lost rank: what a newcomer needs is
// state().
TEST_CASE("Gradient sums: the state of committed steps goes on in another world", "[elastic]") {
  const std::string expected = trained_on({.world_size = 1});
  std::string state;
  Trained trained;
  std::int64_t step = 0;
  for (const int world_size : {4, 3, 1, 2}) {
    std::mutex mutex;
    std::string after;
    Trained so_far;
    Answers answers;
    const auto errors = Ranks{.world_size = world_size}.run([&](ProcessGroup& group) {
      GradientSums sums(kSizes);
      if (!state.empty()) sums.restore(state);
      sums.use(group);
      const Trained mine = train(sums, group, step, step + 2, trained);
      answers.add(mine);
      const std::lock_guard lock(mutex);
      after = sums.state();
      so_far = mine;
    });
    CHECK(outcome(errors) == "all well");
    CHECK(answers.only().find("differ") == std::string::npos);
    state = after;
    trained = so_far;
    step += 2;
  }
  CHECK(std::to_string(trained.hash) + " " + trained.kinds == expected);
}

// The first world is lost between the reduction and the commit of step 4; its gradients differ from
// what step 3 left.
TEST_CASE("Gradient sums: a step that was not committed leaves no trace", "[elastic]") {
  std::string expected, got;
  Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    GradientSums sums(kSizes);
    sums.use(group);
    expected = std::to_string(train(sums, group, 0, 8).hash);
  });
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    GradientSums sums(kSizes);
    sums.use(group);
    Trained trained = train(sums, group, 0, 3);
    const auto before = sums.state();
    Tensors out = empty_ones();
    attempt(sums, group, 3, out, 1e6f);
    sums.use(group);  // As with a new group, after `over`.
    while (attempt(sums, group, 3, out, 1e6f).kind == Kind::over) continue;
    if (sums.state() != before) throw Error(ErrorKind::corrupt, {}, "too early a state");
    sums.use(group);  // After a good sum that was not committed.
    trained = train(sums, group, 3, 8, {trained.hash, ""});
    if (!trained.kinds.starts_with("og")) throw Error(ErrorKind::corrupt, {}, "a trace is left");
    got = std::to_string(trained.hash);
  });
  CHECK(outcome(errors) == "all well");
  CHECK(got == expected);
}

TEST_CASE("Gradient sums: what is not finite is found on every rank, and spoils its tensor alone",
          "[elastic]") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const bool exact : {true, false}) {
    for (const float bad : {infinity, -infinity, std::nanf("")}) {
      std::mutex mutex;
      std::string complaint;
      const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
        GradientSums sums({4, 2, 8}, {.exact = exact});
        sums.use(group);
        Tensors out{{1, 1, 1, 1}, {2, 2}, std::vector<float>(8, 3)};
        Result result{.kind = Kind::over};
        while (result.kind == Kind::over) {
          Tensors in{{1, 1, 1, 1}, {2, 2}, std::vector<float>(8, 3)};
          if (group.rank() == 1) in[1][1] = bad;
          sums.begin();
          sums.add(views(in));
          result = sums.reduce(group, writable(out));
        }
        const std::lock_guard lock(mutex);
        if (result.kind != Kind::not_finite || result.tensor != 1) complaint += "unnoticed ";
        if (std::isfinite(out[1][1])) complaint += "finite ";
        if (out[0][3] != 3 || out[2][7] != 9) complaint += "others ";
      });
      CHECK(outcome(errors) == "all well");
      CHECK(complaint == "");
    }
  }
}

TEST_CASE("Gradient sums: denormals, zeros and tensors without gradients are summed too",
          "[elastic]") {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    GradientSums sums({3, 2});
    sums.use(group);
    Tensors out{{7, 7, 7}, {7, 7}};
    for (bool over = true; over;) {
      sums.begin();
      if (group.rank() == 0) {  // The other rank has no shard at all.
        for (int shard = 0; shard < 3; ++shard) sums.add(views({{tiny, -0.0f, -2 * tiny}, {}}));
      }
      over = sums.reduce(group, writable(out)).kind == Kind::over;
    }
    if (out != Tensors{{3 * tiny, 0, -6 * tiny}, {0, 0}}) {
      throw Error(ErrorKind::corrupt, {}, "wrong sums");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Gradient sums: each rank gets the sum of all notes and the number of shards",
          "[elastic]") {
  for (const bool exact : {true, false}) {
    for (const std::int64_t note :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{-5}, std::int64_t{1} << 60}) {
      const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
        GradientSums sums({5}, {.exact = exact});
        sums.use(group);
        sums.begin();
        Tensors one{std::vector<float>(5, 1)};
        for (int shard = 0; shard <= group.rank(); ++shard) sums.add(views(one));
        const std::vector<std::int64_t> notes = {note, group.rank() == 2 ? note - 1 : 0, -7};
        const Result result =
            sums.reduce(group, writable(one),
                        {.note = group.rank() == 1 ? note : std::int64_t{2}, .notes = notes});
        if (result.note != note + 4) throw Error(ErrorKind::corrupt, {}, "wrong note");
        std::vector<std::int64_t> wanted = {3 * note, note - 1, -21};
        wanted.resize(GradientSums::notes_most(3));
        if (result.notes != wanted) throw Error(ErrorKind::corrupt, {}, "wrong notes");
        if (result.shards != 6) throw Error(ErrorKind::corrupt, {}, "wrong number of shards");
      });
      CHECK(outcome(errors) == "all well");
    }
  }
}

TEST_CASE("Gradient sums: ranks that start from different states find out", "[elastic]") {
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    GradientSums sums({5});
    sums.use(group);
    Tensors one{std::vector<float>(5, 1)};
    for (int i = 0; i < 2; ++i) {
      sums.begin();
      sums.add(views(one));
      if (sums.reduce(group, writable(one)).kind == Kind::good) sums.commit();
    }
    if (group.rank() == 2) sums.restore(GradientSums({5}).state());
    sums.begin();
    sums.reduce(group, writable(one));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
  }
}

TEST_CASE("Gradient sums: ranks whose shards would not have the same bits find out", "[elastic]") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    GradientSums sums({5}, {.equal = group.rank() == 0 ? 7U : 8U});
    sums.use(group);
    sums.begin();
    Tensors one{std::vector<float>(5, 1)};
    sums.add(views(one));
    sums.reduce(group, writable(one));
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
  }
}

std::string refusal(const std::function<void(GradientSums& sums, ProcessGroup& group)>& body) {
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    GradientSums sums({5, 2});
    body(sums, group);
  });
  return outcome(errors);
}

TEST_CASE("Gradient sums: calls out of order and wrong sizes are refused by name", "[elastic]") {
  using Catch::Matchers::Contains;
  Tensors good{std::vector<float>(5, 1), {1, 1}}, small{{1}, {1, 1}};
  CHECK_THAT(refusal([](auto& sums, auto&) { sums.begin(); }), Contains("begin() before use()"));
  CHECK_THAT(refusal([&](auto& sums, auto& group) {
               sums.use(group);
               sums.add(views(good));
             }),
             Contains("add() outside of a step"));
  CHECK_THAT(refusal([&](auto& sums, auto& group) {
               sums.use(group);
               sums.begin();
               sums.add(views(small));
             }),
             Contains("another size than its tensor"));
  CHECK_THAT(refusal([&](auto& sums, auto& group) {
               sums.use(group);
               sums.commit();
             }),
             Contains("commit() without a reduce()"));
  CHECK_THAT(refusal([&](auto& sums, auto& group) {
               sums.use(group);
               sums.begin();
               sums.reduce(group, writable(good), {.divide_by = 0});
             }),
             Contains("divide_by"));
  CHECK_THAT(refusal([&](auto& sums, auto&) { sums.restore("states"); }),
             Contains("other tensors"));
  CHECK_THAT(refusal([&](auto& sums, auto&) { sums.restore("cccc"); }),
             Contains("not a state of sums"));
  CHECK_THAT(refusal([&](auto& sums, auto& group) {
               sums.use(group);
               sums.begin();
               for (int shard = 0; shard < 2049; ++shard) sums.add(views(good));
               sums.reduce(group, writable(good));
             }),
             Contains("2049 shards"));
  CHECK_THAT(refusal([](auto&, auto&) { GradientSums({1}, {.bucket_bytes = 100}); }),
             Contains("bucket_bytes"));
}

TEST_CASE("Sum layout: pieces cover each tensor once, and no bucket twice", "[elastic]") {
  for (const std::size_t head : {std::size_t{0}, std::size_t{5}, std::size_t{100}}) {
    for (const std::size_t bucket : {std::size_t{16}, std::size_t{50}, std::size_t{100000}}) {
      const auto layout = worker_sdk::lay_out_sums(kSizes, head, bucket);
      std::vector<std::size_t> covered(kSizes.size());
      std::size_t last = 0, end = head;
      for (const auto& piece : layout.pieces) {
        CHECK(piece.from == covered[piece.tensor]);
        covered[piece.tensor] += piece.count;
        if (piece.bucket != last) end = 0;
        CHECK(piece.bucket - last <= 1);
        last = piece.bucket;
        CHECK(piece.at >= end);
        CHECK(piece.at % worker_sdk::kSumAlignment == 0);
        end = piece.at + piece.count;
        CHECK(end <= layout.buckets[last]);
        if (last > 0) CHECK(layout.buckets[last] <= bucket);
      }
      CHECK(covered == kSizes);
      CHECK(last == layout.buckets.size() - 1);
    }
  }
}

}  // namespace
}  // namespace ddprun::test
