// Collectives of libtorch's tensors: strides, types, and what is refused. Ranks are threads.

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
using ddprun::ErrorKind;
using ddprun::ProcessGroup;
using ddprun::ReduceOp;
using ddprun::test::kTypes;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using ddprun::test::require;
using ddprun::test::require_equal;
using ddprun::test::require_refused;

at::Tensor counted(int rank) {
  return at::arange(24, at::kFloat).view({2, 3, 2, 2}) + 100.0 * rank;
}

// The same values in other strides.
std::vector<at::Tensor> layouts(const at::Tensor& values) {
  at::Tensor wide = at::full({2, 3, 2, 5}, -1, values.options());
  at::Tensor part = wide.slice(3, 1, 5, 2);
  part.copy_(values);
  return {values.clone(), part, values.clone().contiguous(at::MemoryFormat::ChannelsLast),
          values.transpose(0, 2).contiguous().transpose(0, 2)};
}

}  // namespace

TEST_CASE("Torch collectives: tensors of any strides, which may differ between the ranks") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    const int rank = group.rank();
    for (std::size_t i = 0; i < 4; ++i) {
      const std::string name = "layout " + std::to_string(i);
      const auto of = [&](int r) {
        return layouts(counted(r))[(i + static_cast<std::size_t>(r)) % 4];
      };
      at::Tensor t = of(rank);
      dt::all_reduce(group, t);
      require_equal(t, counted(0) + counted(1), name + ", all_reduce");
      t = of(rank);
      dt::broadcast(group, t, 1);
      require_equal(t, counted(1), name + ", broadcast");
      require_equal(dt::all_gather(group, of(rank)), at::stack({counted(0), counted(1)}),
                    name + ", all_gather");
      require_equal(dt::reduce_scatter(group, of(rank), ReduceOp::max),
                    counted(1).slice(0, rank, rank + 1), name + ", reduce_scatter");
      require_equal(
          dt::all_to_all(group, of(rank)),
          at::cat({counted(0).slice(0, rank, rank + 1), counted(1).slice(0, rank, rank + 1)}),
          name + ", all_to_all");
    }
    const at::Tensor wide = at::zeros({2, 4});
    dt::all_reduce(group, wide.slice(1, 0, 4, 2).fill_(rank));
    require_equal(wide, at::tensor({1, 0, 1, 0}).expand({2, 4}).to(at::kFloat),
                  "what lies between the elements");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Torch collectives: roots and pairs of ranks") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    const int rank = group.rank();
    const at::Tensor all = dt::gather(group, counted(rank).transpose(0, 1), 1);
    require(all.defined() == (rank == 1), "gather on another rank");
    if (rank == 1) {
      require_equal(all[0], counted(0).transpose(0, 1), "gather");
    }
    const at::Tensor columns = at::zeros({3, 2}).t();
    dt::scatter(group, rank == 0 ? at::arange(12, at::kFloat).view({2, 2, 3}) : at::Tensor(),
                columns, 0);
    require_equal(columns, at::arange(12, at::kFloat).view({2, 2, 3})[rank], "scatter");
    const at::Tensor got = at::zeros({3, 4}, at::kBool).t();
    if (rank == 0) {
      dt::send(group, at::ones({3, 4}, at::kBool).t(), 1);
    } else {
      dt::recv(group, got, 0);
      require_equal(got, at::ones({4, 3}, at::kBool), "recv");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Torch collectives: tensors of every type") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    for (const at::ScalarType type : kTypes) {
      const std::string name = c10::toString(type);
      const auto of = [&](int rank) { return at::tensor({0, 1, rank}).to(type); };
      at::Tensor t = of(group.rank());
      dt::all_reduce(group, t);
      require_equal(t, of(0) + of(1), "all_reduce of " + name);
      require_equal(dt::reduce_scatter(group, at::tensor({3, 4 * group.rank()}).to(type)),
                    at::tensor({group.rank() == 0 ? 6 : 4}).to(type), "reduce_scatter of " + name);
      t = of(group.rank());
      dt::broadcast(group, t, 1);
      require_equal(t, of(1), "broadcast of " + name);
      require_equal(dt::all_gather(group, of(group.rank())), at::stack({of(0), of(1)}),
                    "all_gather of " + name);
    }
    at::Tensor all_true = at::tensor({1, group.rank()}).to(at::kBool);
    dt::all_reduce(group, all_true, ReduceOp::min);
    require_equal(all_true, at::tensor({1, 0}).to(at::kBool), "and");
    at::Tensor small = at::full({2}, 100, at::kChar);
    dt::all_reduce(group, small);
    require_equal(small, at::full({2}, -56, at::kChar), "a sum that wraps");
    at::Tensor weight = at::ones({3}).requires_grad_();
    dt::all_reduce(group, weight);
    require_equal(weight.detach(), at::full({3}, 2.0), "a leaf that requires gradients");
    const at::Tensor number = at::complex(at::ones({2}), at::full({2}, 1.0 + group.rank()));
    require_equal(dt::all_gather(group, at::conj(number))[1],
                  at::complex(at::ones({2}), at::full({2}, -2.0)), "a conjugate");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Torch collectives: what cannot be communicated is refused with its type") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    require_refused(
        ErrorKind::unsupported, "tensors of type ComplexFloat cannot be reduced by max",
        [&] { dt::all_reduce(group, at::ones({2}, at::kComplexFloat), ReduceOp::max); });
    require_refused(ErrorKind::unsupported, "tensors of type Short cannot be reduced by avg",
                    [&] { dt::all_reduce(group, at::ones({2}, at::kShort), ReduceOp::avg); });
    require_refused(ErrorKind::unsupported, "tensors of type Float that are sparse",
                    [&] { dt::all_gather(group, at::eye(2).to_sparse()); });
    require_refused(ErrorKind::unsupported, "tensors of type ComplexHalf cannot be communicated",
                    [&] { (void)dt::buffer(at::empty({2}, at::kComplexHalf)); });
    require_refused(ErrorKind::unsupported, "tensors of type Float cannot be reduced by bxor",
                    [&] { (void)dt::reduce(group, at::ones({2}), 0, ReduceOp::bxor); });
    require_refused(ErrorKind::bad_argument, "there are 1 tensors for 2 ranks",
                    [&] { dt::all_gather(group, at::ones({2}), {at::ones({2})}); });
    require_refused(ErrorKind::bad_argument, "share memory", [&] {
      dt::all_reduce(group, at::ones({2, 1}).expand({2, 3}));
    });
    require_refused(ErrorKind::bad_argument, "the first dimension (3) is not a multiple", [&] {
      (void)dt::reduce_scatter(group, at::ones({3, 2}));
    });
    require_refused(ErrorKind::bad_argument, "the first dimension (0) is not a multiple",
                    [&] { (void)dt::all_to_all(group, at::ones({})); });
    require_refused(ErrorKind::bad_argument, "the tensor is undefined",
                    [&] { dt::broadcast(group, at::Tensor(), 0); });
    group.barrier();  // None of them has communicated.
  });
  CHECK(outcome(errors) == "all well");
}
