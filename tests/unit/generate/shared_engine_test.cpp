// Ranks that sample together (EngineOptions::ranks): each has its part of the layers and of the KV cache, and all get
// the tokens of one rank. Every kind of layer that can be split, more ranks than key-value heads, models whose layers are
// split and whole ones, changed weights, and what is refused.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "generate/extension.h"
#include "learn/update/rank_share.h"
#include "plugin/host/host_services.h"
#include "unit/generate/shared_engine.h"

namespace mortise {
namespace {

using test::on_ranks;

TEST(SharedEngine, Float32TokensAreThoseOfOneRank) {
  for (const auto& [name, config] : layer_kinds(kVocab)) {
    SCOPED_TRACE(name);
    const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
    for (const GeneratePath path : {GeneratePath::kFast, GeneratePath::kPlain}) {
      const Model alone = Model::random(config, 5, "float32").value();
      const Sequences want = run_all(*make_engine(alone, options_of(path)), requests);
      for (const int num_ranks : {2, 4}) {
        for (const bool is_split : {false, true}) {
          for (const Sequences& got :
               run_on_ranks(num_ranks, {config, "float32", is_split}, options_of(path), requests))
            expect_near(want, got, 2e-5);
        }
      }
    }
  }
}

// A sequence keeps its log-probs as float32 numbers, which differ by one rounding at most.
TEST(SharedEngine, Float64TokensAreThoseOfOneRank) {
  for (const auto& [name, config] : layer_kinds(kVocab)) {
    SCOPED_TRACE(name);
    const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
    const Model alone = Model::random(config, 5, "float64").value();
    const Sequences want = run_all(*make_engine(alone, options_of(GeneratePath::kPlain)), requests);
    for (const Sequences& got : run_on_ranks(2, {config, "float64", true}, options_of(GeneratePath::kPlain), requests))
      expect_near(want, got, 1e-6);
  }
}

// The logits themselves, before they are rounded.
TEST(SharedEngine, Float64LogProbsAreEqualTo1e12) {
  for (const auto& [name, config] : layer_kinds(kVocab)) {
    SCOPED_TRACE(name);
    const std::vector<int64_t> prompt{4, 9, 2, 13, 8}, completion{7, 1, 20};
    const PackRow row{prompt, completion, -1};
    PackOptions pack;
    pack.keep_last_token = true;
    pack.vocab_size = config.vocab_size;
    const PackedBatch batch = pack_rows({&row, 1}, pack).value();
    const auto log_probs = [&](const at::Tensor& hidden, const Model& model) {
      return at::log_softmax(head_logits(hidden, model.head()), -1);
    };
    const at::NoGradGuard no_grad;
    const Model alone = Model::random(config, 5, "float64").value();
    const at::Tensor want = log_probs(alone.forward_hidden(batch), alone);
    on_ranks(2, [&, &config = config](Communicator& communicator) {
      const at::NoGradGuard none;
      const Model model = Model::random(config, 5, "float64").value();
      ForwardOptions forward;
      forward.tensor = std::make_shared<TensorGroup>(communicator, 2);
      const auto part = model.part_of_layers(forward.tensor);
      const at::Tensor got =
          log_probs(decoder_forward(part->config(), part->weights(), part->leaves(), batch, forward), model);
      EXPECT_LE(got.sub(want).abs().max().item<double>(), 1e-12);
      EXPECT_LT(part->config().num_parameters(), model.config().num_parameters());
    });
  }
}

// Slots, threads and the cut of prompts change no bit of the fast path.
TEST(SharedEngine, SlotsAndThreadsChangeNoBit) {
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  for (const WeightFormat weights : {WeightFormat::kFloat32, WeightFormat::kBfloat16}) {
    EngineOptions options = options_of(GeneratePath::kFast);
    options.weights = weights;
    const Sequences want = run_on_ranks(4, {config, "float32", true}, options, requests)[0];
    for (const auto& [slots, threads, batch] : {std::tuple{1, 1, 256}, std::tuple{3, 2, 8}}) {
      EngineOptions other = options;
      other.max_num_seqs = slots;
      other.num_threads = threads;
      other.max_batch_tokens = batch;
      for (const Sequences& got : run_on_ranks(4, {config}, other, requests)) expect_same_bits(want, got);
    }
  }
}

// Each rank has the keys and values of its heads only.
TEST(SharedEngine, ARankHasItsPartOfTheKeysAndValues) {
  const ModelConfig config = plain_layers();
  SamplingParams params;
  params.max_new_tokens = 60;
  const std::vector<GenerateRequest> requests{make_request(1, {5, 6, 7}, 1, params)};
  const int64_t pages = Scheduler::pages_for(requests[0]);
  EngineOptions options = options_of(GeneratePath::kFast);
  options.kv_cache_bytes = pages * KvShape{config.num_layers, config.num_kv_heads, config.head_dim}.page_bytes() / 2;
  const Model alone = Model::random(config, 5, "float32").value();
  const auto refused = make_engine(alone, options)->submit(requests);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().what, testing::HasSubstr("pages of KV cache"));
  for (const Sequences& got : run_on_ranks(2, {config, "float32", true}, options, requests)) EXPECT_EQ(got.size(), 1U);
}

TEST(SharedEngine, ChangedWeightsCount) {
  const ModelConfig config = plain_layers();
  const std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
  const auto halve = [](const Model& model) {
    const at::NoGradGuard no_grad;
    for (const NamedParameter& parameter : model.trainable()) parameter.tensor.detach().mul_(0.5);
  };
  for (const GeneratePath path : {GeneratePath::kFast, GeneratePath::kPlain}) {
    Model alone = Model::random(config, 5, "float32").value();
    const auto engine = make_engine(alone, options_of(path));
    const Sequences before = run_all(*engine, requests);
    halve(alone);
    const Sequences after = run_all(*engine, requests);
    ASSERT_NE(before.begin()->second.log_prob, after.begin()->second.log_prob);
    for (const bool is_split : {false, true}) {
      on_ranks(2, [&](Communicator& communicator) {
        Model model = Model::random(config, 5, "float32").value();
        EngineOptions own = options_of(path);
        own.ranks = std::make_shared<TensorGroup>(communicator, 2);
        if (is_split) model.split_layers(own.ranks);
        const auto shared = make_engine(model, own);
        const auto sampled = [&] {
          const auto whole = WholeWeights::gather({&model}, GatheredLayers::kOwnLayers).value();
          return run_all(*shared, requests);
        };
        expect_near(before, sampled(), 2e-5);
        halve(model);
        expect_near(after, sampled(), 2e-5);
      });
    }
  }
}

// A reward that asks for an engine would sample on one rank alone, and wait for the others for ever.
TEST(SharedEngine, PluginsOtherThanRolloutsAreRefused) {
  const Model model = Model::random(plain_layers(), 5, "float32").value();
  EngineOptions options = options_of(GeneratePath::kFast);
  options.ranks = std::make_shared<TensorGroup>(alone(), 1);
  install_generate_model(&model, options);
  const auto create = [](const std::string& label) {
    const InstanceIdentity who{label, {}, {}, 0};
    mortise_call call;
    call.identity = &who;
    void* self = nullptr;
    const int32_t code = generate_extension()->create(host_table(), &call, &self);
    if (self != nullptr) generate_extension()->destroy(self);
    return std::pair(code, call.fail_text);
  };
  const auto [accepted, nothing] = create("rollout_backend native@mortise.rollout 0.1.0");
  EXPECT_EQ(accepted, MORTISE_OK) << nothing;
  const auto [refused, text] = create("reward judge@my.pack 0.1.0");
  EXPECT_EQ(refused, MORTISE_FAILED_PRECONDITION);
  EXPECT_THAT(text, testing::HasSubstr("only rollouts can sample with the policy"));
  EXPECT_THAT(text, testing::HasSubstr("set rollout.tensor_model_parallel_size to 1"));
  install_generate_model(nullptr, {});
}

TEST(SharedEngine, TheLikeliestTokensAreRefused) {
  const ModelConfig config = plain_layers();
  on_ranks(2, [&](Communicator& communicator) {
    const Model model = Model::random(config, 5, "float32").value();
    EngineOptions own = options_of(GeneratePath::kFast);
    own.ranks = std::make_shared<TensorGroup>(communicator, 2);
    std::vector<GenerateRequest> requests = some_requests(config.vocab_size);
    requests[0].num_top_log_probs = 2;
    const auto refused = make_engine(model, own)->submit(requests);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().what, testing::HasSubstr("tell the sampled tokens only"));
  });
}

}  // namespace
}  // namespace mortise
