// The fast path: prompts of newly admitted groups in packed passes, then one pass over all samples that have a token,
// then head and sampling of all of them together.
#include <algorithm>
#include <new>
#include <numeric>
#include <unordered_map>

#include "foundation/batch/expert_choices.h"
#include "generate/decode/forward.h"
#include "generate/decode/packed_weights.h"
#include "generate/sample/head_sampler.h"
#include "generate/sample/shared_tokens.h"
#include "generate/schedule/runner.h"
#include "generate/schedule/runner_layers.h"

namespace mortise {
namespace {

constexpr int64_t kMostPassTokens = 256;  // bounds the activations

class FastRunner final : public StepRunner {
 public:
  FastRunner(const Model& model, KvCache& kv, const Kernels& kernels, const RunnerOptions& options)
      : model_(model),
        kv_(kv),
        purpose_(options.purpose),
        width_(options.records_experts ? model.config().num_expert_layers() * model.config().moe.experts_per_token : 0),
        format_(options.weights),
        shared_(options.shared_weights ? options.shared_weights : std::make_shared<SharedWeights>()),
        weights_(shared_->weights),
        store_(options.keeps_forward ? model.sampled_forward() : nullptr),
        ranks_(options.ranks),
        team_(std::max(1, options.num_threads), Team::Placement::kOwn),
        forward_(layers_here(model.config(), options.ranks.get()), kernels,
                 std::clamp<int64_t>(options.max_batch_tokens, 8, kMostPassTokens), options.ranks),
        head_(model.config().hidden_size, model.config().vocab_size, model.config().final_softcap, kernels),
        kernels_(kernels) {}

  Result<> next_tokens(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) override {
    const std::lock_guard lock(shared_->mutex);
    try {
      pack_weights();
      TRY(take_slots(samples));
      prefill(samples);
      head_.reserve_inputs(static_cast<int64_t>(samples.size()));
      decode(samples);
      sample(out);
    } catch (const std::bad_alloc&) {  // any member of the team may throw it
      return Error{ErrorKind::kInternal, "sampling needs more memory than the machine has", "generate",
                   "lower rollout.max_num_seqs or rollout.kv_cache_mib"};
    }
    return ranks_ == nullptr ? Result<>() : ranks_->status();
  }

  void weights_changed(uint64_t state) override { state_ = state; }
  void free_caches() override {
    const std::lock_guard lock(shared_->mutex);
    weights_.free();
  }
  std::string_view name() const override { return kernels_.name; }

 private:
  void pack_weights() {
    if (weights_.ready() && shared_->state == state_) return;
    if (ranks_ == nullptr) {
      weights_.pack(model_.config(), model_.weights(), format_, team_);
    } else {
      const std::shared_ptr<const ModelPart> part = model_.part_of_layers(ranks_);
      weights_.pack(part->config(), part->weights_to_sample(), format_, team_, /*adds_biases=*/ranks_->rank() == 0);
    }
    shared_->state = state_;
    ++shared_->num_packs;
  }

  // Places for the numbers of samples that start now: prompt, sample, sample ... in order of admission, as updates pack
  // them.
  Result<> take_slots(std::span<const std::unique_ptr<RunningSample>> samples) {
    if (store_ == nullptr) return {};
    if (store_version_ != store_->version()) page_slots_.clear();
    store_version_ = store_->version();
    for (const std::unique_ptr<RunningSample>& sample : samples) {
      GenerateGroup& group = *sample->group;
      const GenerateRequest& request = group.request;
      if (!sample->sequence.ids.empty() || sample->first_slot >= 0 || !store_->takes(request.seed, request.step))
        continue;
      const int64_t most = request.sampling.max_new_tokens - 1;
      if (group.slots == nullptr) TRY(store_->group_slots() > 0 ? take_group_slots(group) : take_prompt_slots(group));
      const int64_t index = sample->sequence.sample_index;
      sample->first_slot =
          store_->group_slots() > 0 ? group.first_slot + group.num_prompt_ids() + index * most : TRY(take(most));
      store_->put_row(request.first_row_id + index, group.slots, sample->first_slot);
    }
    return {};
  }

  // Prompt, sample, sample ... in the slots of one group. It shares none with other prompts, because each may be dropped.
  Result<> take_group_slots(GenerateGroup& group) {
    const GenerateRequest& request = group.request;
    const int64_t length = group.num_prompt_ids();
    const bool fits = length + request.num_samples * (request.sampling.max_new_tokens - 1) <= store_->group_slots();
    group.first_slot = TRY(take(fits ? store_->group_slots() : INT64_MAX));
    auto slots = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(length));
    std::iota(slots->begin(), slots->end(), group.first_slot);
    group.slots = std::move(slots);
    return {};
  }

  // Tokens of known pages have slots already if a prompt of this step has computed them.
  Result<> take_prompt_slots(GenerateGroup& group) {
    const auto length = group.num_prompt_ids();
    auto slots = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(length), -1);
    int64_t num_new = length;
    for (int64_t i = 0; i < group.num_known; ++i) {
      const auto found = page_slots_.find(group.pages[static_cast<size_t>(i / kPageTokens)]);
      if (found == page_slots_.end()) continue;
      (*slots)[static_cast<size_t>(i)] = found->second + i % kPageTokens;
      --num_new;
    }
    int64_t next = group.first_slot = TRY(take(num_new));
    for (int64_t i = 0; i < length; ++i) {
      int64_t& slot = (*slots)[static_cast<size_t>(i)];
      if (slot >= 0) continue;
      slot = next++;
      if (i % kPageTokens == 0) page_slots_[group.pages[static_cast<size_t>(i / kPageTokens)]] = slot;
    }
    group.slots = std::move(slots);
    return {};
  }

  Result<int64_t> take(int64_t count) {
    const std::optional<int64_t> first = store_->take(count);
    if (first) return *first;
    return Error{ErrorKind::kInternal,
                 "the rows of the step are longer than the memory for what sampling keeps of them",
                 "rollout.reuse_forward_mib", "report this, and set rollout.reuse_forward_mib to 0"};
  }

  void flush() {
    forward_.run(weights_, rows_, kv_.shape(), team_, store_);
    rows_.clear();
  }

  void push(const PassRow& row) {
    rows_.push_back(row);
    if (row.slot >= 0) store_->set_token(row.slot, row.token);
    if (static_cast<int64_t>(rows_.size()) == forward_.max_rows()) flush();
  }

  void prefill(std::span<const std::unique_ptr<RunningSample>> samples) {
    rows_.clear();
    for (const std::unique_ptr<RunningSample>& sample : samples) {
      GenerateGroup& group = *sample->group;
      if (group.prefilled) continue;
      group.prefilled = true;
      group.last_hidden.resize(static_cast<size_t>(model_.config().hidden_size));
      const int64_t length = group.num_prompt_ids();
      group.experts.assign(static_cast<size_t>(length * width_), kNoExpert);
      forward_.reserve_positions(length + group.request.sampling.max_new_tokens);
      // Known pages are of prompts admitted before: computed, or in an earlier row of these passes. What has no slot yet
      // is computed once more, with the same bits.
      for (int64_t i = group.slots == nullptr ? group.num_known : 0; i < length; ++i) {
        PassRow row;
        if (group.slots != nullptr) row.slot = (*group.slots)[static_cast<size_t>(i)];
        if (row.slot < group.first_slot && i < group.num_known) continue;
        row.token = group.request.prompt_ids[static_cast<size_t>(i)];
        row.position = i;
        row.own_pages = group.pages.data();
        row.own_length = i + 1;
        row.hidden = i + 1 == length ? group.last_hidden.data() : nullptr;
        if (width_ > 0) row.experts = group.experts.data() + i * width_;
        push(row);
      }
    }
    if (!rows_.empty()) flush();
  }

  // Rows of the head: samples with a token come from the pass; fresh ones share the row of their prompt.
  void decode(std::span<const std::unique_ptr<RunningSample>> samples) {
    jobs_.clear();
    int64_t num_inputs = 0;
    const GenerateGroup* last_fresh = nullptr;
    for (const std::unique_ptr<RunningSample>& sample : samples) {
      const GenerateGroup& group = *sample->group;
      GeneratedSequence& sequence = sample->sequence;
      const auto count = static_cast<int64_t>(sequence.ids.size());
      if (count > 0) {
        float* const hidden = head_.input(num_inputs++);
        push(token_row(*sample, count, hidden));
      } else if (last_fresh != &group) {
        std::ranges::copy(group.last_hidden, head_.input(num_inputs++));
        last_fresh = &group;
      }
      jobs_.push_back({num_inputs - 1, &group.request.sampling, key_of(*sample, purpose_), sample->edits(),
                       group.request.num_top_log_probs, &sequence.top});
    }
    if (!rows_.empty()) flush();
  }

  // Ranks that share the layers also share the rows of the head.
  void sample(std::span<SampledToken> out) {
    if (ranks_ == nullptr) return head_.run(weights_.head, jobs_, out, team_);
    const TokenShare mine = token_share(jobs_.size(), ranks_->rank(), ranks_->size());
    if (mine.size() > 0) {
      const std::span<SampleJob> jobs = std::span(jobs_).subspan(mine.begin, mine.size());
      const int64_t first = jobs.front().row;
      head_.move_to_front(first, jobs.back().row - first + 1);
      for (SampleJob& job : jobs) job.row -= first;
      head_.run(weights_.head, jobs, out.subspan(mine.begin, mine.size()), team_);
    }
    gather_tokens(*ranks_, out);
  }

  PassRow token_row(RunningSample& sample, int64_t count, float* hidden) {
    if (static_cast<int64_t>(sample.pages.size()) < KvShape::pages_for(count)) sample.pages.push_back(kv_.take());
    const int64_t prompt = sample.group->num_prompt_ids();
    std::vector<uint16_t>& experts = sample.sequence.experts;
    experts.resize(static_cast<size_t>(count * width_), kNoExpert);
    return {sample.sequence.ids.back(),
            prompt + count - 1,
            sample.group->pages.data(),
            prompt,
            sample.pages.data(),
            count,
            hidden,
            width_ > 0 ? experts.data() + (count - 1) * width_ : nullptr,
            sample.first_slot < 0 ? -1 : sample.first_slot + count - 1};
  }

  const Model& model_;
  KvCache& kv_;
  RandomPurpose purpose_;
  int64_t width_;  // experts that are recorded of a token
  WeightFormat format_;
  std::shared_ptr<SharedWeights> shared_;
  PackedWeights& weights_;
  uint64_t state_ = 0;                                    // which weights of the model it has
  SampledForward* store_;                                 // null: nothing is kept
  int64_t store_version_ = 0;                             // that page_slots_ is of
  std::unordered_map<const float*, int64_t> page_slots_;  // the slot of a page's first token
  std::shared_ptr<TensorRanks> ranks_;
  Team team_;
  DecodeForward forward_;
  HeadSampler head_;
  const Kernels& kernels_;
  std::vector<PassRow> rows_;
  std::vector<SampleJob> jobs_;
};

}  // namespace

Result<std::unique_ptr<StepRunner>> make_fast_runner(const Model& model, KvCache& kv, const RunnerOptions& options) {
  const Kernels* const kernels = find_kernels(options.isa);
  if (kernels == nullptr) {
    return Error{ErrorKind::kConfig, "this CPU does not have the instruction set of rollout.kernels", "rollout.kernels",
                 "use auto, or " + std::string(find_kernels(Isa::kAvx2) != nullptr ? "avx2" : "base")};
  }
  if (model.dtype() != at::kFloat) {
    return Error{ErrorKind::kConfig, "the fast generation path needs a float32 model", "rollout.kernels",
                 "load the model as float32, or set rollout.kernels=plain"};
  }
  return std::unique_ptr<StepRunner>(std::make_unique<FastRunner>(model, kv, *kernels, options));
}

}  // namespace mortise
