// See engine.h.
#include "generate/engine.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "generate/device/device_cache.h"
#include "generate/schedule/runner_layers.h"

namespace mortise {
namespace {

// Steps of one poll with a time-out, if ranks sample together: their clocks differ, and they have to stop alike.
constexpr int64_t kStepsOfRanks = 8;

KvShape kv_shape(const ModelConfig& config) { return {config.num_layers, config.num_kv_heads, config.head_dim}; }
KvShape kv_shape(const Model& model, const EngineOptions& options) {
  return kv_shape(layers_here(model.config(), options.ranks.get()));
}

// Bytes of a page where the model lies. A device has keys and values as attention in training reads them, without padding.
int64_t page_bytes(const Model& model, const KvShape& shape) {
  if (!model.device().by_operators) return shape.page_bytes();
  const auto element =
      static_cast<int64_t>(c10::elementSize(model.has_rounded_matrices() ? at::kBFloat16 : model.dtype()));
  return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * KvShape::kPageTokens * element;
}
int64_t max_pages(const Model& model, const EngineOptions& options) {
  return std::max<int64_t>(1, options.kv_cache_bytes / page_bytes(model, kv_shape(model, options)));
}

bool has_device_pages(const Model& model) { return model.device().by_operators && paged_kernels(model) != nullptr; }

SchedulerOptions scheduler_options(const EngineOptions& options, const Model& model, const KvCache& kv) {
  SchedulerOptions out;
  out.max_num_seqs = options.max_num_seqs;
  out.joins_pages = has_device_pages(model);
  out.holds_pages = out.joins_pages || (options.path == GeneratePath::kFast && !model.device().by_operators);
  out.max_unused_prefix_pages = std::max<int64_t>(0, options.prefix_cache_bytes) / page_bytes(model, kv.shape());
  out.tokenizer = options.tokenizer;
  out.shares_prefixes = !options.records_experts;
  return out;
}

Error refuse(const GenerateRequest& request, std::string what, std::string next) {
  return {ErrorKind::kData, std::move(what), "generate: request " + std::to_string(request.request_id),
          std::move(next)};
}

Result<> check_sampling(const GenerateRequest& request) {
  const SamplingParams& s = request.sampling;
  if (s.temperature != 0.0 && !(s.temperature >= kLeastTemperature && s.temperature <= kMostTemperature)) {
    return refuse(request, "temperature must be 0, or from 1e-6 to 1e6", "0 is greedy, 1 the model's own distribution");
  }
  if (!(s.top_p > 0.0 && s.top_p <= 1.0))
    return refuse(request, "top_p must be above 0 and at most 1", "1 turns it off");
  if (!(s.min_p >= 0.0 && s.min_p <= 1.0)) return refuse(request, "min_p must be from 0 to 1", "0 turns it off");
  if (!(s.typical_p > 0.0 && s.typical_p <= 1.0))
    return refuse(request, "typical_p must be above 0 and at most 1", "1 turns it off");
  if (!(s.repetition_penalty >= kLeastPenalty && s.repetition_penalty <= kMostPenalty))
    return refuse(request, "repetition_penalty must be from 1e-6 to 1e6", "1 turns it off");
  for (const double penalty : {s.presence_penalty, s.frequency_penalty}) {
    if (!(std::abs(penalty) <= kMostPenalty))
      return refuse(request, "presence_penalty and frequency_penalty must be from -1e6 to 1e6", "0 turns them off");
  }
  if (request.num_top_log_probs < 0) return refuse(request, "num_top_log_probs must not be negative", "0: none");
  if (s.max_new_tokens < 1) return refuse(request, "max_new_tokens must be 1 or more", "raise it");
  if (request.num_samples < 1) return refuse(request, "num_samples must be 1 or more", "raise it");
  if (request.step < 0 || request.first_row_id < 0) {
    return refuse(request, "step and first_row_id must not be negative", "they are part of the random key");
  }
  return {};
}

// Stop ids, stop strings, bad words: in the vocabulary, and something is left to sample.
Result<> check_ends(const GenerateRequest& request, int64_t vocab_size, bool has_tokenizer) {
  const SamplingParams& s = request.sampling;
  const auto outside = [&](int64_t id) { return id < 0 || id >= vocab_size; };
  const std::string vocabulary = " is outside the vocabulary of " + std::to_string(vocab_size);
  std::set<int64_t> barred;
  for (const int64_t id : s.stop_ids) {
    if (outside(id)) return refuse(request, fmt::format("stop id {}{}", id, vocabulary), "correct the end ids");
    if (s.ignore_eos || s.min_new_tokens > 0) barred.insert(id);
  }
  for (const std::vector<int64_t>& word : s.bad_words) {
    if (word.empty()) return refuse(request, "a bad word has no ids", "leave it out");
    for (const int64_t id : word) {
      if (outside(id)) return refuse(request, fmt::format("id {} of a bad word{}", id, vocabulary), "correct it");
    }
    barred.insert(word.back());
  }
  if (static_cast<int64_t>(barred.size()) == vocab_size) {
    return refuse(request, "no token can be sampled: each is a blocked end id or ends a bad word",
                  "block fewer tokens");
  }
  if (s.is_guided() && s.ignore_eos)
    return refuse(request, "ignore_eos and a pattern cannot be used together", "remove one of them");
  if (s.stop_strings.empty()) return {};
  if (!has_tokenizer)
    return refuse(request, "stop strings need a tokenizer, but the engine has none", "give stop ids instead");
  if (s.ignore_eos) return refuse(request, "ignore_eos and stop strings cannot be used together", "remove one of them");
  if (std::ranges::any_of(s.stop_strings, &std::string::empty))
    return refuse(request, "a stop string is empty", "leave it out");
  return {};
}

// What a model on a device cannot do.
Result<> check_device_path(const EngineOptions& options) {
  if (options.weights == WeightFormat::kFloat32) return {};
  return Error{ErrorKind::kConfig, "a model on a device samples with the weights as they are, without a rounded copy",
               "rollout.dtype", "set it to auto"};
}

}  // namespace

GenerateEngine::GenerateEngine(const Model& model, const EngineOptions& options)
    : model_(model),
      options_(options),
      kv_(kv_shape(model, options), max_pages(model, options),
          has_device_pages(model) ? PageMemory::kOnDevice : PageMemory::kHere),
      guides_(options.tokenizer, model.config().vocab_size),
      scheduler_(kv_, scheduler_options(options, model, kv_)) {}

Result<std::unique_ptr<GenerateEngine>> GenerateEngine::create(const Model& model, const EngineOptions& options) {
  const bool by_operators = model.device().by_operators;
  const int64_t batch_tokens = options.max_batch_tokens.value_or(default_batch_tokens(by_operators));
  if (options.max_num_seqs < 1 || batch_tokens < 1 || options.kv_cache_bytes < 1 || options.max_pending_requests < 1 ||
      options.num_threads < 0) {
    return Error{ErrorKind::kConfig, "sizes of the generation engine must be 1 or more", "rollout",
                 "correct the setting"};
  }
  if (model.config().is_classifier) {
    return Error{ErrorKind::kConfig, "a sequence classifier has no vocabulary head to sample from", "rollout",
                 "name a causal language model"};
  }
  std::unique_ptr<GenerateEngine> engine(new GenerateEngine(model, options));
  const int threads = options.num_threads > 0 ? options.num_threads : at::get_num_threads();
  RunnerOptions runner{options.purpose, options.isa, threads, batch_tokens, options.shared_weights};
  runner.weights = options.weights;
  runner.deterministic = options.deterministic;
  runner.ranks = options.ranks;
  runner.keeps_forward = options.keeps_forward;
  runner.records_experts = options.records_experts && model.config().num_expert_layers() > 0;
  runner.has_graphs = options.has_graphs;
  if (options.path == GeneratePath::kPlain && options.weights != WeightFormat::kFloat32) {
    return Error{ErrorKind::kConfig, "the plain generation path has no bfloat16 weights", "rollout.dtype",
                 "remove rollout.dtype, or load the model as float32"};
  }
  if (by_operators) {
    TRY(check_device_path(options));
    engine->runner_ = make_device_runner(model, engine->kv_, runner);
  } else if (options.path == GeneratePath::kPlain) {
    engine->runner_ = make_plain_runner(model, runner);
  } else {
    engine->runner_ = TRY(make_fast_runner(model, engine->kv_, runner));
  }
  engine->fingerprint_ = engine->weights_fingerprint();
  engine->tell_weights_state();
  return engine;
}

// Place and in-place version of every parameter: a change behind our back must not leave us with stale copies.
uint64_t GenerateEngine::weights_fingerprint() const {
  uint64_t hash = 0;
  const bool has_part = model_.has_part_of(options_.ranks.get());
  // With a part of the layers, the whole embedding and head come and go.
  if (has_part)
    hash = reinterpret_cast<uintptr_t>(model_.weights().embedding_VH.storage().unsafeGetStorageImpl()->data());
  for (const NamedParameter& parameter : has_part ? model_.model_part()->parameters() : model_.parameters()) {
    const at::Tensor& t = parameter.tensor;
    const uint64_t version = t.is_inference() ? 0 : static_cast<uint64_t>(t._version());
    hash = hash * 0x9E3779B97F4A7C15ULL + reinterpret_cast<uintptr_t>(t.const_data_ptr()) + version;
  }
  return hash;
}

Result<> GenerateEngine::set_version(int64_t version) {
  if (!scheduler_.running().empty()) {
    return Error{
        ErrorKind::kConfig,
        fmt::format("the weights must not change while {} completions are unfinished", scheduler_.running().size()),
        "generate", "poll until they are finished, or abort them"};
  }
  version_ = version;
  fingerprint_ = weights_fingerprint();
  tell_weights_state();
  scheduler_.forget_prompts();
  return {};
}

// Engines that share packed weights agree on when they are stale by this number.
void GenerateEngine::tell_weights_state() {
  const uint64_t format = options_.weights == WeightFormat::kFloat32 ? 0 : 1;
  runner_->weights_changed((fingerprint_ * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(version_)) * 2 + format);
}

Result<> GenerateEngine::notice_changed_weights() {
  if (weights_fingerprint() == fingerprint_) return {};
  return set_version(version_);
}

Result<> GenerateEngine::check(const GenerateRequest& request) const {
  TRY(check_sampling(request));
  const ModelConfig& config = model_.config();
  const auto length = static_cast<int64_t>(request.prompt_ids.size());
  if (length == 0) return refuse(request, "the prompt is empty", "a prompt needs at least one token");
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = request.prompt_ids[static_cast<size_t>(i)];
    if (id < 0 || id >= config.vocab_size) {
      return refuse(request,
                    fmt::format("prompt token {} is {}, outside the vocabulary of {}", i, id, config.vocab_size),
                    "use the model's own tokenizer");
    }
  }
  TRY(check_ends(request, config.vocab_size, options_.tokenizer != nullptr));
  if (options_.ranks != nullptr && request.num_top_log_probs > 0)
    return refuse(request, "ranks that sample together tell the sampled tokens only", "ask for no top log-probs");
  if (const int64_t most = config.max_length(); request.sampling.max_new_tokens > most - length) {
    return refuse(
        request,
        fmt::format("{} prompt tokens and {} new ones exceed the model's {} positions (max_position_embeddings)",
                    length, request.sampling.max_new_tokens, most),
        "shorten the prompt or the response length");
  }
  const int64_t limit = config.rope_switch();
  if (limit > 0 && config.rope_length <= limit && request.sampling.max_new_tokens > limit - length) {
    return refuse(
        request,
        fmt::format(
            "{} prompt tokens and {} new ones exceed original_max_position_embeddings = {}, up to which this engine "
            "was made for sequences of longrope",
            length, request.sampling.max_new_tokens, limit),
        "tell the model that longer ones come (Model::set_rope_length), or shorten the response length");
  }
  if (const int64_t pages = Scheduler::pages_for(request, has_device_pages(model_)); pages > kv_.max_pages()) {
    return refuse(request,
                  fmt::format("one completion needs {} pages of KV cache, but rollout.kv_cache_mib allows {}", pages,
                              kv_.max_pages()),
                  "raise it");
  }
  return {};
}

// All of the layers, or this rank's part if the ranks sample together.
bool GenerateEngine::has_weights() const {
  return model_.is_whole() || (model_.has_own_weights() && model_.has_part_of(options_.ranks.get()));
}

// Null for a request without a pattern.
Result<std::shared_ptr<TokenGuide>> GenerateEngine::guide_of(const GenerateRequest& request) {
  if (!request.sampling.is_guided()) return std::shared_ptr<TokenGuide>();
  auto guide = guides_.get(request.sampling.regex, request.sampling.stop_ids);
  if (!guide.ok()) return refuse(request, guide.error().what, guide.error().next);
  return guide;
}

Result<uint64_t> GenerateEngine::submit(std::span<const GenerateRequest> requests) {
  if (!has_weights()) {
    return Error{
        ErrorKind::kConfig, "the weights lie on several ranks now, and only rollouts and rewards gather them",
        "generate",
        "set ranks.zero_stage to 2 or less and actor.tensor_model_parallel_size to 1, or sample during the rollout"};
  }
  std::vector<std::shared_ptr<TokenGuide>> guides;
  for (const GenerateRequest& request : requests) {
    TRY(check(request));
    guides.push_back(TRY(guide_of(request)));
  }
  const int64_t room = std::max<int64_t>(0, options_.max_pending_requests - scheduler_.num_waiting_requests());
  const size_t count = std::min(requests.size(), static_cast<size_t>(room));
  for (size_t i = 0; i < count; ++i) {
    GenerateRequest own = requests[i];
    own.guide = std::move(guides[i]);
    scheduler_.add(std::move(own));
  }
  return count;
}

Result<> GenerateEngine::step() {
  scheduler_.admit(version_);
  const auto samples = scheduler_.running();
  if (samples.empty()) {
    return Error{ErrorKind::kInternal, "requests wait, but none can start", "generate", "report this"};
  }
  tokens_.resize(samples.size());
  TRY(runner_->next_tokens(samples, tokens_));
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (std::isfinite(tokens_[i].log_prob)) continue;
    const Error error{
        ErrorKind::kNumerics, "the model gave a log-probability that is not finite",
        fmt::format("generate: request {}, sample {}, token {}", samples[i]->sequence.request_id,
                    samples[i]->sequence.sample_index, samples[i]->sequence.ids.size()),
        "the weights may have diverged, or the model's folder holds NaN: look into the run's metrics.jsonl, or "
        "into the folder"};
    return error;
  }
  for (const SampledToken& token : tokens_) num_generated_tokens_ += token.id == kNotDrawn ? 0 : 1;
  scheduler_.accept(tokens_);
  return {};
}

Result<uint64_t> GenerateEngine::poll(const Sink& sink, std::chrono::nanoseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  TRY(notice_changed_weights());
  std::deque<GeneratedSequence>& finished = scheduler_.finished();
  int64_t num_steps = 0;
  const auto is_over = [&] {
    if (timeout < timeout.zero() || num_steps == 0) return false;
    return options_.ranks != nullptr ? num_steps >= kStepsOfRanks : std::chrono::steady_clock::now() - start >= timeout;
  };
  while (true) {
    while (!finished.empty()) {
      const GeneratedSequence sequence = std::move(finished.front());
      finished.pop_front();
      if (!sink(sequence)) return scheduler_.outstanding();
    }
    if (!scheduler_.has_work() || timeout == timeout.zero()) break;
    if (is_over()) break;
    TRY(step());
    ++num_steps;
  }
  return scheduler_.outstanding();
}

void GenerateEngine::abort(int64_t request_id) { scheduler_.abort(request_id, version_); }

void GenerateEngine::free_caches() {
  runner_->free_caches();
  if (!scheduler_.running().empty()) return;
  scheduler_.forget_prompts();
  kv_.free_unused();
}

}  // namespace mortise
