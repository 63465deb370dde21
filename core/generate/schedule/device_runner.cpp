// The path of a model on a device. Keys and values are tensors there: one slot for each running sample, as long as the
// longest. A step is one pass of the samples' last tokens through the model's own layers by operators, and passes over
// the sequences that are new, of at most max_batch_tokens (a longer sequence is a pass of its own). Logits come to the
// host in blocks of rows, where sample_plain draws the tokens.
//
// Slots stay dense: the last one moves into the place of a sample that has left.
// Cost of a step: it reads all slots up to the longest sequence, and masks what is not there.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>

#include "generate/schedule/runner.h"
#include "model/layers/attention.h"
#include "model/tensor/torch_guard.h"

namespace mortise {
namespace {

constexpr int64_t kGrowTokens = 256;              // slots grow by so many tokens
constexpr int64_t kHostLogitBytes = 64LL << 20U;  // bytes of a block of rows on the host

// Keys and values of the running samples, [slots, tokens, heads, D] for each layer.
class SlotCache {
 public:
  explicit SlotCache(const Model& model) : model_(model) {}

  // Room for so many slots of so many tokens; what is there stays.
  void reserve(int64_t slots, int64_t tokens) {
    if (slots <= slots_ && tokens <= tokens_) return;
    const int64_t new_slots = std::max(slots, slots_);
    const int64_t new_tokens = std::max((tokens + kGrowTokens - 1) / kGrowTokens * kGrowTokens, tokens_);
    const ModelConfig& config = model_.config();
    at::TensorOptions numbers = at::TensorOptions().device(model_.device().device).dtype(model_.dtype());
    if (model_.has_rounded_matrices()) numbers = numbers.dtype(at::kBFloat16);
    for (std::vector<at::Tensor>* const part : {&keys_, &values_}) {
      part->resize(static_cast<size_t>(config.num_layers));
      for (at::Tensor& layer : *part) {
        at::Tensor larger = at::zeros({new_slots, new_tokens, config.num_kv_heads, config.head_dim}, numbers);
        if (layer.defined()) larger.narrow(0, 0, slots_).narrow(1, 0, tokens_).copy_(layer);
        layer = std::move(larger);
      }
    }
    slots_ = new_slots;
    tokens_ = new_tokens;
  }

  void move_slot(int64_t from, int64_t to) {
    for (std::vector<at::Tensor>* const part : {&keys_, &values_}) {
      for (const at::Tensor& layer : *part) layer.select(0, to).copy_(layer.select(0, from));
    }
  }

  // The rotated rows of a new sequence: [L, Q].
  void fill(int64_t layer, int64_t slot, const at::Tensor& qkv_LQ) {
    const auto [k, v] = keys_and_values(qkv_LQ);
    const auto at = static_cast<size_t>(layer);
    keys_[at].select(0, slot).narrow(0, 0, qkv_LQ.size(0)).copy_(k);
    values_[at].select(0, slot).narrow(0, 0, qkv_LQ.size(0)).copy_(v);
  }

  // One token for each of the first slots, behind the `length` tokens that each has. Returns what their queries get.
  at::Tensor attend(int64_t layer, const at::Tensor& qkv_NQ, const AttentionShape& shape, const at::Tensor& length_N,
                    int64_t longest) {
    const int64_t n = qkv_NQ.size(0), hk = shape.num_kv_heads, dim = shape.head_dim, group = shape.num_heads / hk;
    const auto at = static_cast<size_t>(layer);
    const auto [k, v] = keys_and_values(qkv_NQ);
    const at::Tensor slots = at::arange(n, length_N.options());
    keys_[at].index_put_({slots, length_N}, k.to(keys_[at].scalar_type()));
    values_[at].index_put_({slots, length_N}, v.to(values_[at].scalar_type()));
    const at::ScalarType dtype = qkv_NQ.scalar_type();
    const auto seen = [&](const at::Tensor& part) { return part.narrow(0, 0, n).narrow(1, 0, longest + 1).to(dtype); };
    at::Tensor q = qkv_NQ.narrow(1, 0, shape.num_heads * dim).reshape({n, hk, group, dim});
    if (shape.rounds) q = q.to(at::kBFloat16).to(dtype);
    const at::Tensor products = at::matmul(q, seen(keys_[at]).permute({0, 2, 3, 1}));  // [N, Hk, group, tokens]
    const at::Tensor p =
        attention_probabilities(products.reshape({n, shape.num_heads, 1, longest + 1}), length_N.reshape({n, 1, 1, 1}),
                                at::arange(longest + 1, length_N.options()), shape);
    at::Tensor out = at::matmul(p.reshape(products.sizes()), seen(values_[at]).permute({0, 2, 1, 3}));
    if (shape.rounds) out = out.to(at::kBFloat16).to(dtype);  // as in training
    return out.reshape({n, shape.num_heads * dim});
  }

  void free() {
    keys_.clear();
    values_.clear();
    slots_ = tokens_ = 0;
  }

 private:
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> keys_and_values(const at::Tensor& qkv) const {
    const ModelConfig& config = model_.config();
    const auto heads = [&](int64_t first) {
      return qkv.narrow(1, first * config.head_dim, config.kv_size())
          .reshape({qkv.size(0), config.num_kv_heads, config.head_dim});
    };
    return {heads(config.num_heads), heads(config.num_heads + config.num_kv_heads)};
  }

  const Model& model_;
  std::vector<at::Tensor> keys_, values_;  // by layer
  int64_t slots_ = 0, tokens_ = 0;
};

class DeviceRunner final : public StepRunner {
 public:
  DeviceRunner(const Model& model, const RunnerOptions& options)
      : model_(model), purpose_(options.purpose), max_pass_tokens_(options.max_batch_tokens), cache_(model) {}

  Result<> next_tokens(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) override {
    return guard_torch("sampling on " + model_.device().text, [&]() -> Result<> {
      const c10::InferenceMode inference;
      leave(samples);
      int64_t longest = 0;
      for (const std::unique_ptr<RunningSample>& sample : samples) longest = std::max(longest, length_of(*sample));
      cache_.reserve(static_cast<int64_t>(samples.size()), longest + 1);
      const std::vector<NewRow> rows = new_rows(samples);
      std::vector<at::Tensor> hidden;
      if (!slots_.empty()) hidden.push_back(decode());
      for (std::span<const NewRow> left = rows; !left.empty();) {
        const size_t count = rows_of_pass(left);
        hidden.push_back(TRY(enter(left.first(count))));
        left = left.subspan(count);
      }
      sample_rows(at::cat(hidden, 0), samples, out);
      return {};
    });
  }

  void weights_changed(uint64_t /*state*/) override { slots_.clear(); }
  void free_caches() override {
    slots_.clear();
    cache_.free();
  }
  std::string_view name() const override { return "device"; }

 private:
  struct Slot {
    const RunningSample* sample = nullptr;
    int64_t length = 0;  // tokens with keys and values
  };
  // A sequence without a slot. Samples of a group that have no token yet share the pass of their prompt.
  struct NewRow {
    PackRow row;
    int64_t length = 0;
    std::vector<const RunningSample*> samples;
  };

  static int64_t length_of(const RunningSample& sample) {
    return sample.group->num_prompt_ids() + static_cast<int64_t>(sample.sequence.ids.size());
  }
  // Whether a slot holds all of a sample but its last token. A new sample may have the address of one that has left,
  // but then it has fewer tokens.
  static bool continues(const Slot& slot, const RunningSample& sample) {
    return slot.sample == &sample && !sample.sequence.ids.empty() && slot.length == length_of(sample) - 1;
  }

  // Frees the slots of samples that have left.
  void leave(std::span<const std::unique_ptr<RunningSample>> samples) {
    std::map<const RunningSample*, const RunningSample*> running;
    for (const std::unique_ptr<RunningSample>& sample : samples) running[sample.get()] = sample.get();
    for (size_t i = 0; i < slots_.size();) {
      const auto found = running.find(slots_[i].sample);
      if (found != running.end() && continues(slots_[i], *found->second)) {
        ++i;
        continue;
      }
      if (i + 1 < slots_.size()) cache_.move_slot(static_cast<int64_t>(slots_.size()) - 1, static_cast<int64_t>(i));
      slots_[i] = slots_.back();
      slots_.pop_back();
    }
  }

  // [slots, H] of the last tokens of all samples that have a slot.
  at::Tensor decode() {
    PackedBatch batch;
    std::vector<int64_t> ids, lengths;
    for (Slot& slot : slots_) {
      batch.segments.push_back({static_cast<int64_t>(ids.size()), 1, -1, slot.length, 1});
      ids.push_back(slot.sample->sequence.ids.back());
      lengths.push_back(slot.length++);
    }
    const at::Device device = model_.device().device;
    batch.token_ids_N = at::tensor(ids, at::kLong).to(device);
    batch.positions_N = at::tensor(lengths, at::kLong).to(device);
    const int64_t longest = *std::ranges::max_element(lengths);
    ForwardOptions options;
    options.attend = [&](int64_t layer, const at::Tensor& qkv, const AttentionShape& shape) {
      return cache_.attend(layer, qkv, shape, batch.positions_N, longest);
    };
    return model_.forward_hidden(batch, options);
  }

  [[nodiscard]] std::vector<NewRow> new_rows(std::span<const std::unique_ptr<RunningSample>> samples) const {
    std::vector<NewRow> rows;
    std::map<const GenerateGroup*, size_t> prompts;
    for (const std::unique_ptr<RunningSample>& sample : samples) {
      if (std::ranges::any_of(slots_, [&](const Slot& slot) { return slot.sample == sample.get(); })) continue;
      const bool is_fresh = sample->sequence.ids.empty();
      const size_t row = is_fresh ? prompts.try_emplace(sample->group, rows.size()).first->second : rows.size();
      if (row == rows.size())
        rows.push_back({{sample->group->request.prompt_ids, sample->sequence.ids, -1}, length_of(*sample), {}});
      rows[row].samples.push_back(sample.get());
    }
    return rows;
  }

  // The rows of the next pass: at least one.
  [[nodiscard]] size_t rows_of_pass(std::span<const NewRow> rows) const {
    size_t count = 1;
    for (int64_t tokens = rows[0].length; count < rows.size(); ++count) {
      tokens += rows[count].length;
      if (tokens > max_pass_tokens_) break;
    }
    return count;
  }

  // Gives the samples of these rows slots in one pass. Returns the hidden states of their last tokens.
  Result<at::Tensor> enter(std::span<const NewRow> rows) {
    std::vector<PackRow> pass;
    for (const NewRow& row : rows) pass.push_back(row.row);
    const PackedBatch batch = TRY(
        pack_rows(pass, {.share_prefix = false, .keep_last_token = true, .vocab_size = model_.config().vocab_size}));
    const auto first = static_cast<int64_t>(slots_.size());
    std::vector<size_t> row_of;  // by new slot
    std::vector<int64_t> last;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (const RunningSample* const sample : rows[r].samples) {
        slots_.push_back({sample, rows[r].length});
        row_of.push_back(r);
        last.push_back(batch.last_index[r]);
      }
    }
    ForwardOptions options;
    options.on_qkv = [&](int64_t layer, const at::Tensor& qkv) {
      for (size_t i = 0; i < row_of.size(); ++i) {
        const PackedSegment& segment = batch.segments[row_of[i]];
        cache_.fill(layer, first + static_cast<int64_t>(i), qkv.narrow(0, segment.begin, segment.length));
      }
    };
    const at::Tensor all = model_.forward_hidden(batch, options);
    return all.index_select(0, at::tensor(last, at::kLong).to(all.device()));
  }

  // `hidden` is in the order of the slots.
  void sample_rows(const at::Tensor& hidden, std::span<const std::unique_ptr<RunningSample>> samples,
                   std::span<SampledToken> out) const {
    std::map<const RunningSample*, size_t> places;
    for (size_t i = 0; i < samples.size(); ++i) places[samples[i].get()] = i;
    const int64_t vocab = model_.config().vocab_size;
    const int64_t block = std::max<int64_t>(1, kHostLogitBytes / (vocab * 4));
    for (int64_t begin = 0; begin < hidden.size(0); begin += block) {
      const int64_t rows = std::min(block, hidden.size(0) - begin);
      const at::Tensor logits = head_logits(hidden.narrow(0, begin, rows), model_.head())
                                    .to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat))
                                    .contiguous();
      const float* const data = logits.const_data_ptr<float>();
      at::parallel_for(0, rows, 1, [&](int64_t from, int64_t to) {
        for (int64_t r = from; r < to; ++r) {
          const size_t place = places.at(slots_[static_cast<size_t>(begin + r)].sample);
          RunningSample& sample = *samples[place];
          const GenerateRequest& request = sample.group->request;
          const std::span<const float> row(data + r * vocab, static_cast<size_t>(vocab));
          const double uniform = unit_double(random_u64(key_of(sample, purpose_)));
          out[place] = sample_plain(row, {&request.sampling, sample.history.edits(), uniform});
          append_top_log_probs_plain(row, request.sampling, request.num_top_log_probs, sample.sequence.top);
        }
      });
    }
  }

  const Model& model_;
  RandomPurpose purpose_;
  int64_t max_pass_tokens_;
  SlotCache cache_;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<StepRunner> make_device_runner(const Model& model, const RunnerOptions& options) {
  return std::make_unique<DeviceRunner>(model, options);
}

}  // namespace mortise
