// What attention on a GPU passes to libtorch's fused operators. The CPU has none of them, so these tests give it some, which
// read sequences, masks and windows as libtorch documents them, and compare with the plain path in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "model/layers/cuda_attention.h"
#include "unit/model/torch_helpers.h"

namespace mortise {
namespace {

// A sequence's part of a call: its tensors as [H, L, D], with a head of keys and values for each of queries.
struct Sequence {
  at::Tensor q, k, v, p;
};

// The keys that query i of a sequence sees: those up to its own, the last one for the last query, and not those more than
// `before` in front of it.
struct Call {
  const at::Tensor &query_begins, &key_begins;
  std::optional<int64_t> before;
  double scale;

  [[nodiscard]] int64_t count() const { return query_begins.numel() - 1; }
  static at::Tensor rows(const at::Tensor& x, const at::Tensor& begins, int64_t s) {
    const int64_t begin = begins[s].item<int64_t>();
    return x.narrow(0, begin, begins[s + 1].item<int64_t>() - begin);
  }
  [[nodiscard]] Sequence sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t s) const {
    const int64_t group = q.size(1) / k.size(1);
    const auto part = [&](const at::Tensor& x, const at::Tensor& begins, int64_t repeat) {
      return rows(x, begins, s).to(at::kDouble).transpose(0, 1).repeat_interleave(repeat, 0);
    };
    Sequence out{part(q, query_begins, 1), part(k, key_begins, group), part(v, key_begins, group), {}};
    const int64_t queries = out.q.size(1), keys = out.k.size(1);
    const at::Tensor own = at::arange(keys - queries, keys).unsqueeze(1), key = at::arange(keys);
    at::Tensor hidden = key > own;
    if (before) hidden = hidden.logical_or(key < own - *before);
    out.p = at::softmax((at::matmul(out.q, out.k.transpose(1, 2)) * scale).masked_fill(hidden, -INFINITY), -1);
    return out;
  }
  [[nodiscard]] at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    at::Tensor out = at::zeros_like(q);
    for (int64_t s = 0; s < count(); ++s) {
      const Sequence own = sequence(q, k, v, s);
      rows(out, query_begins, s).copy_(at::matmul(own.p, own.v).transpose(0, 1));
    }
    return out;
  }
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& d_out, const at::Tensor& q,
                                                                        const at::Tensor& k,
                                                                        const at::Tensor& v) const {
    at::Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    const auto grouped = [&](const at::Tensor& x) {  // the sum over the query heads of a group, as rows
      return x.unflatten(0, {k.size(1), -1}).sum(1).transpose(0, 1);
    };
    for (int64_t s = 0; s < count(); ++s) {
      const Sequence own = sequence(q, k, v, s);
      const at::Tensor d = rows(d_out, query_begins, s).to(at::kDouble).transpose(0, 1);
      const at::Tensor dp = at::matmul(d, own.v.transpose(1, 2));
      const at::Tensor ds = own.p * (dp - (dp * own.p).sum(-1, /*keepdim=*/true)) * scale;
      rows(dq, query_begins, s).copy_(at::matmul(ds, own.k).transpose(0, 1));
      rows(dk, key_begins, s).copy_(grouped(at::matmul(ds.transpose(1, 2), own.q)));
      rows(dv, key_begins, s).copy_(grouped(at::matmul(own.p.transpose(1, 2), d)));
    }
    return {dq, dk, dv};
  }
};

using MaybeTensor = std::optional<at::Tensor>;
using MaybeInt = std::optional<int64_t>;
constexpr int64_t kFromBottomRight = 2;

Call flash_call(const at::Tensor& query_begins, const at::Tensor& key_begins, bool is_causal,
                std::optional<double> scale, MaybeInt left, MaybeInt right) {
  EXPECT_TRUE(is_causal);
  EXPECT_EQ(right.value_or(0), 0) << "a query sees no key behind its own";
  return {query_begins, key_begins, left, scale.value()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& query_begins,
    const MaybeTensor& key_begins, int64_t /*most_queries*/, int64_t /*most_keys*/, double /*dropout*/, bool is_causal,
    bool /*debug*/, std::optional<double> scale, MaybeInt left, MaybeInt right, const MaybeTensor& /*used*/,
    const MaybeTensor& /*slopes*/) {
  const at::Tensor out = flash_call(*query_begins, *key_begins, is_causal, scale, left, right).forward(q, k, v);
  const at::Tensor none = at::zeros_like(*query_begins);
  return {out, none, none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& /*out*/,
    const at::Tensor& /*lse*/, const at::Tensor& query_begins, const at::Tensor& key_begins, int64_t /*most_queries*/,
    int64_t /*most_keys*/, double /*dropout*/, bool is_causal, const at::Tensor& /*state*/,
    const at::Tensor& /*unused*/, std::optional<double> scale, MaybeInt left, MaybeInt right) {
  return flash_call(query_begins, key_begins, is_causal, scale, left, right).backward(d_out, q, k, v);
}

// A window of this operator counts the query's own key.
Call efficient_call(const at::Tensor& query_begins, const at::Tensor& key_begins, int64_t mask,
                    std::optional<double> scale, MaybeInt window) {
  EXPECT_EQ(mask, kFromBottomRight);
  return {query_begins, key_begins, window ? MaybeInt(*window - 1) : std::nullopt, scale.value()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& /*bias*/,
    const MaybeTensor& query_begins, const MaybeTensor& key_begins, MaybeInt most_queries, MaybeInt most_keys,
    double /*dropout*/, int64_t mask, bool keeps_lse, std::optional<double> scale, const MaybeTensor& /*used*/,
    MaybeInt window) {
  EXPECT_TRUE(keeps_lse);
  const Call call = efficient_call(*query_begins, *key_begins, mask, scale, window);
  const at::Tensor out = call.forward(q.squeeze(0), k.squeeze(0), v.squeeze(0)).unsqueeze(0);
  const at::Tensor none = at::zeros_like(*query_begins);
  return {out, none, none, none, c10::SymInt(most_queries.value()), c10::SymInt(most_keys.value())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_backward(
    const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& /*bias*/,
    const at::Tensor& /*out*/, const MaybeTensor& query_begins, const MaybeTensor& key_begins, int64_t /*most_queries*/,
    int64_t /*most_keys*/, const at::Tensor& /*lse*/, double /*dropout*/, const at::Tensor& /*seed*/,
    const at::Tensor& /*offset*/, int64_t mask, bool /*bias_requires_grad*/, std::optional<double> scale,
    MaybeInt num_splits, MaybeInt window, bool /*shares_memory*/) {
  EXPECT_EQ(num_splits, 1) << "its sums have one order";
  const Call call = efficient_call(*query_begins, *key_begins, mask, scale, window);
  const auto [dq, dk, dv] = call.backward(d_out.squeeze(0), q.squeeze(0), k.squeeze(0), v.squeeze(0));
  return {dq.unsqueeze(0), dk.unsqueeze(0), dv.unsqueeze(0), at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CPU, cpu) {
  cpu.impl("_flash_attention_forward", flash_forward);
  cpu.impl("_flash_attention_backward", flash_backward);
  cpu.impl("_efficient_attention_forward", efficient_forward);
  cpu.impl("_efficient_attention_backward", efficient_backward);
}

// The result and the gradients of q, k and v. Sequences with and without a prompt before them, and of one query.
template <class Attend>
std::vector<at::Tensor> attend(at::ScalarType dtype, const AttentionShape& shape, const Attend& attend_by) {
  const SegmentLengths lengths{{11, 1, 7, 3}, {11, 14, 27, 3}};
  const auto input = [&](int64_t rows, int64_t heads, uint64_t seed) {
    return random_tensor({rows, heads, 8}, seed).to(dtype).requires_grad_(true);
  };
  const at::Tensor q = input(22, 4, 1), k = input(55, 2, 2), v = input(55, 2, 3);
  const at::Tensor out = attend_by(q, k, v, lengths, shape);
  (out * random_tensor({22, 4, 8}, 4).to(dtype)).sum().backward();
  std::vector<at::Tensor> all{out.detach(), q.grad(), k.grad(), v.grad()};
  for (at::Tensor& one : all) one = one.to(at::kDouble);
  return all;
}

TEST(FusedAttention, GetsSequencesMasksAndWindowsAsItsOperatorsDocumentThem) {
  for (const int64_t window : {0, 1, 5, 20}) {
    AttentionShape shape{4, 2, 8, 0.3};
    shape.window = window;
    const std::vector<at::Tensor> want = attend(at::kDouble, shape, segment_attention);
    const std::vector<at::Tensor> exact = attend(at::kDouble, shape, cuda_attention);      // by _efficient_attention_*
    const std::vector<at::Tensor> rounded = attend(at::kBFloat16, shape, cuda_attention);  // by _flash_attention_*
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LT(relative_l2(exact[i], want[i]), 1e-12) << window << " " << i;
      EXPECT_LT(relative_l2(rounded[i], want[i]), 0.02) << window << " " << i;
    }
  }
}

// A pass sends where its sequences begin once, for all layers.
TEST(FusedAttention, ReadsTheBeginsThatThePassHasSent) {
  const std::vector<PackedSegment> segments = {{0, 5, -1, 0, 2}, {5, 3, 0, 5, 1}, {8, 4, 0, 5, 1}, {12, 2, -1, 0, 1}};
  const SegmentLengths lengths = segment_lengths(segments, at::kCPU);
  EXPECT_EQ(lengths.queries, (std::vector<int64_t>{5, 3, 4, 2}));
  EXPECT_EQ(lengths.keys, (std::vector<int64_t>{5, 8, 9, 2}));
  const auto numbers = [](const at::Tensor& x) {
    return std::vector<int32_t>(x.const_data_ptr<int32_t>(), x.const_data_ptr<int32_t>() + x.numel());
  };
  EXPECT_EQ(numbers(lengths.query_begins), (std::vector<int32_t>{0, 5, 8, 12, 14}));
  EXPECT_EQ(numbers(lengths.key_begins), (std::vector<int32_t>{0, 5, 13, 22, 24}));
  const at::Tensor q = random_tensor({14, 4, 8}, 1), k = random_tensor({24, 2, 8}, 2), v = random_tensor({24, 2, 8}, 3);
  const AttentionShape shape{4, 2, 8, 0.3};
  const at::Tensor out = cuda_attention(q, k, v, lengths, shape);
  EXPECT_LT(relative_l2(out, segment_attention(q, k, v, lengths, shape)), 1e-12);
  SegmentLengths other = lengths;
  other.key_begins = lengths.key_begins.clone();
  other.key_begins[1] = 4;
  EXPECT_FALSE(cuda_attention(q, k, v, other, shape).equal(out)) << "these were sent";
}

}  // namespace
}  // namespace mortise
