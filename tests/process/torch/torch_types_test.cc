// Tensors of every type as buffers, in reductions, and as lists. Ranks are threads.

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "tests/process/torch/tensors.h"
#include "tests/support/ranks.h"

namespace {

namespace dt = ddprun::torch;
using ddprun::ProcessGroup;
using ddprun::ReduceOp;
using ddprun::test::kTypes;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using ddprun::test::require;
using ddprun::test::require_equal;

// What rank 0 and rank 1 reduce to, by libtorch.
at::Tensor reduced(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType type = a.scalar_type();
  switch (op) {
    case ReduceOp::sum: return type == at::kBool ? a.logical_or(b) : a + b;
    case ReduceOp::prod: return type == at::kBool ? a.logical_and(b) : a * b;
    case ReduceOp::avg: return (a + b) / 2;
    case ReduceOp::min: return at::minimum(a, b);
    case ReduceOp::max: return at::maximum(a, b);
    case ReduceOp::band: return a.bitwise_and(b);
    case ReduceOp::bor: return a.bitwise_or(b);
    case ReduceOp::bxor: return a.bitwise_xor(b);
    case ReduceOp::premul_sum: return (a + b) * 0.5;
  }
  return {};
}

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg,  ReduceOp::min,
                             ReduceOp::max, ReduceOp::prod, ReduceOp::band,
                             ReduceOp::bor, ReduceOp::bxor, ReduceOp::premul_sum};

}  // namespace

TEST_CASE("Torch types: every reduction that the library has of a type") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    int done = 0;
    for (const at::ScalarType type : kTypes) {
      const auto of = [&](int rank) { return at::tensor({1, 2 + rank, 3 * rank}).to(type); };
      for (const ReduceOp op : kOps) {
        if (!ddprun::is_defined(dt::data_type_of(type), op)) continue;
        const std::string name = std::string(" of ") + c10::toString(type) + ", " + name_of(op);
        const at::Tensor all = reduced(op, of(0), of(1));
        const ddprun::CallOptions half{.factor = 0.5};
        at::Tensor t = of(group.rank());
        dt::all_reduce(group, t, op, half);
        require_equal(t, all, "all_reduce" + name);
        t = dt::reduce(group, of(group.rank()), 1, op, half);
        require(t.defined() == (group.rank() == 1), "reduce on another rank");
        if (t.defined()) require_equal(t, all, "reduce" + name);
        ++done;
      }
    }
    require(done == 4 * 6 + 2 * 4 + 6 * 7, std::to_string(done) + " reductions");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Torch types: a tensor of each type is a buffer, whose memory is the tensor's") {
  std::vector<at::ScalarType> types = kTypes;
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  for (const auto type : {at::kUInt16, at::kUInt32, at::kUInt64}) types.push_back(type);
#endif
  const std::string names[] = {"bool", "i8",  "i16", "u8",   "i32", "i64", "f16", "bf16",
                               "f32",  "f64", "c64", "c128", "u16", "u32", "u64"};
  for (std::size_t i = 0; i < types.size(); ++i) {
    const at::Tensor tensor = at::zeros({3}, types[i]);
    const ddprun::Buffer buffer = dt::buffer(tensor);
    CHECK(name_of(buffer.type) == names[i]);
    CHECK(buffer.data == tensor.data_ptr());
    CHECK(buffer.bytes() == tensor.nbytes());
  }
}

TEST_CASE("Torch types: what NCCL lacks is reduced in a type that it has, and comes back") {
  const auto on_nccl = [](const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
    const auto x = dt::detail::as_nccl_has_it(a, op), y = dt::detail::as_nccl_has_it(b, op);
    const auto type = dt::data_type_of(x.numbers.scalar_type());
    if (x.op != y.op || type == ddprun::DataType::boolean || type == ddprun::DataType::i16 ||
        type == ddprun::DataType::c64 || type == ddprun::DataType::c128) {
      return at::Tensor();
    }
    return dt::detail::in_type(reduced(x.op, x.numbers, y.numbers), a.scalar_type());
  };
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
    INFO(name_of(op));
    const at::Tensor yes = at::tensor({1, 1, 0}).to(at::kBool),
                     no = at::tensor({0, 1, 0}).to(at::kBool);
    CHECK(at::equal(on_nccl(yes, no, op), reduced(op, yes, no)));
    const at::Tensor big = at::tensor({300, -300, 9}).to(at::kShort);
    CHECK(at::equal(on_nccl(big, big.flip(0), op), reduced(op, big, big.flip(0))));
  }
  const at::Tensor z = at::complex(at::ones({3}), at::arange(3, at::kFloat));
  CHECK(at::equal(on_nccl(z, 3 * z, ReduceOp::sum), 4 * z));
  CHECK(at::equal(on_nccl(z, 3 * z, ReduceOp::avg), 2 * z));
  CHECK_FALSE(on_nccl(z, z, ReduceOp::prod).defined());  // The group refuses it.
}

TEST_CASE("Torch types: a tensor for each rank, of unequal shapes") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    const int rank = group.rank(), other = 1 - rank;
    const auto of = [](int r) { return at::arange(4 + 2 * r, at::kShort).view({2 + r, 2}).t(); };
    const std::vector<at::Tensor> all = {at::empty_like(of(0)), at::empty_like(of(1))};
    dt::all_gather(group, of(rank), all);
    require_equal(all[0], of(0), "all_gather of rank 0's");
    require_equal(all[1], of(1), "all_gather of rank 1's");

    const at::Tensor mine = at::zeros({1 + rank}, at::kComplexFloat);
    dt::reduce_scatter(group, {at::full({1}, 2, mine.options()), at::full({2}, 3, mine.options())},
                       mine, ReduceOp::prod);
    require_equal(mine, at::full_like(mine, rank == 0 ? 4 : 9), "reduce_scatter");

    std::vector<at::Tensor> sent, got;
    for (int r = 0; r < 2; ++r) {
      sent.push_back(at::full({1 + rank, 1 + r}, 10 * rank + r).t());
      got.push_back(at::zeros({1 + rank, 1 + r}, at::kLong));
    }
    dt::all_to_all(group, sent, got);
    require_equal(got[static_cast<std::size_t>(other)],
                  at::full({1 + rank, 1 + other}, 10 * other + rank), "all_to_all");

    const std::vector<at::Tensor> none;
    const std::vector<at::Tensor> both = {at::zeros({2, 3}).t(), at::zeros({3, 2})};
    dt::gather(group, at::full({3, 2}, 1.0F + rank), rank == 1 ? both : none, 1);
    if (rank == 1) {
      require_equal(both[0], at::full({3, 2}, 1.0), "gather of rank 0's");
      require_equal(both[1], at::full({3, 2}, 2.0), "gather of rank 1's");
    }
    const at::Tensor part = at::zeros({2, 3}).t();
    dt::scatter(group, rank == 1 ? both : none, part, 1);
    require_equal(part, at::full({3, 2}, 1.0 + rank), "scatter");
  });
  CHECK(outcome(errors) == "all well");
}
