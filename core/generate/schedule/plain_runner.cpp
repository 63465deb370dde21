// The plain path. Every step runs the model's plain layers on each whole sequence, and samples with doubles and a sort.
// It is slow on purpose: it is the reference implementation of the fast path, and serves models of other dtypes.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "generate/sample/shared_tokens.h"
#include "generate/schedule/runner.h"
#include "generate/schedule/runner_layers.h"
#include "model/layers/router.h"

namespace mortise {
namespace {

// libtorch's products add in another order for other shapes and numbers of threads.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { at::set_num_threads(before_); }

 private:
  int before_;
};

class PlainRunner final : public StepRunner {
 public:
  PlainRunner(const Model& model, const RunnerOptions& options)
      : model_(model),
        layers_(model, options.ranks),
        purpose_(options.purpose),
        records_(options.records_experts),
        deterministic_(options.deterministic) {}

  Result<> next_tokens(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) override {
    if (!deterministic_) return run(samples, out);
    const OneThread one_thread;
    for (size_t i = 0; i < samples.size(); ++i) TRY(run(samples.subspan(i, 1), out.subspan(i, 1)));
    return {};
  }

  void weights_changed(uint64_t /*state*/) override { layers_.forget(); }
  void free_caches() override { layers_.forget(); }
  std::string_view name() const override { return "plain"; }

 private:
  Result<> run(std::span<const std::unique_ptr<RunningSample>> samples, std::span<SampledToken> out) {
    std::vector<PackRow> rows;
    for (const std::unique_ptr<RunningSample>& sample : samples) {
      rows.push_back({sample->group->request.prompt_ids, sample->sequence.ids, -1});
    }
    PackOptions options;
    options.share_prefix = false;
    options.keep_last_token = true;
    options.vocab_size = model_.config().vocab_size;
    const PackedBatch batch = TRY(pack_rows(rows, options));
    try {
      const c10::InferenceMode inference;
      ForwardOptions forward;
      forward.path = LayerPath::kPlain;
      if (records_) {
        forward.routing = std::make_shared<RouterPass>();
        make_room(model_.config(), batch.num_tokens(), *forward.routing);
      }
      const at::Tensor hidden = layers_.hidden_states(batch, forward);
      if (records_) note_experts(batch, *forward.routing, samples);
      const std::shared_ptr<TensorRanks>& ranks = layers_.ranks();
      const TokenShare mine = token_share(out.size(), ranks.get());
      for (size_t i = mine.begin; i < mine.end; ++i) {
        const at::Tensor last = hidden.narrow(0, batch.last_index[i], 1);
        const at::Tensor logits = head_logits(last, layers_.head()).to(at::kFloat).contiguous();
        RunningSample& sample = *samples[i];
        const GenerateRequest& request = sample.group->request;
        const RngKey key = key_of(sample, purpose_);
        const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel()));
        out[i] = sample_plain(row, {&request.sampling, sample.edits(), unit_double(random_u64(key))});
        append_top_log_probs_plain(row, request.sampling, request.num_top_log_probs, sample.sequence.top);
      }
      if (ranks != nullptr) gather_tokens(*ranks, out);
    } catch (const std::exception& e) {
      return Error{ErrorKind::kInternal, std::string("libtorch failed: ") + e.what(), "generate", ""};
    }
    return layers_.status();
  }

  // The whole sequence passes the model with every token. Earlier tokens take what they took before.
  static void note_experts(const PackedBatch& batch, const RouterPass& pass,
                           std::span<const std::unique_ptr<RunningSample>> samples) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const PackedSegment& segment = batch.segments[i];
      std::vector<uint16_t> taken = experts_of(pass, segment.begin, segment.length);
      GenerateGroup& group = *samples[i]->group;
      const auto in_prompt = static_cast<std::ptrdiff_t>(taken.size()) / segment.length * group.num_prompt_ids();
      if (group.experts.empty()) group.experts.assign(taken.begin(), taken.begin() + in_prompt);
      samples[i]->sequence.experts.assign(taken.begin() + in_prompt, taken.end());
    }
  }

  const Model& model_;
  RunnerLayers layers_;
  RandomPurpose purpose_;
  bool records_;
  bool deterministic_;
};

}  // namespace

std::unique_ptr<StepRunner> make_plain_runner(const Model& model, const RunnerOptions& options) {
  return std::make_unique<PlainRunner>(model, options);
}

}  // namespace mortise
