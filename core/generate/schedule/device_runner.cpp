// The path of a model on a device. A step is one pass of the samples' last tokens through the model's own layers, and passes
// over the sequences that are new, of at most max_batch_tokens. A longer sequence enters piece by piece, and each piece reads
// the keys and values of the ones before it from the cache. Caches and the draw of tokens are in generate/device: by the
// kernels of core/cuda where they can be loaded, else by libtorch's operators.
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <optional>

#include "generate/device/device_cache.h"
#include "generate/device/device_sampler.h"
#include "generate/schedule/runner.h"
#include "model/layers/router.h"
#include "model/layers/segment_attention.h"
#include "model/tensor/torch_guard.h"

namespace mortise {
namespace {

class DeviceRunner final : public StepRunner {
 public:
  DeviceRunner(const Model& model, const RunnerOptions& options)
      : model_(model),
        records_(options.records_experts),
        max_pass_tokens_(options.max_batch_tokens),
        kernels_(serves_kernels(model) ? device_kernels(model.device().device) : nullptr),
        cache_(kernels_ == nullptr ? make_slot_cache(model) : make_paged_cache(model, *kernels_)),
        sampler_(model, options.purpose, kernels_) {}

  Result<> next_tokens(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) override {
    return guard_torch("sampling on " + model_.device().text, [&]() -> Result<> {
      const c10::InferenceMode inference;
      // Operators go to the device of their tensors, but our kernels to the thread's own.
      const c10::OptionalDeviceGuard own_device(model_.device().device);
      leave(samples);
      int64_t longest = 0;
      for (const std::unique_ptr<RunningSample>& sample : samples) longest = std::max(longest, length_of(*sample));
      cache_->prepare(static_cast<int64_t>(samples.size()), longest + 1);
      if (runs_ahead()) return next_tokens_ahead(samples, out);
      std::vector<at::Tensor> hidden;
      if (!slots_.empty()) hidden.push_back(decode(last_ids()));
      const at::Tensor entered = TRY(enter_new(samples));
      if (entered.defined()) hidden.push_back(entered);
      sample_rows(at::cat(hidden, 0), samples, out);
      return {};
    });
  }

  void weights_changed(uint64_t /*state*/) override {
    forget_ahead();
    slots_.clear();
    cache_->clear();
  }
  void free_caches() override {
    forget_ahead();
    slots_.clear();
    cache_->free();
  }
  std::string_view name() const override { return kernels_ == nullptr ? "device" : "device_kernels"; }

 private:
  struct Slot {
    RunningSample* sample = nullptr;
    int64_t length = 0;  // tokens with keys and values
    std::shared_ptr<const DeviceHistory> history = {};
    bool is_ahead = false;  // ahead_ has its next token

    [[nodiscard]] DrawRow draw() const { return {sample, history.get()}; }
  };
  // A step that was started before the host had the tokens that it continues.
  struct Ahead {
    std::vector<const RunningSample*> rows;
    StartedDraws draws;
  };
  // A sequence without a slot. Samples of a group that have no token yet share the pass of their prompt.
  struct NewRow {
    PackRow row;
    int64_t length = 0;
    std::vector<RunningSample*> samples;
  };

  static int64_t length_of(const RunningSample& sample) {
    return sample.group->num_prompt_ids() + static_cast<int64_t>(sample.sequence.ids.size());
  }
  // Whether a slot holds all of a sample but its last token, or with a step ahead all of it. A new sample may have the
  // address of one that has left, but then it has fewer tokens.
  static bool continues(const Slot& slot, const RunningSample& sample) {
    const int64_t length = length_of(sample) - (slot.is_ahead ? 0 : 1);
    return slot.sample == &sample && !sample.sequence.ids.empty() && slot.length == length;
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
      cache_->remove_slot(static_cast<int64_t>(i));
      slots_[i] = slots_.back();
      slots_.pop_back();
    }
  }

  // Whether a step can be started before the host has the tokens of the one before it.
  [[nodiscard]] bool runs_ahead() const { return kernels_ != nullptr && !records_; }
  void forget_ahead() {
    ahead_.reset();
    for (Slot& slot : slots_) slot.is_ahead = false;
  }

  // The device never waits for the host: the next step is started before the tokens of this one are read.
  Result<> next_tokens_ahead(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) {
    Ahead now;
    if (ahead_) {
      now = std::move(*ahead_);
    } else if (!slots_.empty()) {
      now = started(decode(last_ids()), slots_, /*num_later=*/0);
    }
    forget_ahead();
    const size_t num_old = slots_.size();
    const at::Tensor entered = TRY(enter_new(samples));
    Ahead fresh;
    if (entered.defined()) fresh = started(entered, std::span(slots_).subspan(num_old), /*num_later=*/0);
    if (std::ranges::any_of(slots_, [](const Slot& slot) { return wants_more(*slot.sample); }))
      start_ahead(now, fresh, num_old);
    std::map<const RunningSample*, DrawnToken> tokens;
    for (Ahead* const part : {&now, &fresh}) {
      std::vector<DrawnToken> drawn = DeviceSampler::finish(part->draws);
      for (size_t i = 0; i < drawn.size(); ++i) tokens[part->rows[i]] = std::move(drawn[i]);
    }
    give(tokens, samples, out);
    return {};
  }
  // The draws of these slots, started.
  [[nodiscard]] Ahead started(const at::Tensor& hidden_NH, std::span<const Slot> slots, int64_t num_later) const {
    Ahead out;
    std::vector<DrawRow> draws;
    for (const Slot& slot : slots) {
      out.rows.push_back(slot.sample);
      draws.push_back(slot.draw());
    }
    out.draws = sampler_.start(hidden_NH, draws, num_later);
    return out;
  }
  static void give(const std::map<const RunningSample*, DrawnToken>& tokens,
                   std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const DrawnToken& drawn = tokens.at(samples[i].get());
      out[i] = drawn.token;
      std::vector<TokenLogProb>& top = samples[i]->sequence.top;
      top.insert(top.end(), drawn.top.begin(), drawn.top.end());
    }
  }
  // Whether a sample may have another token after the one that is drawn now.
  static bool wants_more(const RunningSample& sample) {
    return static_cast<int64_t>(sample.sequence.ids.size()) + 1 < sample.group->request.sampling.max_new_tokens;
  }

  // `now` has the tokens of the first slots (and of samples that have left), `fresh` those of the others.
  void start_ahead(const Ahead& now, const Ahead& fresh, size_t num_old) {
    std::map<const RunningSample*, int64_t> places;
    for (size_t i = 0; i < now.rows.size(); ++i) places[now.rows[i]] = static_cast<int64_t>(i);
    std::vector<int64_t> order;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const auto behind = static_cast<int64_t>(now.rows.size() + i - num_old);
      order.push_back(i < num_old ? places.at(slots_[i].sample) : behind);
    }
    std::vector<at::Tensor> ids;
    for (const Ahead* const part : {&now, &fresh})
      if (!part->rows.empty()) ids.push_back(part->draws.ids());
    const at::Tensor all = at::cat(ids, 0);
    const at::Tensor own = all.index_select(0, sent_to(all.device(), at::tensor(order, at::kLong)));
    ahead_ = started(decode(own), slots_, /*num_later=*/1);
    for (Slot& slot : slots_) slot.is_ahead = true;
  }

  // The last token of every slot, where the model lies.
  [[nodiscard]] at::Tensor last_ids() const {
    std::vector<int64_t> ids;
    for (const Slot& slot : slots_) ids.push_back(slot.sample->sequence.ids.back());
    return sent_to(model_.device().device, at::tensor(ids, at::kLong));
  }

  // [slots, H] of one more token in every slot.
  at::Tensor decode(const at::Tensor& ids_N) {
    PackedBatch batch;
    std::vector<int64_t> lengths;
    for (Slot& slot : slots_) {
      batch.segments.push_back({static_cast<int64_t>(lengths.size()), 1, -1, slot.length, 1});
      lengths.push_back(slot.length++);
    }
    batch.token_ids_N = ids_N;
    batch.positions_N = sent_to(ids_N.device(), at::tensor(lengths, at::kLong));
    const int64_t longest = *std::ranges::max_element(lengths);
    ForwardOptions options;
    cache_->read_by(batch.positions_N, longest, options);
    if (records_) options.routing = recording(batch);
    const at::Tensor hidden = model_.forward_hidden(batch, options);
    for (size_t i = 0; i < slots_.size() && records_; ++i) {
      const std::vector<uint16_t> taken = experts_of(*options.routing, static_cast<int64_t>(i), 1);
      std::vector<uint16_t>& all = slots_[i].sample->sequence.experts;
      all.insert(all.end(), taken.begin(), taken.end());
    }
    return hidden;
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

  // The hidden states of the last tokens of samples that have no slot yet; undefined if there are none.
  Result<at::Tensor> enter_new(std::span<const std::unique_ptr<RunningSample>> samples) {
    const std::vector<NewRow> rows = new_rows(samples);
    std::vector<at::Tensor> hidden;
    for (std::span<const NewRow> left = rows; !left.empty();) {
      const size_t count = rows_of_pass(left);
      hidden.push_back(left[0].length > max_pass_tokens_ ? TRY(enter_in_pieces(left[0]))
                                                         : TRY(enter(left.first(count))));
      left = left.subspan(count);
    }
    return hidden.empty() ? at::Tensor() : at::cat(hidden, 0);
  }

  // Gives the samples of these rows slots in one pass. Returns the hidden states of their last tokens.
  Result<at::Tensor> enter(std::span<const NewRow> rows) {
    std::vector<PackRow> pass;
    for (const NewRow& row : rows) pass.push_back(row.row);
    const PackedBatch batch = TRY(
        pack_rows(pass, {.share_prefix = false, .keep_last_token = true, .vocab_size = model_.config().vocab_size}));
    std::vector<NewSlots> slots;
    std::vector<int64_t> last;
    for (size_t r = 0; r < rows.size(); ++r) {
      slots.push_back(take_slots(rows[r]));
      last.insert(last.end(), rows[r].samples.size(), batch.last_index[r]);
    }
    ForwardOptions options;
    options.on_qkv = [&](int64_t layer, const at::Tensor& qkv) {
      for (size_t r = 0; r < rows.size(); ++r) {
        const PackedSegment& segment = batch.segments[r];
        cache_->fill(layer, slots[r], /*begin=*/0, qkv.narrow(0, segment.begin, segment.length));
      }
    };
    if (records_) options.routing = recording(batch);
    const at::Tensor all = model_.forward_hidden(batch, options);
    for (size_t r = 0; r < rows.size() && records_; ++r)
      note_experts(experts_of(*options.routing, batch.segments[r].begin, rows[r].length), rows[r]);
    return all.index_select(0, sent_to(all.device(), at::tensor(last, at::kLong)));
  }

  NewSlots take_slots(const NewRow& row) {
    const NewSlots out{static_cast<int64_t>(slots_.size()), static_cast<int64_t>(row.samples.size()), row.length};
    const GenerateGroup& group = *row.samples.front()->group;
    cache_->add_slots(out.count, out.length, group.num_prompt_ids() + group.request.sampling.max_new_tokens);
    for (RunningSample* const sample : row.samples) {
      slots_.push_back({sample, row.length});
      if (kernels_ != nullptr)
        slots_.back().history = device_history(*sample, model_.config().vocab_size, model_.device().device);
    }
    return out;
  }

  // The same for one long row, in passes of at most max_pass_tokens_.
  Result<at::Tensor> enter_in_pieces(const NewRow& row) {
    const PackedBatch whole = TRY(pack_rows(
        {&row.row, 1}, {.share_prefix = false, .keep_last_token = true, .vocab_size = model_.config().vocab_size}));
    const NewSlots slots = take_slots(row);
    std::vector<uint16_t> experts;
    at::Tensor hidden;
    for (int64_t begin = 0; begin < row.length; begin += max_pass_tokens_) {
      PackedBatch piece;
      const int64_t count = std::min(max_pass_tokens_, row.length - begin);
      piece.segments.push_back({0, count, -1, begin, 1});
      piece.token_ids_N = whole.token_ids_N.narrow(0, begin, count);
      piece.positions_N = whole.positions_N.narrow(0, begin, count);
      ForwardOptions options;
      options.attend = [&](int64_t layer, const at::Tensor& qkv, const AttentionShape& shape) {
        cache_->fill(layer, slots, begin, qkv);
        return attention_of_piece(layer, slots.first, begin, qkv, shape);
      };
      if (records_) options.routing = recording(piece);
      hidden = model_.forward_hidden(piece, options);
      if (!records_) continue;
      const std::vector<uint16_t> taken = experts_of(*options.routing, 0, count);
      experts.insert(experts.end(), taken.begin(), taken.end());
    }
    if (records_) note_experts(experts, row);
    return hidden.narrow(0, hidden.size(0) - 1, 1).expand({slots.count, hidden.size(1)});
  }

  // The cache has the tokens of the piece already.
  at::Tensor attention_of_piece(int64_t layer, int64_t slot, int64_t begin, const at::Tensor& qkv_LQ,
                                const AttentionShape& shape) {
    const int64_t count = qkv_LQ.size(0), width = shape.num_heads * shape.head_dim;
    const auto [keys, values] = cache_->read(layer, slot, begin + count);
    const at::Tensor q = qkv_LQ.narrow(1, 0, width).reshape({count, shape.num_heads, shape.head_dim});
    return segment_attention(q, keys.to(q.scalar_type()), values.to(q.scalar_type()), {{count}, {begin + count}}, shape)
        .reshape({count, width});
  }

  [[nodiscard]] std::shared_ptr<RouterPass> recording(const PackedBatch& batch) const {
    auto pass = std::make_shared<RouterPass>();
    make_room(model_.config(), batch.num_tokens(), *pass);
    return pass;
  }
  // What the tokens of a new sequence took.
  static void note_experts(const std::vector<uint16_t>& taken, const NewRow& row) {
    GenerateGroup& group = *row.samples.front()->group;
    const auto in_prompt = static_cast<std::ptrdiff_t>(taken.size()) / row.length * group.num_prompt_ids();
    if (group.experts.empty()) group.experts.assign(taken.begin(), taken.begin() + in_prompt);
    for (RunningSample* const sample : row.samples)
      sample->sequence.experts.assign(taken.begin() + in_prompt, taken.end());
  }

  // `hidden` is in the order of the slots.
  void sample_rows(const at::Tensor& hidden, std::span<const std::unique_ptr<RunningSample>> samples,
                   std::span<SampledToken> out) const {
    std::vector<DrawRow> rows;
    for (const Slot& slot : slots_) rows.push_back(slot.draw());
    std::vector<DrawnToken> drawn = sampler_.run(hidden, rows);
    std::map<const RunningSample*, DrawnToken> tokens;
    for (size_t i = 0; i < rows.size(); ++i) tokens[rows[i].sample] = std::move(drawn[i]);
    give(tokens, samples, out);
  }

  const Model& model_;
  bool records_;  // the experts that tokens take
  int64_t max_pass_tokens_;
  const DeviceKernels* kernels_;  // null: none
  std::unique_ptr<DeviceCache> cache_;
  DeviceSampler sampler_;
  std::vector<Slot> slots_;
  std::optional<Ahead> ahead_;
};

}  // namespace

std::unique_ptr<StepRunner> make_device_runner(const Model& model, const RunnerOptions& options) {
  return std::make_unique<DeviceRunner>(model, options);
}

}  // namespace mortise
