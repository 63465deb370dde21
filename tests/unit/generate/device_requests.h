// Requests of every kind for tests of sampling by the code of a device, the comparison of what they get, and the
// tests that hold with and without kernels.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/golden_models.h"
#include "unit/generate/tiny_model.h"

namespace mortise {

inline void move_to_device(Model& model) { ASSERT_TRUE(model.move_to({.by_operators = true, .text = "the CPU"}).ok()); }

inline std::vector<GenerateRequest> mixed_requests(int64_t vocab_size, int64_t max_new_tokens) {
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < 6; ++i) {
    SamplingParams params;
    params.max_new_tokens = max_new_tokens - i;
    params.temperature = i % 3 == 0 ? 0.0 : 0.9;
    if (i == 2) params.top_p = 0.8;
    if (i == 4) params.repetition_penalty = 1.4;
    if (i == 5) params.stop_ids = {3, 7, 11, 19, 23, 42};
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t <= i * 4; ++t) prompt.push_back((t * 13 + i) % vocab_size);
    requests.push_back(make_request(i + 1, std::move(prompt), 1 + i % 4, params));
  }
  return requests;
}

inline void expect_same(const Sequences& got, const Sequences& want, float tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [key, sequence] : want) {
    const GeneratedSequence& own = got.at(key);
    ASSERT_EQ(own.ids, sequence.ids) << what << ": request " << key.first << " sample " << key.second;
    EXPECT_EQ(own.finish_reason, sequence.finish_reason) << what;
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      EXPECT_NEAR(own.log_prob[t], sequence.log_prob[t], tolerance) << what;
      if (!sequence.filtered_log_prob.empty()) {
        EXPECT_NEAR(own.filtered_log_prob[t], sequence.filtered_log_prob[t], tolerance) << what;
      }
    }
  }
}

// Norms by libtorch's operators since the counter was made, and the most rows that one had. One counter at a time.
class OperatorNorms {
 public:
  OperatorNorms()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&note).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
    most = count = 0;
  }
  OperatorNorms(const OperatorNorms&) = delete;
  OperatorNorms& operator=(const OperatorNorms&) = delete;
  ~OperatorNorms() { at::removeCallback(handle_); }
  static int64_t most_rows() { return most; }
  static int64_t calls() { return count; }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
    if (std::string_view(call.name()) != "aten::rsqrt") return nullptr;
    most = std::max(most, call.inputs()[0].toTensor().size(0));
    ++count;
    return nullptr;
  }
  static inline int64_t most = 0, count = 0;  // NOLINT: the callback is a function
  at::CallbackHandle handle_;
};

// Prompts of up to `longest` tokens, and each ends in another place of a page. The samples of a group share one.
inline std::vector<GenerateRequest> long_requests(int64_t vocab_size, int64_t longest) {
  std::vector<GenerateRequest> requests;
  for (const int64_t length : {longest, longest - 1, longest - 7, int64_t{6}, int64_t{5}}) {
    SamplingParams params;
    params.max_new_tokens = 5;
    params.temperature = 0.9;
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < length; ++t) prompt.push_back((t * 29 + length) % vocab_size);
    requests.push_back(make_request(length, std::move(prompt), 3, params));
  }
  return requests;
}

// Prompts that are longer than a pass enter in several, no pass is longer, and the tokens are those of the native engine.
// Norms: what counts the norms of the path. Each model has another length of a pass, or all of them.
template <class Norms>
void expect_long_prompts_enter_in_pieces(const std::string& path_name, bool has_all_lengths) {
  const std::vector<int64_t> lengths = {5, 16, 39};
  size_t num_models = 0;
  for (const char* name : {"qwen3_tied", "mistral_sliding", "gemma2", "gemma3_text", "gpt_oss"}) {
    auto model = Model::load(default_env(), test::golden_model(name));
    ASSERT_TRUE(model.ok()) << model.error().to_string();
    const std::vector<GenerateRequest> requests = long_requests(model->config().vocab_size, 40);
    const Sequences want = run_all(*make_engine(*model), requests);
    move_to_device(*model);
    EngineOptions options;
    options.max_num_seqs = 4;
    const std::span<const int64_t> own = std::span(lengths).subspan(num_models++ % lengths.size(), 1);
    for (const int64_t max_batch_tokens : has_all_lengths ? std::span<const int64_t>(lengths) : own) {
      options.max_batch_tokens = max_batch_tokens;
      auto engine = make_engine(*model, options);
      EXPECT_EQ(engine->path_name(), path_name);
      const Norms norms;
      expect_same(run_all(*engine, requests), want, 5e-5F, name);
      EXPECT_EQ(Norms::most_rows(), max_batch_tokens) << name;
    }
  }
}

// A running sample gets a token from each pass while the pieces of a long prompt enter in the same passes.
template <class Norms>
void expect_running_samples_do_not_wait() {
  constexpr int64_t kNormsOfAPass = 5;  // two layers and the last norm
  Model model = tiny_model();
  SamplingParams params;
  params.max_new_tokens = 20;
  params.temperature = 0.9;
  std::vector<int64_t> prompt;
  for (int64_t t = 0; t < 90; ++t) prompt.push_back((t * 29 + 5) % 300);
  const std::vector<GenerateRequest> requests = {make_request(1, {1, 20, 30}, 1, params),
                                                 make_request(2, std::move(prompt), 2, params)};
  const Sequences want = run_all(*make_engine(model), requests);
  move_to_device(model);
  EngineOptions options;
  options.max_batch_tokens = 5;
  auto engine = make_engine(model, options);
  Sequences got;
  const auto step = [&] {
    const auto keep = [&](const GeneratedSequence& sequence) {
      got[{sequence.request_id, sequence.sample_index}] = sequence;
      return true;
    };
    return engine->poll(keep, std::chrono::nanoseconds(1)).value();
  };
  const Norms norms;
  int64_t num_steps = 0;
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(engine->submit(std::span(requests).subspan(r, 1)).ok());
    step();
    ++num_steps;
  }
  for (; engine->num_generated_tokens() < 20; ++num_steps) step();
  EXPECT_EQ(num_steps, 20);  // the second prompt's pieces entered meanwhile, and its samples have no token yet
  EXPECT_GE(Norms::calls(), num_steps * kNormsOfAPass);
  EXPECT_LE(Norms::calls(), (num_steps + 1) * kNormsOfAPass);  // one pass may be ahead
  EXPECT_EQ(Norms::most_rows(), options.max_batch_tokens);
  while (step() > 0) ++num_steps;
  EXPECT_LE(num_steps, 20 + 23 + 20);
  expect_same(got, want, 5e-5F, "next to a long prompt");
}

// The log-probs of a sequence are those that a pass of training computes.
inline void expect_log_probs_of_training(const Model& model, const GenerateRequest& request,
                                         const GeneratedSequence& sequence, float tolerance) {
  const PackRow row{request.prompt_ids, sequence.ids, -1};
  const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = model.config().vocab_size});
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = model.forward_hidden(batch).index_select(0, batch.predict_index_R);
  const double temperature = request.sampling.greedy() ? 1.0 : request.sampling.temperature;
  const LogProbs want = head_log_prob(hidden, model.head(), batch.targets_R, temperature, false);
  for (size_t t = 0; t < sequence.ids.size(); ++t)
    EXPECT_NEAR(sequence.log_prob[t], want.log_prob_R.const_data_ptr<float>()[t], tolerance)
        << request.request_id << "/" << t;
}

// A moved model samples with the weights that it gets while its engine lives.
inline void expect_new_weights_are_seen() {
  Model model = tiny_model();
  const Model other = tiny_model(8);
  move_to_device(model);
  const std::vector<GenerateRequest> requests = mixed_requests(300, 10);
  auto engine = make_engine(model);
  const Sequences before = run_all(*engine, requests);
  model.copy_numbers(other);
  ASSERT_TRUE(engine->set_version(1).ok());
  const Sequences after = run_all(*engine, requests);
  expect_same(after, run_all(*make_engine(other), requests), 5e-5F, "new weights");
  EXPECT_NE(after.at({2, 0}).ids, before.at({2, 0}).ids);
}

inline void expect_bfloat16_log_probs_of_training(Model model) {
  move_to_device(model);
  const std::vector<GenerateRequest> requests = mixed_requests(model.config().vocab_size, 9);
  for (const int64_t max_batch_tokens : {256, 8}) {
    EngineOptions options;
    options.max_batch_tokens = max_batch_tokens;  // prompts cut into several passes
    for (const auto& [key, sequence] : run_all(*make_engine(model, options), requests))
      expect_log_probs_of_training(model, requests[static_cast<size_t>(key.first - 1)], sequence, 0.03F);
  }
}

}  // namespace mortise
