// The path of a model on a device. A pass is one more token for each running sample, and pieces of the sequences that are new
// (chunked prefill), so running samples do not wait for new ones. It has at most max_batch_tokens tokens, but always all that
// run and some of what is new. Caches and the draw of tokens are in generate/device: by the kernels of core/cuda where they can
// be loaded, else by libtorch's operators.
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <optional>

#include "generate/device/device_cache.h"
#include "generate/device/device_sampler.h"
#include "generate/device/graphed_decode.h"
#include "generate/schedule/runner.h"
#include "generate/schedule/runner_layers.h"
#include "model/layers/router.h"
#include "model/tensor/torch_guard.h"

namespace mortise {
namespace {

class DeviceRunner final : public StepRunner {
 public:
  DeviceRunner(const Model& model, KvCache& kv, const RunnerOptions& options)
      : model_(model),
        kv_(kv),
        layers_(model, options.ranks),
        records_(options.records_experts),
        max_pass_tokens_(options.max_batch_tokens),
        kernels_(paged_kernels(model)),
        sampler_(layers_, options.purpose, kernels_) {
    if (kernels_ == nullptr) {
      cache_ = make_slot_cache(model, layers_.config());
      return;
    }
    auto paged = make_paged_cache(model, layers_.config(), *kernels_, kv_);
    // Graphs hold no collectives.
    const bool has_graphs = options.has_graphs && !records_ && layers_.ranks() == nullptr &&
                            GraphedDecode::serves(model.config(), 1, model.has_rounded_matrices());
    std::unique_ptr<StepGraphs> graphs = has_graphs ? open_step_graphs(model.device().device) : nullptr;
    if (graphs != nullptr) graphed_ = std::make_unique<GraphedDecode>(model, *paged, sampler_, std::move(graphs));
    cache_ = std::move(paged);
  }

  Result<> next_tokens(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) override {
    const auto pass = [&]() -> Result<> {
      const c10::InferenceMode inference;
      // Operators go to the device of their tensors, but our kernels to the thread's own.
      const c10::OptionalDeviceGuard own_device(model_.device().device);
      layers_.round_head();
      leave(samples);
      take_slots(samples);
      step(samples, out);
      return layers_.status();
    };
    Result<> done = guard_torch("sampling on " + model_.device().text, pass, MemoryUse::kSampling);
    if (done.ok()) return {};
    forget();               // a pass may have done a part of its work
    TRY(layers_.status());  // numbers behind a lost rank have no meaning: this is why the pass failed
    return done;
  }

  // Graphs stay: they read the weights where they are, and see for themselves if they move.
  void weights_changed(uint64_t /*state*/) override {
    drop_samples();
    layers_.forget();
  }
  void free_caches() override {
    forget();
    layers_.free();
    cache_->free();
  }
  std::string_view name() const override { return kernels_ == nullptr ? "device" : "device_kernels"; }

 private:
  // A sequence that enters: that of one sample, or the prompt of samples of a group that have no token yet.
  struct Entry {
    std::vector<int64_t> ids;
    std::vector<float*> prompt_pages;  // by kernels: the full pages of the prompt
    int64_t num_done = 0;              // tokens that passes have taken, or that were computed before
    std::vector<uint16_t> experts = {};

    [[nodiscard]] int64_t length() const { return static_cast<int64_t>(ids.size()); }
  };
  struct Slot {
    RunningSample* sample = nullptr;
    uint64_t number = 0;                // the sample's: a new one may have the address of one that has left
    std::shared_ptr<Entry> entry = {};  // null: all of the sequence has entered
    int64_t length = 0;                 // then: tokens with keys and values
    std::shared_ptr<const DeviceHistory> history = {};
  };
  // A pass that was started. Its tokens come later if the device draws them.
  struct Started {
    bool has_rows = false;
    std::vector<uint64_t> numbers = {};  // the samples that get tokens
    StartedDraws draws = {};
    std::vector<DrawnToken> drawn = {};  // by the host
  };
  // A pass that is being put together.
  struct Plan {
    DevicePass pass;
    PackedBatch batch;
    std::vector<int64_t> ids = {}, positions = {};     // ids: of the pieces
    std::vector<std::shared_ptr<Entry>> entries = {};  // the pieces'
    std::vector<size_t> draws = {};                    // slots that draw
    std::vector<int64_t> draw_rows = {};               // the row that each draws from
  };

  void drop_samples() {
    ahead_.reset();
    slots_.clear();
    entries_.clear();
    cache_->clear();
    kv_.forget_computed();
  }
  void forget() {
    drop_samples();
    if (graphed_ != nullptr) graphed_->forget();
  }

  // Frees the slots of samples that have left.
  void leave(std::span<const std::unique_ptr<RunningSample>> samples) {
    std::map<uint64_t, const RunningSample*> running;
    for (const std::unique_ptr<RunningSample>& sample : samples) running[sample->number] = sample.get();
    for (size_t i = 0; i < slots_.size();) {
      if (running.contains(slots_[i].number)) {
        ++i;
        continue;
      }
      cache_->remove_slot(static_cast<int64_t>(i));
      slots_[i] = slots_.back();
      slots_.pop_back();
    }
    std::erase_if(entries_, [&](const std::shared_ptr<Entry>& entry) { return slots_of(*entry).empty(); });
  }
  [[nodiscard]] std::vector<int64_t> slots_of(const Entry& entry) const {
    std::vector<int64_t> out;
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].entry.get() == &entry) out.push_back(static_cast<int64_t>(i));
    return out;
  }

  // Slots for samples that have none.
  void take_slots(std::span<const std::unique_ptr<RunningSample>> samples) {
    std::vector<std::vector<RunningSample*>> sequences;
    std::map<const GenerateGroup*, size_t> prompts;
    for (const std::unique_ptr<RunningSample>& sample : samples) {
      if (std::ranges::any_of(slots_, [&](const Slot& slot) { return slot.number == sample->number; })) continue;
      const bool is_fresh = sample->sequence.ids.empty();
      const size_t at =
          is_fresh ? prompts.try_emplace(sample->group, sequences.size()).first->second : sequences.size();
      if (at == sequences.size()) sequences.emplace_back();
      sequences[at].push_back(sample.get());
    }
    std::vector<NewSlots> all;
    for (const std::vector<RunningSample*>& sequence : sequences) all.push_back(new_slots(sequence));
    cache_->reserve(all);
    for (size_t i = 0; i < all.size(); ++i) take_slots_of(sequences[i], all[i]);
    int64_t longest = 0;
    for (const Slot& slot : slots_) longest = std::max(longest, slot.entry ? slot.entry->length() : slot.length);
    cache_->prepare(static_cast<int64_t>(slots_.size()), longest + 1);
  }
  [[nodiscard]] NewSlots new_slots(std::span<RunningSample* const> samples) const {
    const GenerateGroup& group = *samples[0]->group;
    const int64_t num_prompt_ids = group.num_prompt_ids();
    NewSlots out{static_cast<int64_t>(samples.size()), num_prompt_ids + std::ssize(samples[0]->sequence.ids),
                 num_prompt_ids + group.request.sampling.max_new_tokens};
    if (kernels_ == nullptr) return out;
    for (const RunningSample* const sample : samples) {
      std::vector<float*>& pages = out.pages.emplace_back(group.pages);
      pages.insert(pages.end(), sample->pages.begin(), sample->pages.end());
    }
    return out;
  }
  void take_slots_of(std::span<RunningSample* const> samples, const NewSlots& slots) {
    auto entry = std::make_shared<Entry>(Entry{samples[0]->group->request.prompt_ids, samples[0]->group->pages});
    entry->ids.insert(entry->ids.end(), samples[0]->sequence.ids.begin(), samples[0]->sequence.ids.end());
    cache_->add_slots(slots);
    for (RunningSample* const sample : samples) {
      slots_.push_back({sample, sample->number, entry});
      if (kernels_ != nullptr)
        slots_.back().history = device_history(*sample, model_.config().vocab_size, model_.device().device);
    }
    entries_.push_back(std::move(entry));
  }

  // With kernels the device does not wait for the host: the next pass is started before the tokens of this one are read. The
  // experts that tokens take go to their samples at once, so a pass ahead must not record any. What a pattern allows
  // depends on the tokens of this pass.
  void step(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) {
    Started now = ahead_ ? std::move(*ahead_) : start(nullptr);
    ahead_.reset();
    const bool is_guided =
        std::ranges::any_of(samples, [](const auto& one) { return one->guide.allowed() != nullptr; });
    if (kernels_ != nullptr && !records_ && !is_guided && layers_.status().ok()) {
      Started next = start(&now);
      if (next.has_rows) ahead_ = std::move(next);
    }
    std::vector<DrawnToken> drawn = now.drawn.empty() ? DeviceSampler::finish(now.draws) : std::move(now.drawn);
    std::map<uint64_t, DrawnToken> tokens;
    for (size_t i = 0; i < drawn.size(); ++i) tokens[now.numbers[i]] = std::move(drawn[i]);
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto found = tokens.find(samples[i]->number);
      out[i] = found == tokens.end() ? SampledToken{kNotDrawn, 0, 0} : found->second.token;
      if (found == tokens.end()) continue;
      std::vector<TokenLogProb>& top = samples[i]->sequence.top;
      top.insert(top.end(), found->second.top.begin(), found->second.top.end());
    }
  }

  // Starts a pass. `before`: one whose tokens the host has not read; null: none.
  Started start(const Started* before) {
    Plan plan;
    plan_tokens(before, plan);
    plan_pieces(plan);
    Started out;
    if (plan.positions.empty()) return out;
    out.has_rows = true;
    std::vector<DrawRow> rows;
    for (size_t i = 0; i < plan.draws.size(); ++i) {
      const Slot& slot = slots_[plan.draws[i]];
      const bool is_later = before != nullptr && i < plan.pass.slots.size();
      rows.push_back({slot.sample, slot.history.get(), is_later ? 1 : 0});
      out.numbers.push_back(slot.number);
    }
    if (kernels_ == nullptr || records_) {
      const at::Tensor hidden = compute(plan, before);
      if (!rows.empty()) out.drawn = sampler_.run(drawn_from(plan, hidden), rows);
    } else {
      out.draws = start_draws(plan, before, rows);
    }
    finish_pieces(plan);
    return out;
  }

  StartedDraws start_draws(Plan& plan, const Started* before, std::span<const DrawRow> rows) {
    const DrawInputs inputs = sampler_.inputs(rows);
    if (graphed_ != nullptr && GraphedDecode::serves(model_, plan.pass, inputs)) {
      StartedDraws out = graphed_->run(plan.pass, last_ids(plan.pass, before), plan.positions, inputs);
      for (const int64_t slot : plan.pass.slots) ++slots_[static_cast<size_t>(slot)].length;
      return out;
    }
    const at::Tensor hidden = compute(plan, before);
    if (rows.empty()) return {};
    return DeviceSampler::fetch(sampler_.draw(drawn_from(plan, hidden), inputs.on(hidden.device())), inputs);
  }

  // The rows of a pass that draw.
  static at::Tensor drawn_from(const Plan& plan, const at::Tensor& hidden_NH) {
    if (plan.pass.pieces.empty()) return hidden_NH;
    return hidden_NH.index_select(0, sent_to(hidden_NH.device(), at::tensor(plan.draw_rows, at::kLong)));
  }

  // One more token for each sample that may have another one.
  void plan_tokens(const Started* before, Plan& plan) const {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      const int64_t num_known = static_cast<int64_t>(slot.sample->sequence.ids.size()) + (before == nullptr ? 0 : 1);
      if (slot.entry != nullptr || num_known >= slot.sample->group->request.sampling.max_new_tokens) continue;
      const auto row = static_cast<int64_t>(plan.positions.size());
      plan.batch.segments.push_back({row, 1, -1, slot.length, 1});
      plan.positions.push_back(slot.length);
      plan.pass.slots.push_back(static_cast<int64_t>(i));
      plan.pass.longest = std::max(plan.pass.longest, slot.length);
      plan.draws.push_back(i);
      plan.draw_rows.push_back(row);
    }
  }

  // Tokens at the start of a sequence whose keys and values are in pages of its prompt already. Earlier passes wrote them, or
  // this one writes them before it reads them. The last token is computed in any case, for the hidden state behind it. If it
  // ends a full page, this writes its key and value again, the same numbers but for rounding. A token's experts are recorded
  // when it is computed, so that with R3 each sample of a group that begins later writes all of its prompt again.
  [[nodiscard]] int64_t num_computed(const Entry& entry) const {
    if (records_) return 0;
    const auto end =
        std::ranges::find_if(entry.prompt_pages, [&](const float* page) { return !kv_.is_computed(page); });
    return std::min((end - entry.prompt_pages.begin()) * kPageTokens, entry.length() - 1);
  }
  void mark_computed(const Entry& entry, int64_t num_done) const {
    const auto count = std::min<size_t>(static_cast<size_t>(num_done / kPageTokens), entry.prompt_pages.size());
    for (size_t i = 0; i < count; ++i) kv_.set_computed(entry.prompt_pages[i]);
  }

  // Fills the pass up. A quarter of it is for pieces even if many samples run, so that no slot stays empty for long.
  void plan_pieces(Plan& plan) const {
    int64_t room = std::max({int64_t{1}, max_pass_tokens_ / 4, max_pass_tokens_ - plan.pass.num_decoding()});
    for (const std::shared_ptr<Entry>& entry : entries_) {
      if (room == 0) break;
      if (entry->num_done == 0) entry->num_done = num_computed(*entry);
      const int64_t begin = entry->num_done, count = std::min(room, entry->length() - begin);
      room -= count;
      plan.batch.segments.push_back({static_cast<int64_t>(plan.positions.size()), count, -1, begin, 1});
      for (int64_t t = begin; t < begin + count; ++t) {
        plan.ids.push_back(entry->ids[static_cast<size_t>(t)]);
        plan.positions.push_back(t);
      }
      plan.pass.pieces.push_back({slots_of(*entry), entry->length(), begin, count});
      plan.entries.push_back(entry);
      mark_computed(*entry, begin + count);
      if (begin + count < entry->length()) continue;
      for (const int64_t slot : plan.pass.pieces.back().slots) {
        plan.draws.push_back(static_cast<size_t>(slot));
        plan.draw_rows.push_back(static_cast<int64_t>(plan.positions.size()) - 1);
      }
    }
  }

  // The hidden states of a pass.
  at::Tensor compute(Plan& plan, const Started* before) {
    const c10::Device device = model_.device().device;
    std::vector<at::Tensor> ids;
    if (!plan.pass.slots.empty()) ids.push_back(last_ids(plan.pass, before));
    if (!plan.ids.empty()) ids.push_back(sent_to(device, at::tensor(plan.ids, at::kLong)));
    plan.batch.token_ids_N = at::cat(ids, 0);
    plan.batch.positions_N = plan.pass.positions_N = sent_to(device, at::tensor(plan.positions, at::kLong));
    ForwardOptions options;
    cache_->read_by(plan.pass, options);
    if (records_) {
      options.routing = std::make_shared<RouterPass>();
      make_room(model_.config(), plan.batch.num_tokens(), *options.routing);
    }
    at::Tensor hidden = layers_.hidden_states(plan.batch, options);
    for (const int64_t slot : plan.pass.slots) ++slots_[static_cast<size_t>(slot)].length;
    if (records_) note_experts(plan, *options.routing);
    return hidden;
  }

  // The last token of each slot that decodes, where the model lies.
  [[nodiscard]] at::Tensor last_ids(const DevicePass& pass, const Started* before) const {
    const c10::Device device = model_.device().device;
    std::vector<int64_t> ids;
    if (before == nullptr) {
      for (const int64_t slot : pass.slots)
        ids.push_back(slots_[static_cast<size_t>(slot)].sample->sequence.ids.back());
      return sent_to(device, at::tensor(ids, at::kLong));
    }
    std::map<uint64_t, int64_t> places;
    for (size_t i = 0; i < before->numbers.size(); ++i) places[before->numbers[i]] = static_cast<int64_t>(i);
    for (const int64_t slot : pass.slots) ids.push_back(places.at(slots_[static_cast<size_t>(slot)].number));
    return before->draws.ids().index_select(0, sent_to(device, at::tensor(ids, at::kLong)));
  }

  void finish_pieces(const Plan& plan) {
    for (size_t i = 0; i < plan.entries.size(); ++i) {
      const std::shared_ptr<Entry>& entry = plan.entries[i];
      entry->num_done += plan.pass.pieces[i].count;
      if (entry->num_done < entry->length()) continue;
      for (const int64_t slot : plan.pass.pieces[i].slots) {
        slots_[static_cast<size_t>(slot)].entry.reset();
        slots_[static_cast<size_t>(slot)].length = entry->length();
      }
      std::erase(entries_, entry);
    }
  }

  // What the tokens of a pass took.
  void note_experts(const Plan& plan, const RouterPass& routing) const {
    int64_t row = 0;
    for (const int64_t slot : plan.pass.slots) {
      const std::vector<uint16_t> taken = experts_of(routing, row++, 1);
      std::vector<uint16_t>& all = slots_[static_cast<size_t>(slot)].sample->sequence.experts;
      all.insert(all.end(), taken.begin(), taken.end());
    }
    for (size_t i = 0; i < plan.entries.size(); ++i) {
      const DevicePiece& piece = plan.pass.pieces[i];
      const std::vector<uint16_t> taken = experts_of(routing, row, piece.count);
      std::vector<uint16_t>& all = plan.entries[i]->experts;
      all.insert(all.end(), taken.begin(), taken.end());
      row += piece.count;
      if (piece.begin + piece.count < piece.length) continue;
      GenerateGroup& group = *slots_[static_cast<size_t>(piece.slots[0])].sample->group;
      const auto in_prompt = static_cast<std::ptrdiff_t>(all.size()) / piece.length * group.num_prompt_ids();
      if (group.experts.empty()) group.experts.assign(all.begin(), all.begin() + in_prompt);
      for (const int64_t slot : piece.slots)
        slots_[static_cast<size_t>(slot)].sample->sequence.experts.assign(all.begin() + in_prompt, all.end());
    }
  }

  const Model& model_;
  KvCache& kv_;
  RunnerLayers layers_;
  bool records_;  // the experts that tokens take
  int64_t max_pass_tokens_;
  const DeviceKernels* kernels_;  // null: none
  DeviceSampler sampler_;
  std::unique_ptr<DeviceCache> cache_;
  std::unique_ptr<GraphedDecode> graphed_;  // null: no graphs
  std::vector<Slot> slots_;
  std::vector<std::shared_ptr<Entry>> entries_;  // in the order in which they came
  std::optional<Started> ahead_;
};

}  // namespace

std::unique_ptr<StepRunner> make_device_runner(const Model& model, KvCache& kv, const RunnerOptions& options) {
  return std::make_unique<DeviceRunner>(model, kv, options);
}

}  // namespace mortise
