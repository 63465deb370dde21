// See forward.h. Two ways to share the work: when the layers fit in a core's cache and there are rows enough, or fit in
// the cache of all cores and there are many rows, members take blocks of rows through all layers, and whoever is free
// takes the next block; else all members share every matrix by output panels, so that each weight is read by one core
// only.
#include "generate/decode/forward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "foundation/metrics/op_timer.h"
#include "generate/decode/pass_member.h"
#include "model/layers/rope.h"

namespace mortise {
namespace {

constexpr int64_t kCoreCacheBytes = int64_t{1} << 20;
constexpr int64_t kSharedCacheBytes = int64_t{8} << 20;
constexpr int64_t kBlockRows = 48;  // full tiles of the products; each weight read from the cache serves so many rows

// Writes past the caches, because nobody reads these numbers before the update. A row that is not made of whole cache lines
// is copied.
void stream_row(const float* from, int64_t count, float* to) {
#ifdef __SSE__
  if (count % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    for (int64_t i = 0; i < count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
    return;
  }
#endif
  std::copy_n(from, count, to);
}

// Another thread sees what this one has streamed, once it knows that this one is done.
void finish_stream() {
#ifdef __SSE__
  _mm_sfence();
#endif
}

}  // namespace

DecodeForward::DecodeForward(const ModelConfig& config, const Kernels& kernels, int64_t max_rows,
                             std::shared_ptr<TensorRanks> ranks)
    : config_(config),
      kernels_(kernels),
      max_rows_(max_rows),
      hidden_stride_(padded_stride(config.hidden_size)),
      qkv_stride_(padded_stride(config.qkv_size())),
      attended_stride_(padded_stride(config.q_size())),
      mlp_stride_(padded_stride(std::max(config.intermediate_size, config.moe.shared_size))),
      gate_up_stride_(padded_stride(2 * padded_stride(config.intermediate_size))),
      x_(max_rows * hidden_stride_),
      normed_(max_rows * hidden_stride_),
      qkv_(max_rows * qkv_stride_),
      attended_(max_rows * attended_stride_),
      mlp_(max_rows * mlp_stride_),
      ranks_(std::move(ranks)) {
  if (ranks_ != nullptr) {
    terms_.reserve(max_rows * hidden_stride_);
    sent_ = at::zeros({max_rows * hidden_stride_}, at::kFloat);
    gathered_ = at::empty({ranks_->size() * max_rows * hidden_stride_}, at::kFloat);
  }
  const MoeConfig& moe = config.moe;
  for (int64_t i = 0; i < config.num_layers; ++i)
    expert_layer_.push_back(i == 0 ? 0 : expert_layer_.back() + (config.has_experts(i - 1) ? 1 : 0));
  if (config.num_expert_layers() == 0) return;
  const int64_t sorted_rows = max_rows * moe.experts_per_token;
  router_stride_ = padded_stride(moe.num_experts);
  expert_stride_ = padded_stride(moe.expert_size);
  router_.reserve(max_rows * router_stride_);
  expert_x_.reserve(sorted_rows * hidden_stride_);
  expert_y_.reserve(sorted_rows * hidden_stride_);
  expert_mlp_.reserve(sorted_rows * expert_stride_);
  expert_weight_.reserve(sorted_rows);
  shared_scale_.reserve(max_rows);
  expert_of_ = std::make_unique<int64_t[]>(static_cast<size_t>(sorted_rows));
}

void DecodeForward::reserve_positions(int64_t num_positions) {
  if (num_positions <= num_positions_) return;
  // Never beyond what the model was made for.
  const int64_t most = std::max(num_positions, config_.max_position_embeddings);
  num_positions_ = std::min(most, std::max(num_positions, 2 * num_positions_));
  const auto fill = [&](const RopeConfig& rope, Rotation& out) {
    // By default the engine accepts only sequences for which longrope's first factors hold.
    const int64_t length = config_.rope_length > 0 ? config_.rope_length : 1;
    const RopeTable table = make_rope_table(rope, config_.head_dim, num_positions_, at::kFloat, length);
    const auto size = static_cast<size_t>(table.cos_PR2.numel());
    out.cos.assign(table.cos_PR2.const_data_ptr<float>(), table.cos_PR2.const_data_ptr<float>() + size);
    out.sin.assign(table.sin_PR2.const_data_ptr<float>(), table.sin_PR2.const_data_ptr<float>() + size);
  };
  fill(config_.rope, rotation_);
  if (config_.window_rope) fill(*config_.window_rope, window_rotation_);
}

void DecodeForward::run(const PackedWeights& weights, std::span<const PassRow> rows, const KvShape& kv, Team& team,
                        const SampledForward* store) {
  const OpTimer timer("norms, rotation, keys and values");
  const auto count = static_cast<int64_t>(rows.size());
  const int members = team.members_for(count * weights.num_layer_weights());
  int64_t score_stride = 16;
  for (const PassRow& row : rows) {
    const int64_t pages = KvShape::pages_for(row.prefix_length) + KvShape::pages_for(row.own_length);
    score_stride = std::max(score_stride, pages * kPageTokens + 16);
  }
  scratch_.resize(static_cast<size_t>(team.size()));
  sorts_.resize(static_cast<size_t>(team.size()));
  for (FloatBuffer& buffer : scratch_) buffer.reserve(kMaxQueryBlock * score_stride + max_rows_ * kPanel);
  if (store != nullptr) gate_up_.reserve(max_rows_ * gate_up_stride_);
  wanted_.clear();
  for (const PassRow& row : rows) {
    if (row.hidden != nullptr) wanted_.push_back(row);
  }
  // Tokens of one sequence attend to each other's keys within the pass, so they may be split by rows only if none does.
  const bool alone =
      std::ranges::all_of(rows, [](const PassRow& row) { return row.prefix_length > 0 && row.hidden; }) &&
      std::ranges::adjacent_find(rows, {}, &PassRow::own_pages) == rows.end();
  const int64_t cache_bytes = count >= 2 * members * kBlockRows ? kSharedCacheBytes : kCoreCacheBytes;
  const bool by_rows = ranks_ == nullptr && alone && count >= 8 * members && weights.layer_bytes() <= cache_bytes;
  const auto part = [&](PassRange range, int member, int number, int parts) {
    const auto own = static_cast<size_t>(member);
    Team* const joined = parts == 1 ? nullptr : &team;
    run_member({&weights, rows, kv, range.begin, range.end, number, parts, joined, &scratch_[own], &sorts_[own],
                score_stride, store});
    if (store != nullptr) finish_stream();
  };
  if (members == 1) {
    part({0, count}, 0, 0, 1);
  } else if (by_rows) {
    const int64_t blocks = members * ((count + members * kBlockRows - 1) / (members * kBlockRows));
    team.run_tasks(blocks, [&](int member, int64_t i) { part(share(count, i, blocks), member, 0, 1); });
  } else {
    team.run([&](int member) { part({0, count}, member, member, members); });
  }
}

void DecodeForward::run_member(const Member& m) const {
  const int64_t hidden = config_.hidden_size;
  const PassRange mine = m.my_rows();
  const auto scale = static_cast<float>(config_.embedding_scale);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const float* const from = m.weights->embedding + m.rows[static_cast<size_t>(i)].token * hidden;
    float* const to = x_.data() + i * hidden_stride_;
    for (int64_t j = 0; j < hidden; ++j) to[j] = from[j] * scale;
  }
  Member left = m;  // from the last layer's attention on
  for (int64_t index = 0; index < config_.num_layers; ++index) {
    keys_and_values(m, index);
    if (index + 1 == config_.num_layers && wanted_.size() < m.rows.size()) {
      keep_unwanted_rows(m, mine);
      if (wanted_.empty()) return;
      if (m.part == 0) move_wanted_rows(m);
      left.rows = wanted_;
      left.last = static_cast<int64_t>(wanted_.size());
      m.join();
    }
    attention_and_mlp(left, index);
  }
  const PassRange wanted = left.my_rows();
  for (int64_t i = wanted.begin; i < wanted.end; ++i) {
    kernels_.rms_norm(x_.data() + i * hidden_stride_, m.weights->final_norm, static_cast<float>(config_.rms_norm_eps),
                      hidden, left.rows[static_cast<size_t>(i)].hidden);
  }
}

// Most prompt tokens need only keys and values. We pack the remaining tokens to the front of x and q.
void DecodeForward::move_wanted_rows(const Member& m) const {
  int64_t to = 0;
  for (size_t from = 0; from < m.rows.size(); ++from) {
    if (m.rows[from].hidden == nullptr) continue;
    const auto row = static_cast<int64_t>(from);
    if (row != to) {
      std::copy_n(x_.data() + row * hidden_stride_, config_.hidden_size, x_.data() + to * hidden_stride_);
      std::copy_n(qkv_.data() + row * qkv_stride_, config_.q_size(), qkv_.data() + to * qkv_stride_);
    }
    ++to;
  }
}

namespace {

double product_flops(const PackedLinear& weight, int64_t rows, PassRange panels) {
  return 2.0 * static_cast<double>(rows * weight.in * kPanel * (panels.end - panels.begin));
}

double panel_bytes(const PackedLinear& weight, PassRange panels) {
  return 4.0 * static_cast<double>(weight.panel_words() * (panels.end - panels.begin));
}

// y[first..last) (+)= x * weight over this member's panels.
void multiply(const Kernels& kernels, const PackedLinear& weight, const float* x, int64_t x_stride, float* y,
              int64_t y_stride, int64_t rows, PassRange panels, bool add) {
  const OpTimer timer("linear", product_flops(weight, rows, panels), panel_bytes(weight, panels));
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    weight.multiply(kernels, p, x, x_stride, rows, y + p * kPanel, y_stride, add);
  }
}

}  // namespace

void DecodeForward::norm_rows(const float* weight, int64_t begin, int64_t end) const {
  for (int64_t i = begin; i < end; ++i) {
    kernels_.rms_norm(x_.data() + i * hidden_stride_, weight, static_cast<float>(config_.rms_norm_eps),
                      config_.hidden_size, normed_.data() + i * hidden_stride_);
  }
}

// Before a product with matrices that take rounded inputs.
void DecodeForward::round_rows(const Member& m, const FloatBuffer& buffer, int64_t stride, int64_t size) const {
  if (!m.weights->rounds_inputs()) return;
  const PassRange mine = m.my_rows();
  for (int64_t i = mine.begin; i < mine.end; ++i) kernels_.round_bf16(buffer.data() + i * stride, size);
}

// x += linear(input), with a norm in between where the family has one; whole rows are then ready for this member.
void DecodeForward::project(const Member& m, const PackedLinear& linear, const float* input, int64_t input_stride,
                            const float* norm) const {
  const int64_t rows = m.last - m.first;
  const PassRange panels = share(linear.panels, m.part, m.parts);
  const bool is_added = ranks_ == nullptr && norm == nullptr;
  FloatBuffer const& target = ranks_ != nullptr ? terms_ : is_added ? x_ : normed_;
  multiply(kernels_, linear, input, input_stride, target.data() + m.first * hidden_stride_, hidden_stride_, rows,
           panels, is_added);
  m.join();
  if (ranks_ != nullptr) return add_terms(m, norm);
  if (norm != nullptr) add_to_rows(m, normed_, norm);
}

void DecodeForward::add_to_rows(const Member& m, const FloatBuffer& what, const float* norm) const {
  const PassRange mine = m.my_rows();
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    float* const out = what.data() + i * hidden_stride_;
    float* const x = x_.data() + i * hidden_stride_;
    if (norm != nullptr)
      kernels_.rms_norm(out, norm, static_cast<float>(config_.rms_norm_eps), config_.hidden_size, out);
    for (int64_t j = 0; j < config_.hidden_size; ++j) x[j] += out[j];
  }
}

// Precondition: all members have finished their part of terms_. Member 0 is the caller of run(), which may call libtorch.
void DecodeForward::add_terms(const Member& m, const float* norm) const {
  const int64_t size = (m.last - m.first) * hidden_stride_, num_ranks = ranks_->size();
  if (m.part == 0) {
    std::copy_n(terms_.data() + m.first * hidden_stride_, size, sent_.data_ptr<float>());
    ranks_->gather(sent_.narrow(0, 0, size), gathered_.narrow(0, 0, num_ranks * size));
  }
  m.join();
  const float* const all = gathered_.const_data_ptr<float>();
  const PassRange mine = m.my_rows();
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    float* const out = terms_.data() + i * hidden_stride_;
    const float* const first = all + (i - m.first) * hidden_stride_;
    std::copy_n(first, config_.hidden_size, out);
    for (int64_t rank = 1; rank < num_ranks; ++rank) {
      for (int64_t j = 0; j < config_.hidden_size; ++j) out[j] += first[rank * size + j];
    }
  }
  add_to_rows(m, terms_, norm);
}

void DecodeForward::keys_and_values(const Member& m, int64_t index) const {
  const PackedLayer& layer = m.weights->layers[static_cast<size_t>(index)];
  const PassRange mine = m.my_rows();
  norm_rows(layer.input_norm, mine.begin, mine.end);
  round_rows(m, normed_, hidden_stride_, config_.hidden_size);
  m.join();
  multiply(kernels_, layer.qkv, normed_.data() + m.first * hidden_stride_, hidden_stride_,
           qkv_.data() + m.first * qkv_stride_, qkv_stride_, m.last - m.first, share(layer.qkv.panels, m.part, m.parts),
           false);
  m.join();
  rotate_and_store(m, index, mine.begin, mine.end);
  m.join();
}

void DecodeForward::attention_and_mlp(const Member& m, int64_t index) const {
  const PackedLayer& layer = m.weights->layers[static_cast<size_t>(index)];
  const PassRange mine = m.my_rows();
  attention(m, index, mine.begin, mine.end);
  keep_rows(m, mine, attended_, attended_stride_, config_.q_size(), [&] { return m.store->layer(index).attended; });
  round_rows(m, attended_, attended_stride_, config_.q_size());
  m.join();
  project(m, layer.o, attended_.data() + m.first * attended_stride_, attended_stride_, layer.attention_norm);
  keep_rows(m, mine, x_, hidden_stride_, config_.hidden_size, [&] { return m.store->layer(index).mixed; });
  norm_rows(layer.post_norm, mine.begin, mine.end);
  if (!layer.experts.empty()) route(m, index, mine.begin, mine.end);
  round_rows(m, normed_, hidden_stride_, config_.hidden_size);
  m.join();
  if (layer.gate_up.panels > 0) {
    gated_mlp(m, layer);
    m.join();
    keep_gate_up(m, index, mine);
    project(m, layer.down, mlp_.data() + m.first * mlp_stride_, mlp_stride_, layer.mlp_norm);
    keep_rows(m, mine, x_, hidden_stride_, config_.hidden_size, [&] { return m.store->layer(index).out; });
  }
  if (!layer.experts.empty()) add_experts(m, layer);
}

void DecodeForward::rotate_and_store(const Member& m, int64_t index, int64_t begin, int64_t end) const {
  const PackedLayer& layer = m.weights->layers[static_cast<size_t>(index)];
  const int64_t dim = config_.head_dim;
  const int64_t rotated = config_.rope.rotary_dim(dim);
  const int64_t half = rotated / 2;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const Rotation& rotation = config_.uses_window_rope(index) ? window_rotation_ : rotation_;
  for (int64_t i = begin; i < end; ++i) {
    const PassRow& row = m.rows[static_cast<size_t>(i)];
    float* const q = qkv_.data() + i * qkv_stride_;
    float* const k = q + config_.q_size();
    float* const v = k + config_.kv_size();
    float* const kept =
        m.store != nullptr && row.slot >= 0 ? m.store->layer(index).qkv + row.slot * config_.qkv_size() : nullptr;
    if (kept != nullptr && layer.q_norm != nullptr) stream_row(q, config_.qkv_size(), kept);
    if (layer.q_norm != nullptr) {
      for (int64_t h = 0; h < config_.num_heads; ++h)
        kernels_.rms_norm(q + h * dim, layer.q_norm, eps, dim, q + h * dim);
      for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
        kernels_.rms_norm(k + h * dim, layer.k_norm, eps, dim, k + h * dim);
      }
    }
    const float* const cos = rotation.cos.data() + row.position * half;
    const float* const sin = rotation.sin.data() + row.position * half;
    if (rotated == dim) {
      kernels_.rope(q, config_.num_heads + config_.num_kv_heads, dim, cos, sin);
    } else {  // the rest of each head does not change
      for (int64_t h = 0; h < config_.num_heads + config_.num_kv_heads; ++h)
        kernels_.rope(q + h * dim, 1, rotated, cos, sin);
    }
    if (kept != nullptr && layer.q_norm == nullptr) stream_row(q, config_.qkv_size(), kept);
    float* const page = row.own_pages[(row.own_length - 1) / kPageTokens];
    const int64_t place = (row.own_length - 1) % kPageTokens;
    for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
      float* const keys = page + m.kv.offset(index, h);
      float* const values = keys + dim * kPageTokens + place * m.kv.value_stride();
      for (int64_t d = 0; d < dim; ++d) keys[d * kPageTokens + place] = k[h * dim + d];
      std::memcpy(values, v + h * dim, static_cast<size_t>(dim) * sizeof(float));
    }
  }
}

void DecodeForward::attention(const Member& m, int64_t index, int64_t begin, int64_t end) const {
  const int64_t dim = config_.head_dim;
  const int64_t group = config_.num_heads / config_.num_kv_heads;
  const OpTimer timer("attention", [&] {
    double context = 0;
    for (int64_t i = begin; i < end; ++i) {
      const PassRow& row = m.rows[static_cast<size_t>(i)];
      context += static_cast<double>(row.prefix_length + row.own_length);
    }
    return OpWork{4.0 * context * static_cast<double>(config_.num_heads * dim),
                  8.0 * context * static_cast<double>(config_.num_kv_heads * dim)};
  });
  AttendArgs args;
  args.num_queries = group;
  args.head_dim = dim;
  args.value_stride = m.kv.value_stride();
  args.scale = static_cast<float>(config_.score_scale());
  args.softcap = static_cast<float>(config_.attention_softcap);
  const int64_t window = config_.window(index);
  const float* const sinks = m.weights->layers[static_cast<size_t>(index)].sinks;
  args.scores = m.scratch->data();
  args.score_stride = m.score_stride;
  for (int64_t i = begin; i < end; ++i) {
    const PassRow& row = m.rows[static_cast<size_t>(i)];
    // The first visible token, counted over the prompt and then the row's own tokens.
    const int64_t first = window > 0 ? std::max<int64_t>(0, row.prefix_length + row.own_length - window) : 0;
    args.spans[0] = {row.prefix_pages, row.prefix_length, std::min(first, row.prefix_length)};
    args.spans[1] = {row.own_pages, row.own_length, std::max<int64_t>(0, first - row.prefix_length)};
    for (int64_t h = 0; h < config_.num_kv_heads; ++h) {
      args.q = qkv_.data() + i * qkv_stride_ + h * group * dim;
      args.out = attended_.data() + i * attended_stride_ + h * group * dim;
      args.lse = m.store != nullptr && row.slot >= 0
                     ? m.store->layer(index).lse + row.slot * config_.num_heads + h * group
                     : nullptr;
      args.sinks = sinks == nullptr ? nullptr : sinks + h * group;
      args.offset = m.kv.offset(index, h);
      kernels_.attend(args);
    }
  }
}

// place() gives the rows by slot that get `width` numbers of the rows of a buffer.
template <class Place>
void DecodeForward::keep_rows(const Member& m, PassRange range, const FloatBuffer& from, int64_t stride, int64_t width,
                              const Place& place) const {
  if (m.store == nullptr) return;
  float* const to = place();
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t slot = m.rows[static_cast<size_t>(i)].slot;
    if (slot >= 0) stream_row(from.data() + i * stride, width, to + slot * width);
  }
}

// Copies row by row. A panel of the product has 16 gates of a row and then their 16 ups.
void DecodeForward::keep_gate_up(const Member& m, int64_t index, PassRange range) const {
  if (m.store == nullptr) return;
  constexpr int64_t kHalf = kPanel / 2;
  const int64_t units = config_.intermediate_size;
  float* const to = m.store->layer(index).gate_up;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t slot = m.rows[static_cast<size_t>(i)].slot;
    if (slot < 0) continue;
    const float* both = gate_up_.data() + i * gate_up_stride_;
    float* const gate = to + slot * 2 * units;
    for (int64_t first = 0; first < units; first += kHalf, both += kPanel) {
      const int64_t count = std::min(kHalf, units - first);
      stream_row(both, count, gate + first);
      stream_row(both + kHalf, count, gate + units + first);
    }
  }
}

// Nobody reads the output of these tokens in the last layer. Backward multiplies their numbers there by gradients of 0.
// The residual stream is not 0: a norm without an epsilon would divide by it.
void DecodeForward::keep_unwanted_rows(const Member& m, PassRange range) const {
  if (m.store == nullptr) return;
  constexpr float kNoAttention = 1e30F;  // log sum exp of a token whose probabilities are all 0
  const SampledSlots& to = m.store->layer(config_.num_layers - 1);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const PassRow& row = m.rows[static_cast<size_t>(i)];
    if (row.slot < 0 || row.hidden != nullptr) continue;
    const auto fill = [&](float* matrix, int64_t width, float value) {
      std::fill_n(matrix + row.slot * width, width, value);
    };
    fill(to.attended, config_.q_size(), 0.0F);
    fill(to.lse, config_.num_heads, kNoAttention);
    fill(to.mixed, config_.hidden_size, 1.0F);
    fill(to.gate_up, 2 * config_.intermediate_size, 0.0F);
    fill(to.out, config_.hidden_size, 1.0F);
  }
}

void DecodeForward::gate_panel(bool is_clamped, const float* both, int64_t stride, int64_t rows, float* out,
                               int64_t out_stride) const {
  const MoeConfig& moe = config_.moe;
  if (is_clamped) {
    kernels_.clamped_mul(both, stride, rows, static_cast<float>(moe.swiglu_alpha), static_cast<float>(moe.swiglu_limit),
                         out, out_stride);
  } else {
    (config_.activation == Activation::kSilu ? kernels_.silu_mul : kernels_.gelu_mul)(both, stride, rows, out,
                                                                                      out_stride);
  }
}

void DecodeForward::gated_mlp(const Member& m, const PackedLayer& layer) const {
  const PassRange panels = share(layer.gate_up.panels, m.part, m.parts);
  const int64_t rows = m.last - m.first;
  const OpTimer timer("linear", product_flops(layer.gate_up, rows, panels), panel_bytes(layer.gate_up, panels));
  float* both = m.scratch->data() + kMaxQueryBlock * m.score_stride;
  const int64_t stride = m.store != nullptr ? gate_up_stride_ : kPanel;
  const float* const normed = normed_.data() + m.first * hidden_stride_;
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    if (m.store != nullptr) both = gate_up_.data() + m.first * stride + p * kPanel;
    layer.gate_up.multiply(kernels_, p, normed, hidden_stride_, rows, both, stride, false);
    float* const out = mlp_.data() + m.first * mlp_stride_ + p * (kPanel / 2);
    gate_panel(/*is_clamped=*/false, both, stride, rows, out, mlp_stride_);
    for (int64_t i = 0; i < rows; ++i) {
      float* const units = out + i * mlp_stride_;
      if (m.weights->rounds_inputs()) kernels_.round_bf16(units, kPanel / 2);
      if (layer.shared_gate == nullptr) continue;
      const float scale = shared_scale_.data()[m.first + i];
      for (int64_t j = 0; j < kPanel / 2; ++j) units[j] *= scale;
    }
  }
}

}  // namespace mortise
