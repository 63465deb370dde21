// Passes that read what the engine has kept, against passes that compute it: hidden states, gradients, and what is left
// undone. And the same numbers made again from the tokens alone.
#include "model/layers/sampled_forward.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "foundation/metrics/op_timer.h"
#include "support/golden_models.h"
#include "unit/generate/sampled_rows.h"

namespace mortise {
namespace {

class OfFamily : public testing::TestWithParam<const char*> {};

TEST_P(OfFamily, HiddenStatesAndGradientsAreThoseOfACompletePass) {
  auto model = Model::load(default_env(), test::golden_model(GetParam()));
  ASSERT_TRUE(model.ok()) << model.error().to_string();
  for (const bool same_length : {true, false}) {
    const Rows rows = sample(*model, requests_of(model->config(), same_length));
    ASSERT_EQ(rows.responses.size(), static_cast<size_t>(kRequests * kSamples));
    for (const auto& [ids, shares] : kCuts) {
      const PackedBatch packed = pack(rows, ids, shares);
      if (packed.num_targets() == 0) continue;
      ForwardOptions options;
      const PassResult want = run_pass(*model, packed, options);
      options.sampled = pass_of(*model, packed, ids);
      ASSERT_NE(options.sampled, nullptr);
      expect_near(run_pass(*model, packed, options), want, 1e-5, GetParam() + std::to_string(ids.size()));
      const at::NoGradGuard no_grad;
      EXPECT_LE(distance(select_rows(model->forward_hidden(packed, options), packed.predict_index_R), want.hidden),
                1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OfFamily,
                         testing::Values("qwen2_tied", "qwen2_untied_sharded", "qwen3_untied_v5", "llama_bias",
                                         "mistral_sliding", "phi3"),
                         [](const auto& test) { return std::string(test.param); });

// A pass that reads what sampling has kept gives the numbers of one that computes all.
void expect_same_pass(Model& model, bool same_length, const char* name) {
  const Rows rows = sample(model, requests_of(model.config(), same_length));
  const PackedBatch packed = pack(rows, all_ids());
  ForwardOptions options;
  const PassResult want = run_pass(model, packed, options);
  options.sampled = pass_of(model, packed, all_ids());
  ASSERT_NE(options.sampled, nullptr) << name;
  expect_near(run_pass(model, packed, options), want, 1e-5, name);
}

TEST(SampledForward, WideLayers) {
  Model model = wide_model();
  expect_same_pass(model, false, "wide");
}

// Tokens of prompts that nobody wants have no output: a norm of zeros without an epsilon would not be finite.
TEST(SampledForward, NormsWithoutEpsilon) {
  Model model = wide_model("float32", /*epsilon=*/0.0);
  expect_same_pass(model, false, "no epsilon");
}

// Nothing below the second layer is trained, and not all of that.
TEST(SampledForward, FrozenWeights) {
  for (const bool is_wide : {false, true}) {
    Model model = is_wide ? wide_model() : tiny_model();
    size_t num_trained = 0;
    for (const NamedParameter& p : model.parameters()) {
      const bool is_trained = p.name.find("layers.1.") != std::string::npos &&
                              p.name.find("o_proj") == std::string::npos && p.name.find("up_proj") == std::string::npos;
      p.tensor.requires_grad_(is_trained);
      num_trained += is_trained ? 1 : 0;
    }
    const Rows rows = sample(model, requests_of(model.config(), true));
    const PackedBatch packed = pack(rows, all_ids());
    ForwardOptions options;
    const PassResult want = run_pass(model, packed, options);
    ASSERT_EQ(want.gradients.size(), num_trained);
    options.sampled = pass_of(model, packed, all_ids());
    expect_near(run_pass(model, packed, options), want, 1e-5, is_wide ? "wide" : "narrow");
  }
}

// Products of libraries may have other last bits elsewhere.
TEST(SampledForward, MatricesBeginOnALineOfTheCache) {
  Model model = wide_model();
  const Rows rows = sample(model, requests_of(model.config(), true));
  for (const std::vector<int64_t>& ids : {std::vector<int64_t>{3, 4, 5}, std::vector<int64_t>{12, 13, 14}, all_ids()}) {
    const auto pass = pass_of(model, pack(rows, ids), ids);
    ASSERT_NE(pass, nullptr);
    const SampledLayer layer = pass->layer(1);
    for (const at::Tensor& matrix :
         {layer.qkv_NQ, layer.attended_NA, layer.lse_Nh, layer.mixed_NH, layer.gate_up_N2I, layer.out_NH})
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.const_data_ptr()) % 64, 0U) << ids.size();
  }
}

TEST(SampledForward, EveryInstructionSet) {
  Model model = wide_model();
  for (const Isa isa : {Isa::kBase, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (find_kernels(isa) == nullptr) continue;
    EngineOptions engine;
    engine.isa = isa;
    const Rows rows = sample(model, requests_of(model.config(), true), engine);
    const PackedBatch packed = pack(rows, all_ids());
    ForwardOptions options;
    const PassResult want = run_pass(model, packed, options);
    options.sampled = pass_of(model, packed, all_ids());
    expect_near(run_pass(model, packed, options), want, 1e-5, find_kernels(isa)->name);
  }
}

// Cuts of the same rows add up to the same gradient.
TEST(SampledForward, GradientsDoNotDependOnTheCut) {
  Model model = wide_model();
  const Rows rows = sample(model, requests_of(model.config(), false));
  const PassResult whole = gradient_of_cuts(model, rows, {all_ids()});
  expect_near(gradient_of_cuts(model, rows, {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}, {12, 13, 14}}), whole, 1e-6,
              "groups");
  expect_near(gradient_of_cuts(model, rows, {{0, 14, 7}, {1, 2, 3, 4}, {5, 6, 8, 9}, {10, 11, 12, 13}}), whole, 1e-6,
              "rows");
}

// Few rows at a time, one thread, small passes, other instruction sets' order of work; and from the tokens alone.
TEST(SampledForward, NumbersDependOnlyOnTheTokens) {
  for (const auto& [name, dtype] : {std::pair{"qwen3_untied_v5", "float32"},
                                    {"phi3", "float32"},
                                    {"qwen3_untied_v5", "bfloat16"},
                                    {"qwen2_tied", "bfloat16"}}) {
    auto model = Model::load(default_env(), test::golden_model(name), dtype);
    auto other = Model::load(default_env(), test::golden_model(name), dtype);
    ASSERT_TRUE(model.ok() && other.ok());
    const std::vector<GenerateRequest> requests = requests_of(model->config(), false);
    const Rows rows = sample(*model, requests);
    const PackedBatch packed = pack(rows, all_ids());
    const auto want = pass_of(*model, packed, all_ids());
    ASSERT_NE(want, nullptr);
    EngineOptions options;
    options.max_num_seqs = 2;
    options.num_threads = 1;
    options.max_batch_tokens = 8;
    EXPECT_EQ(sample(*other, requests, options).responses, rows.responses);
    const auto slower = pass_of(*other, packed, all_ids());
    ASSERT_NE(slower, nullptr);
    expect_same_bits(*slower, *want, model->config().num_layers, "few at a time");
    keep(*other);
    const auto filled = fill_sampled_forward(*other, rows.given(), Isa::kAuto, 2);
    ASSERT_TRUE(filled.ok()) << filled.error().to_string();
    const auto again = pass_of(*other, packed, all_ids());
    ASSERT_NE(again, nullptr);
    expect_same_bits(*again, *want, model->config().num_layers, "made again");
  }
}

// The layers of this model fit into a core's cache: threads would take some rows each through all layers, if no row needed
// the keys of another. Rows made again do. Some of a group come later than the others, and share the slots of its prompt.
TEST(SampledForward, RowsAreMadeAgainByThreadsAndInParts) {
  Qwen2Shape shape;
  shape.vocab_size = 61;
  shape.hidden_size = 64;
  shape.intermediate_size = 96;
  shape.num_layers = 2;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.initializer_range = 0.1;
  const auto make = [&] { return *Model::random(*make_qwen2_config(shape), 5); };
  Model model = make(), other = make();
  const Rows rows = sample(model, requests_of(model.config(), true));
  const PackedBatch packed = pack(rows, all_ids());
  const auto want = pass_of(model, packed, all_ids());
  ASSERT_NE(want, nullptr);
  keep(other);
  std::vector<GivenRow> first, second;
  for (const GivenRow& row : rows.given()) (row.row_id % kSamples == 1 ? second : first).push_back(row);
  for (const auto& part : {first, second}) {
    const auto filled = fill_sampled_forward(other, part, Isa::kAuto, 3);
    ASSERT_TRUE(filled.ok()) << filled.error().to_string();
  }
  const auto again = pass_of(other, packed, all_ids());
  ASSERT_NE(again, nullptr);
  expect_same_bits(*again, *want, 2, "in parts");
}

// More rows than a pass has tokens, so that they are decoded in several parts.
TEST(SampledForward, ManyRowsAreMadeAgain) {
  constexpr int64_t kMany = 100;
  Model model = tiny_model();
  SamplingParams sampling;
  sampling.max_new_tokens = 3;
  std::vector<GenerateRequest> requests;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kMany; ++i) {
    requests.push_back(make_request(i, {i, 7, 9 + i}, kSamples, sampling));
    requests.back().first_row_id = i * kSamples;
    for (int64_t j = 0; j < kSamples; ++j) ids.push_back(i * kSamples + j);
  }
  const Rows rows = sample(model, requests);
  Model other = tiny_model();
  keep(other, kMany);
  const auto filled = fill_sampled_forward(other, rows.given(), Isa::kAuto, 2);
  ASSERT_TRUE(filled.ok()) << filled.error().to_string();
  const PackedBatch packed = pack(rows, ids);
  const auto want = pass_of(model, packed, ids), got = pass_of(other, packed, ids);
  ASSERT_TRUE(want != nullptr && got != nullptr);
  expect_same_bits(*got, *want, model.config().num_layers, "many");
}

// An engine that has computed the prompts before the step begins.
TEST(SampledForward, ComputesKnownPagesOnceMore) {
  Model model = tiny_model();
  const std::vector<GenerateRequest> requests = requests_of(model.config(), false);
  const Rows rows = sample(model, requests);
  const PackedBatch packed = pack(rows, all_ids());
  const auto want = pass_of(model, packed, all_ids());
  Model other = tiny_model();
  keep(other);
  EngineOptions options;
  options.keeps_forward = true;
  const auto engine = make_engine(other, options);
  (void)run_all(*engine, requests);  // the store is not open
  for (const int64_t id : all_ids()) EXPECT_FALSE(other.sampled_forward()->has_row(id)) << id;
  for (int repeat = 0; repeat < 2; ++repeat) {
    other.sampled_forward()->begin(requests.front().seed, requests.front().step);
    (void)run_all(*engine, requests);
    other.sampled_forward()->end();
    const auto got = pass_of(other, packed, all_ids());
    ASSERT_NE(got, nullptr);
    expect_same_bits(*got, *want, other.config().num_layers, "repeat");
  }
}

class Names final : public OpListener {
 public:
  Names() { op_listener = this; }
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  ~Names() override { op_listener = nullptr; }
  void begins(const char* name) override {
    const std::lock_guard lock(mutex_);
    seen_.insert(name);
  }
  void ends(double /*flops*/, double /*bytes*/) override {}
  [[nodiscard]] bool has(const std::string& name) const { return seen_.contains(name); }

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

TEST(SampledForward, NoProductOfTheForwardPassIsComputed) {
  for (const bool is_wide : {false, true}) {
    Model model = is_wide ? wide_model() : tiny_model();
    const Rows rows = sample(model, requests_of(model.config(), true));
    const PackedBatch packed = pack(rows, all_ids());
    ForwardOptions options;
    const auto seen = [&](const std::string& name) {
      const Names names;
      (void)run_pass(model, packed, options);
      return names.has(name);
    };
    const std::vector<std::string> products{"linear, forward", "MLP, forward", "attention, forward"};
    EXPECT_TRUE(std::ranges::any_of(products, seen));
    options.sampled = pass_of(model, packed, all_ids());
    for (const std::string& name : products) EXPECT_FALSE(seen(name)) << name;
    EXPECT_TRUE(seen("attention, backward"));
  }
}

TEST(SampledForward, OtherTokensAreAnError) {
  Model model = tiny_model();
  Rows rows = sample(model, requests_of(model.config(), true));
  rows.responses[4][2] = (rows.responses[4][2] + 1) % 300;
  const std::vector<int64_t> ids{3, 4};
  const auto other_tokens = model.sampled_forward()->pass(pack(rows, ids), ids);
  ASSERT_FALSE(other_tokens.ok());
  EXPECT_NE(other_tokens.error().what.find("other tokens"), std::string::npos);
  const std::vector<int64_t> unknown{3, 99};
  const auto other_row = model.sampled_forward()->pass(pack(rows, {3, 5}), unknown);
  ASSERT_FALSE(other_row.ok());
  EXPECT_NE(other_row.error().what.find("row 99"), std::string::npos);
}

// A token that an earlier step decoded in the same slot is not this step's.
TEST(SampledForward, TokensOfAnEarlierStepAreForgotten) {
  SampledForward store(tiny_model().config(), 4);
  const auto prompt = std::make_shared<const std::vector<int64_t>>(1, 0);
  const std::vector<int64_t> prompt_ids{5}, response_ids{6, 7}, row_ids{0};
  PackOptions options;
  options.vocab_size = 8;
  const PackedBatch packed = *pack_rows(std::vector<PackRow>{{prompt_ids, response_ids, 0, 0}}, options);
  for (const int64_t step : {1, 2}) {
    store.begin(17, step);
    ASSERT_EQ(store.take(2), 0);
    store.put_row(0, prompt, 1);
    store.set_token(0, 5);
    if (step == 1) store.set_token(1, 6);
    EXPECT_EQ(store.pass(packed, row_ids).ok(), step == 1) << step;
  }
}

}  // namespace
}  // namespace mortise
