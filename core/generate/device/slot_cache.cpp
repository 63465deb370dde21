// The cache of device_cache.h by libtorch's operators.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "generate/device/device_cache.h"
#include "model/layers/attention.h"
#include "model/layers/segment_attention.h"

namespace mortise {
namespace {

constexpr int64_t kGrowTokens = 256;  // slots grow by so many tokens

// Keys and values of the running samples, [slots, tokens, heads, D] for each layer.
class SlotCache final : public DeviceCache {
 public:
  SlotCache(const Model& model, const ModelConfig& layers) : model_(model), config_(layers) {}

  void prepare(int64_t slots, int64_t tokens) override {
    if (slots <= slots_ && tokens <= tokens_) return;
    const int64_t new_slots = std::max(slots, slots_);
    const int64_t new_tokens = std::max((tokens + kGrowTokens - 1) / kGrowTokens * kGrowTokens, tokens_);
    at::TensorOptions numbers = at::TensorOptions().device(model_.device().device).dtype(model_.dtype());
    if (model_.has_rounded_matrices()) numbers = numbers.dtype(at::kBFloat16);
    for (std::vector<at::Tensor>* const part : {&keys_, &values_}) {
      part->resize(static_cast<size_t>(config_.num_layers));
      for (at::Tensor& layer : *part) {
        at::Tensor larger = at::zeros({new_slots, new_tokens, config_.num_kv_heads, config_.head_dim}, numbers);
        if (layer.defined()) larger.narrow(0, 0, slots_).narrow(1, 0, tokens_).copy_(layer);
        layer = std::move(larger);
      }
    }
    slots_ = new_slots;
    tokens_ = new_tokens;
  }

  void reserve(std::span<const NewSlots> /*slots*/) override {}  // prepare() makes room
  void add_slots(const NewSlots& slots) override { num_taken_ += slots.count; }
  void remove_slot(int64_t slot) override {
    const int64_t last = --num_taken_;
    if (slot == last) return;
    for (std::vector<at::Tensor>* const part : {&keys_, &values_}) {
      for (const at::Tensor& layer : *part) layer.select(0, slot).copy_(layer.select(0, last));
    }
  }
  void clear() override { num_taken_ = 0; }
  void free() override {
    keys_.clear();
    values_.clear();
    slots_ = tokens_ = num_taken_ = 0;
  }

  void read_by(const DevicePass& pass, ForwardOptions& options) override {
    options.attend = [this, &pass](int64_t layer, const at::Tensor& qkv, const AttentionShape& shape) {
      std::vector<at::Tensor> out;
      int64_t row = pass.num_decoding();
      if (row > 0) out.push_back(attend(layer, qkv.narrow(0, 0, row), shape, pass));
      for (const DevicePiece& piece : pass.pieces) {
        out.push_back(attend(layer, qkv.narrow(0, row, piece.count), shape, piece));
        row += piece.count;
      }
      return at::cat(out, 0);
    };
  }

 private:
  // One more token for each of the pass's slots. Returns what their queries get.
  at::Tensor attend(int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape, const DevicePass& pass) {
    const int64_t n = qkv_NQ.size(0), hk = shape.num_kv_heads, dim = shape.head_dim, group = shape.num_heads / hk;
    const auto at = static_cast<size_t>(layer);
    const auto [k, v] = keys_and_values(qkv_NQ);
    const at::Tensor length_N = pass.positions_N.narrow(0, 0, n);
    const at::Tensor slots = sent_to(qkv_NQ.device(), at::tensor(pass.slots, at::kLong));
    keys_[at].index_put_({slots, length_N}, k.to(keys_[at].scalar_type()));
    values_[at].index_put_({slots, length_N}, v.to(values_[at].scalar_type()));
    const at::ScalarType dtype = qkv_NQ.scalar_type();
    const bool are_first = pass.slots.back() == n - 1;  // they ascend
    const int64_t num_seen = pass.longest + 1;
    const auto seen = [&](const at::Tensor& part) {
      return (are_first ? part.narrow(0, 0, n) : part.index_select(0, slots)).narrow(1, 0, num_seen).to(dtype);
    };
    at::Tensor q = qkv_NQ.narrow(1, 0, shape.num_heads * dim).reshape({n, hk, group, dim});
    if (shape.rounds) q = q.to(at::kBFloat16).to(dtype);
    const at::Tensor products = at::matmul(q, seen(keys_[at]).permute({0, 2, 3, 1}));  // [N, Hk, group, tokens]
    const at::Tensor p =
        attention_probabilities(products.reshape({n, shape.num_heads, 1, num_seen}), length_N.reshape({n, 1, 1, 1}),
                                at::arange(num_seen, length_N.options()), shape);
    at::Tensor out = at::matmul(p.reshape(products.sizes()), seen(values_[at]).permute({0, 2, 1, 3}));
    if (shape.rounds) out = out.to(at::kBFloat16).to(dtype);  // as in training
    return out.reshape({n, shape.num_heads * dim});
  }

  at::Tensor attend(int64_t layer, const at::Tensor& qkv_LQ, const AttentionShape& shape, const DevicePiece& piece) {
    const auto [k, v] = keys_and_values(qkv_LQ);
    const auto at = static_cast<size_t>(layer);
    for (const int64_t slot : piece.slots) {
      keys_[at].select(0, slot).narrow(0, piece.begin, piece.count).copy_(k);
      values_[at].select(0, slot).narrow(0, piece.begin, piece.count).copy_(v);
    }
    const int64_t width = shape.num_heads * shape.head_dim, end = piece.begin + piece.count;
    const at::Tensor q = qkv_LQ.narrow(1, 0, width).reshape({piece.count, shape.num_heads, shape.head_dim});
    const auto seen = [&](const at::Tensor& part) {
      return part.select(0, piece.slots[0]).narrow(0, 0, end).to(q.scalar_type());
    };
    return segment_attention(q, seen(keys_[at]), seen(values_[at]), {{piece.count}, {end}}, shape)
        .reshape({piece.count, width});
  }

  [[nodiscard]] std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& qkv) const {
    const auto heads = [&](int64_t first) {
      return qkv.narrow(1, first * config_.head_dim, config_.kv_size())
          .reshape({qkv.size(0), config_.num_kv_heads, config_.head_dim});
    };
    return {heads(config_.num_heads), heads(config_.num_heads + config_.num_kv_heads)};
  }

  const Model& model_;
  ModelConfig config_;
  std::vector<at::Tensor> keys_, values_;  // by layer
  int64_t slots_ = 0, tokens_ = 0;         // there is memory for
  int64_t num_taken_ = 0;                  // slots with a sample
};

}  // namespace

std::unique_ptr<DeviceCache> make_slot_cache(const Model& model, const ModelConfig& layers) {
  return std::make_unique<SlotCache>(model, layers);
}

}  // namespace mortise
