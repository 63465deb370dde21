// See segment_attention.h.
#include "model/layers/segment_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <iterator>

#include "model/device/kernel_table.h"
#include "model/layers/cuda_attention.h"

namespace mortise {
namespace {

// [L, H, D] as [H, L, D], with each head repeated for its group.
at::Tensor by_head(const at::Tensor& rows_LHD, int64_t repeat) {
  return rows_LHD.transpose(0, 1).repeat_interleave(repeat, 0);
}

at::Tensor one_sequence(const at::Tensor& q_LHD, const at::Tensor& k_LHD, const at::Tensor& v_LHD,
                        const AttentionShape& shape) {
  const int64_t group = shape.num_heads / shape.num_kv_heads, before = k_LHD.size(0) - q_LHD.size(0);
  const at::Tensor k = by_head(k_LHD, group), v = by_head(v_LHD, group);
  const at::Tensor places = at::arange(k_LHD.size(0), at::TensorOptions(q_LHD.device()).dtype(at::kLong));
  const at::Tensor own_places = places.narrow(0, before, q_LHD.size(0)).unsqueeze(1);
  const at::Tensor p =
      attention_probabilities(at::matmul(by_head(q_LHD, 1), k.transpose(1, 2)), own_places, places, shape);
  return at::matmul(p, v).transpose(0, 1);
}

at::Tensor each_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SegmentLengths& lengths,
                         const AttentionShape& shape) {
  const std::vector<at::Tensor> queries = q.split_with_sizes(lengths.queries);
  const std::vector<at::Tensor> keys = k.split_with_sizes(lengths.keys), values = v.split_with_sizes(lengths.keys);
  std::vector<at::Tensor> out;
  for (size_t s = 0; s < queries.size(); ++s) out.push_back(one_sequence(queries[s], keys[s], values[s], shape));
  return at::cat(out, 0);
}

at::Tensor begins_of(const std::vector<int64_t>& lengths, at::Device device) {
  const at::Tensor begins = at::empty({std::ssize(lengths) + 1}, at::kInt);
  auto* const data = begins.mutable_data_ptr<int32_t>();
  data[0] = 0;
  for (size_t i = 0; i < lengths.size(); ++i) data[i + 1] = data[i] + static_cast<int32_t>(lengths[i]);
  return sent_to(device, begins);
}

}  // namespace

void send_begins(SegmentLengths& lengths, at::Device device) {
  lengths.query_begins = begins_of(lengths.queries, device);
  lengths.key_begins = lengths.keys == lengths.queries ? lengths.query_begins : begins_of(lengths.keys, device);
}

SegmentLengths segment_lengths(std::span<const PackedSegment> segments, at::Device device) {
  SegmentLengths out;
  for (const PackedSegment& segment : segments) {
    const int64_t prefix = segment.prefix_segment;
    out.queries.push_back(segment.length);
    out.keys.push_back(segment.length + (prefix >= 0 ? segments[static_cast<size_t>(prefix)].length : 0));
  }
  send_begins(out, device);
  return out;
}

KeyCopies key_copies(std::span<const PackedSegment> segments, at::Device device) {
  std::vector<int32_t> sources;
  int64_t num_tokens = 0;
  for (const PackedSegment& segment : segments) {
    const auto append = [&](const PackedSegment& tokens) {
      for (int64_t t = 0; t < tokens.length; ++t) sources.push_back(static_cast<int32_t>(tokens.begin + t));
    };
    if (segment.prefix_segment >= 0) append(segments[static_cast<size_t>(segment.prefix_segment)]);
    append(segment);
    num_tokens += segment.length;
  }
  const int64_t count = std::ssize(sources);
  if (count == num_tokens) return {};
  const at::Tensor all = at::empty({2 * count + num_tokens + 1}, at::kInt);
  int32_t* const begins = all.mutable_data_ptr<int32_t>();
  std::fill_n(begins, num_tokens + 1, 0);
  for (const int32_t token : sources) ++begins[token + 1];
  for (int64_t n = 0; n < num_tokens; ++n) begins[n + 1] += begins[n];
  std::vector<int32_t> next(begins, begins + num_tokens);
  int32_t* const out = begins + num_tokens + 1;
  std::ranges::copy(sources, out);
  for (int64_t place = 0; place < count; ++place)  // a prompt comes before the sequences that read it
    out[count + next[static_cast<size_t>(out[place])]++] = static_cast<int32_t>(place);
  const at::Tensor there = sent_to(device, all);
  return {there.narrow(0, num_tokens + 1, count), there.narrow(0, 0, num_tokens + 1),
          there.narrow(0, num_tokens + 1 + count, count)};
}

at::Tensor segment_attention(const at::Tensor& q_NHD, const at::Tensor& k_MHD, const at::Tensor& v_MHD,
                             const SegmentLengths& lengths, const AttentionShape& given) {
  const at::ScalarType dtype = q_NHD.scalar_type(), exact = dtype == at::kBFloat16 ? at::kFloat : dtype;
  AttentionShape shape = given;
  if (!lengths.keys.empty() && shape.window >= *std::ranges::max_element(lengths.keys)) shape.window = 0;
  if (has_cuda_attention(q_NHD, shape)) {
    if (!shape.rounds) return cuda_attention(q_NHD, k_MHD, v_MHD, lengths, shape);
    const auto rounded = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
    return cuda_attention(rounded(q_NHD), rounded(k_MHD), rounded(v_MHD), lengths, shape).to(dtype);
  }
  if (!shape.rounds) return each_sequence(q_NHD, k_MHD, v_MHD, lengths, shape);
  const auto rounded = [exact](const at::Tensor& x) { return x.to(at::kBFloat16).to(exact); };
  return each_sequence(rounded(q_NHD), rounded(k_MHD), rounded(v_MHD), lengths, shape).to(at::kBFloat16).to(dtype);
}

}  // namespace mortise
