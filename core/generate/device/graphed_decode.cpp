// See graphed_decode.h.
#include "generate/device/graphed_decode.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "model/layers/kernel_experts.h"

namespace mortise {
namespace {

constexpr int64_t kFewRows = 16;      // up to here classes are powers of two
constexpr int64_t kRowsOfClass = 16;  // above they are multiples

int64_t class_of_rows(int64_t rows) {
  if (rows <= kFewRows) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  return (rows + kRowsOfClass - 1) / kRowsOfClass * kRowsOfClass;
}

// Splits of attention for samples of up to `longest` tokens.
int64_t class_of_splits(int64_t longest) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest / MORTISE_CUDA_SPLIT_TOKENS + 1)));
}

// Places for the likeliest tokens of rows that want up to so many.
int32_t class_of_top(int32_t most_top) {
  return most_top == 0 ? 0 : static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(most_top)));
}

// [rows, bytes] of a buffer get `host`, and the padding behind gets `pad`.
template <class T>
void write_rows(const at::Tensor& buffer, int64_t rows, const at::Tensor& host, const T& pad) {
  const at::Tensor all = at::empty({rows, static_cast<int64_t>(sizeof(T))}, at::kByte);
  auto* const data = static_cast<T*>(all.mutable_data_ptr());
  if (host.numel() > 0) std::memcpy(data, host.const_data_ptr(), static_cast<size_t>(host.numel()));
  std::fill(data + host.size(0), data + rows, pad);
  buffer.narrow(0, 0, rows).copy_(sent_to(buffer.device(), all));
}

// What a row needs at the same time in a layer. `number`: bytes of what products read.
int64_t layer_bytes_of_row(const ModelConfig& config, int64_t number) {
  const MoeConfig& moe = config.moe;
  const int64_t hidden = config.hidden_size, q = config.q_size();
  // While the last product of a dense layer, or of the expert that all tokens pass, runs: the residual streams before and behind
  // attention, what came out of the product of the heads, gate and up, and the result. And what products read: both norms, the
  // heads, and the product of gate and up.
  const int64_t dense = config.num_expert_layers() < config.num_layers ? config.intermediate_size : 0;
  const int64_t units = std::max(dense, moe.shared_size);
  const int64_t layer = 4 * (4 * hidden + 2 * units) + number * (2 * hidden + q + units);
  if (config.num_expert_layers() == 0) return layer;
  // The same for experts, which come after that one.
  const int64_t results = (moe.shared_size > 0 ? 5 : 4) * hidden;
  return std::max(layer, kernel_mixture_bytes(config, number) + 4 * results + number * (hidden + q));
}

}  // namespace

double decode_graph_bytes(const ModelConfig& config, const DecodePassSize& size) {
  if (config.head_dim > MORTISE_CUDA_MOST_HEAD_DIM || size.rows == 0) return 0;
  int64_t rows = class_of_rows(size.rows);
  while (rows > 0 && !GraphedDecode::serves(config, rows, size.is_rounded))
    rows = rows > kFewRows ? rows - kRowsOfClass : rows / 2;
  if (rows == 0) return 0;
  const int64_t splits = class_of_splits(size.longest);
  const int64_t scratch = config.num_heads * splits * (config.head_dim + 2);
  const int64_t copies = config.final_softcap > 0.0 ? 4 : size.has_edits ? 2 : 1;
  const int64_t logit_rows = std::min(rows, DeviceSampler::rows_of_block(config.vocab_size, size.has_edits));
  const int64_t of_layer = rows * layer_bytes_of_row(config, size.is_rounded ? 2 : 4);
  const int64_t inputs_of_head = size.is_rounded ? logit_rows * config.hidden_size : 0;  // bfloat16
  const int64_t of_head =
      4 * (rows * config.hidden_size + logit_rows * copies * config.vocab_size) + 2 * inputs_of_head;
  return static_cast<double>(rows * 4 * scratch + std::max(of_layer, of_head));
}

bool GraphedDecode::serves(const ModelConfig& config, int64_t num_rows, bool is_rounded) {
  return config.num_expert_layers() == 0 || kernels_take_experts(config, class_of_rows(num_rows), is_rounded);
}

bool GraphedDecode::serves(const Model& model, const DevicePass& pass, const DrawInputs& inputs) {
  if (pass.slots.empty() || !pass.pieces.empty() || inputs.most_top > kMostTop) return false;
  if (!serves(model.config(), pass.num_decoding(), model.has_rounded_matrices())) return false;
  const DecoderWeights& weights = model.weights();
  for (size_t layer = 0; layer < weights.layers.size(); ++layer)
    if (weights.layers[layer].experts.defined() && !kernels_read_experts(weights.matrices(layer))) return false;
  return true;
}

// Where the numbers are that passes read.
std::vector<const void*> GraphedDecode::places_of_weights() const {
  std::vector<const void*> out;
  for (const NamedParameter& parameter : model_.parameters()) out.push_back(parameter.tensor.const_data_ptr());
  for (const LayerMatrices& copies : model_.weights().rounded)
    for (const at::Tensor* const copy : {&copies.qkv_QH, &copies.o_HQ, &copies.gate_up_2IH, &copies.down_HI,
                                         &copies.expert_gate_up_E2IH, &copies.expert_down_EHI})
      if (copy->defined()) out.push_back(copy->const_data_ptr());
  out.push_back(sampler_.place_of_head());
  return out;
}

// Drops the graphs if anything that they point to is elsewhere now.
void GraphedDecode::notice_moved_memory(int64_t num_rows, int64_t num_pages) {
  std::vector<const void*> weights = places_of_weights();
  const int64_t rows = ids_.defined() ? ids_.size(0) : 0, pages = table_.defined() ? table_.size(1) : 0;
  const bool are_small = num_rows > rows || num_pages > pages;
  if (!are_small && layout_ == cache_.layout() && weights_ == weights) return;
  forget();
  layout_ = cache_.layout();
  weights_ = std::move(weights);
  if (!are_small) return;
  const int64_t more_rows = std::max(num_rows, rows), more_pages = std::max(num_pages, pages * 2);
  const auto place = at::TensorOptions().device(model_.device().device);
  ids_ = at::zeros({more_rows}, place.dtype(at::kLong));
  positions_ = at::zeros({more_rows}, place.dtype(at::kLong));
  table_ = at::zeros({more_rows, more_pages}, place.dtype(at::kInt));
  draws_ = at::zeros({more_rows, static_cast<int64_t>(sizeof(MortiseCudaDraw))}, place.dtype(at::kByte));
  edits_ = at::zeros({more_rows, static_cast<int64_t>(sizeof(MortiseCudaEdits))}, place.dtype(at::kByte));
  num_top_ = at::zeros({more_rows}, place.dtype(at::kInt));
}

void GraphedDecode::fill(const Size& size, const at::Tensor& table_NP, const at::Tensor& ids_N,
                         std::span<const int64_t> positions, const DrawInputs& inputs) const {
  const int64_t count = ids_N.size(0), padding = size.rows - count;
  ids_.narrow(0, 0, count).copy_(ids_N);
  std::vector<int64_t> all(positions.begin(), positions.end());
  all.resize(static_cast<size_t>(size.rows), 0);
  positions_.narrow(0, 0, size.rows).copy_(sent_to(positions_.device(), at::tensor(all, at::kLong)));
  table_.narrow(0, 0, count).narrow(1, 0, table_NP.size(1)).copy_(table_NP);
  if (padding > 0) table_.narrow(0, count, padding).fill_(kPaddingPage);
  MortiseCudaDraw greedy{0, 1, 1, 0, 0, 1, 0};
  write_rows(draws_, size.rows, inputs.draws, greedy);
  if (size.has_edits) write_rows(edits_, size.rows, inputs.edits, MortiseCudaEdits{});
  if (size.num_top == 0) return;
  num_top_.narrow(0, 0, count).copy_(sent_to(num_top_.device(), inputs.num_top));
  num_top_.narrow(0, count, padding).zero_();
}

// The drawn tokens of all rows, from what is in the buffers.
DrawnRows GraphedDecode::compute(const Size& size) const {
  DevicePass pass;
  pass.slots.resize(static_cast<size_t>(size.rows));
  std::iota(pass.slots.begin(), pass.slots.end(), 0);
  pass.longest = size.splits * MORTISE_CUDA_SPLIT_TOKENS - 1;
  pass.positions_N = positions_.narrow(0, 0, size.rows);
  pass.table_NP = table_.narrow(0, 0, size.rows);
  PackedBatch batch;
  for (int64_t row = 0; row < size.rows; ++row) batch.segments.push_back({row, 1, -1, 0, 1});
  batch.token_ids_N = ids_.narrow(0, 0, size.rows);
  batch.positions_N = pass.positions_N;
  ForwardOptions options;
  cache_.read_by(pass, options);
  DrawInputs inputs{draws_.narrow(0, 0, size.rows), {}};
  if (size.has_edits) inputs.edits = edits_.narrow(0, 0, size.rows);
  if (size.num_top > 0) inputs.num_top = num_top_.narrow(0, 0, size.rows);
  inputs.most_top = size.num_top;
  return sampler_.draw(model_.forward_hidden(batch, options), inputs);
}

StartedDraws GraphedDecode::run(const DevicePass& pass, const at::Tensor& ids_N, std::span<const int64_t> positions,
                                const DrawInputs& inputs) {
  const Size size{class_of_rows(pass.num_decoding()), class_of_splits(pass.longest), inputs.edits.defined(),
                  class_of_top(inputs.most_top)};
  const at::Tensor table = cache_.rows_of_table(pass);
  notice_moved_memory(size.rows, table.size(1));
  fill(size, table, ids_N, positions, inputs);
  const auto [place, is_first] = graphs_by_size_.try_emplace(size);
  Captured& own = place->second;
  const auto work = [&] { own.drawn = compute(size); };
  if (is_first) {
    graphs_->warm_up(work);
  } else {
    if (own.graph == nullptr) own.graph = graphs_->capture(work);
    own.graph->replay();
  }
  DrawnRows rows{own.drawn.drawn.narrow(0, 0, ids_N.size(0)), {}};
  if (own.drawn.top.defined()) rows.top = own.drawn.top.narrow(0, 0, ids_N.size(0));
  return DeviceSampler::fetch(rows, inputs);
}

}  // namespace mortise
