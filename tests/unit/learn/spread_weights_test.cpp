// Weights that are spread over ranks (ZeRO 3): updates of every kind of model and adapter give the numbers of one rank, in
// bfloat16 the same bits with and without master weights; what a rank keeps in memory and in files; a reference that
// follows an adapter. Losses of every coupling with every stage are in ranks_test.cpp, split layers in
// tensor_parallel_test.cpp.
#include <gtest/gtest.h>

#include <optional>
#include <string_view>

#include "layer_variants.h"
#include "learn/update/packed_forward.h"
#include "model/tensor/storage_memory.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::on_ranks;

constexpr Mesh kTwo{.num_ranks = 2, .zero_stage = 3}, kThree{.num_ranks = 3, .zero_stage = 3};

TEST(SpreadWeights, EveryKindOfLayerAndAdapterGivesTheNumbersOfOneRank) {
  size_t index = 0;
  for (const Variant& variant : variants()) expect_numbers_of_one_rank(variant, index++ % 2 == 0 ? kThree : kTwo);
}

constexpr Mesh kTwoByWindows{.num_ranks = 2, .zero_stage = 3, .window_bytes = 1},
    kThreeByWindows{.num_ranks = 3, .zero_stage = 3, .window_bytes = 1},
    kSplitByWindows{.num_ranks = 4, .zero_stage = 3, .tensor_size = 2, .window_bytes = 1};

TEST(SpreadWeights, WindowsOfEmbeddingAndHeadGiveTheNumbersOfOneRankForEveryKindOfLayerAndAdapter) {
  size_t index = 0;
  for (const Variant& variant : variants())
    expect_numbers_of_one_rank(variant, index++ % 2 == 0 ? kTwoByWindows : kThreeByWindows);
}

TEST(SpreadWeights, WindowsOfHeadsThatAreComparedGiveTheNumbersOfOneRank) {
  for (const Variant& variant : variants_with_references()) {
    for (const Mesh& mesh : {kThree, kTwoByWindows, kThreeByWindows, kSplitByWindows})
      expect_numbers_of_one_rank(variant, mesh);
  }
  const std::vector<Variant> all = variants();
  expect_numbers_of_one_rank(*std::ranges::find(all, "a teacher", &Variant::name), kSplitByWindows);
}

// A micro-batch without response tokens runs backward for its routers alone. Its rank walks over the policy's head after the
// forward pass of the reference, which only the other rank needs.
TEST(SpreadWeights, RoutersOfRowsWithoutResponsesWaitForTheReference) {
  Variant variant{"one row in a pass", moe_config()};
  variant.options = [](LearnerOptions& options) { options.router_losses = {0.3, 0.02}; };
  variant.cut = {1, 0};
  variant.loss = kWholeKl;
  variant.loss.emplace_back("actor.top_entropy_quantile=0.4");
  variant.has_reference = true;
  expect_numbers_of_one_rank(variant, kTwoByWindows);
}

// Losses of every coupling, with supervised rows and next to sequence parallel.
TEST(SpreadWeights, WindowsGiveTheNumbersOfOneRankForEveryLoss) {
  const Mesh shared{.num_ranks = 4, .sequence_size = 2, .zero_stage = 3, .window_bytes = 1};
  for (const Case& one : cases()) {
    const Learnt alone_did = learn(one, "float64", alone(), false);
    for (const Mesh& mesh : {kTwoByWindows, kThreeByWindows, shared, kSplitByWindows}) {
      SCOPED_TRACE(std::string(one.name) + ", " + name_of(mesh));
      const std::vector<Learnt> by_rank = learn_on(mesh, one, "float64", false, 2);
      expect_same(by_rank[0], alone_did, 1e-12, false);
      for (const Learnt& other : by_rank) expect_same(other, by_rank[0], 0.0);
    }
  }
}

// A rank that has a whole head passes through it in the same windows.
TEST(SpreadWeights, DeterministicUpdatesByWindowsAreEqualToTheBitForEveryLoss) {
  const Mesh one_rank{.window_bytes = 1}, whole{.num_ranks = 2, .zero_stage = 2, .window_bytes = 1};
  size_t index = 0;
  for (const Case& one : cases()) {
    const std::string dtype = index++ % 2 == 0 ? "float32" : "float64";
    expect_same_bits(one, dtype, one_rank, {whole, kTwoByWindows, kThreeByWindows});
  }
  const Mesh split{.num_ranks = 2, .tensor_size = 2, .window_bytes = 1};
  for (const char* const name : {"token losses", "row losses", "the whole KL"}) {
    const auto one = std::ranges::find(cases(), std::string_view(name), &Case::name);
    expect_same_bits(*one, "float32", split, {kSplitByWindows});
  }
  const Mesh shared{.num_ranks = 2, .sequence_size = 2, .zero_stage = 0, .window_bytes = 1},
      shared_and_spread{.num_ranks = 4, .sequence_size = 2, .zero_stage = 3, .window_bytes = 1};
  for (const char* const name : {"token losses", "the whole KL"}) {
    const auto one = std::ranges::find(cases(), std::string_view(name), &Case::name);
    expect_same_bits(*one, "float32", shared, {shared_and_spread});
  }
}

// A vocabulary of 13 windows whose rows two ranks own, and a window of which each owns a part.
Learnt learn_many_tokens(const ModelConfig& config, const std::string& dtype, Communicator& communicator,
                         int64_t zero_stage, bool deterministic = false, bool compares = false, int tensor_size = 1) {
  const RowsShape shape{.vocab = config.vocab_size, .groups = 2, .samples = 2, .max_length = 9};
  TestPolicy policy(config, dtype, 5, {&communicator, zero_stage}, tensor_size, /*window_bytes=*/1);
  TestPolicy reference(config, dtype, 6, {&communicator, zero_stage}, tensor_size, /*window_bytes=*/1);
  std::vector<std::string> loss{"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.02"};
  if (compares) loss = kWholeKl;
  const auto objective = objective_of(loss);
  const RandomRows data(false, shape);
  LearnerOptions options = cut_by({1, 0});
  options.reference = &reference.model;
  if (deterministic) options.head.window_bytes = 1;
  share(options, communicator, deterministic, 1, tensor_size);
  ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
  Learnt out;
  out.log_prob = learner.log_probs(policy.model, data.batch, nullptr, &out.entropy).value();
  out.squared = learner.sums_of_squared_probs(policy.model, data.batch).value();
  for (int64_t update = 1; update <= 2; ++update)
    out.reports.push_back(
        learner.update(data.batch, all_rows(data.batch), {.lr = 1e-2, .update_index = update}).value());
  const auto whole = WholeWeights::gather({&policy.model}).value();
  out.weights = weights_of(policy.model);
  return out;
}

TEST(SpreadWeights, ManyWindowsOfSeveralOwnersGiveTheNumbersOfOneRank) {
  for (const bool is_tied : {false, true}) {
    SCOPED_TRACE(is_tied ? "one matrix" : "two matrices");
    ModelConfig config = small_config(25000, 1);
    config.hidden_size = 44;
    config.tie_word_embeddings = is_tied;
    const Learnt expected = learn_many_tokens(config, "float64", alone(), 0);
    on_ranks(3, [&](Communicator& communicator) {
      const Learnt got = learn_many_tokens(config, "float64", communicator, 3);
      expect_same(got, expected, 1e-12);
    });
    const Learnt bits = learn_many_tokens(config, "float32", alone(), 0, true);
    on_ranks(3, [&](Communicator& communicator) {
      expect_same(learn_many_tokens(config, "float32", communicator, 3, true), bits, 0.0);
    });
    const Learnt compared = learn_many_tokens(config, "float32", alone(), 0, true, /*compares=*/true);
    on_ranks(3, [&](Communicator& communicator) {
      expect_same(learn_many_tokens(config, "float32", communicator, 3, true, true), compared, 0.0);
    });
  }
}

// Three windows of each part, the last of which has a row that one of the ranks does not use.
TEST(SpreadWeights, WindowsOfSplitLayersGiveTheNumbersOfOneRank) {
  ModelConfig config = small_config(4 * kHeadWindowRows + 51, 1);
  config.tie_word_embeddings = true;
  const Learnt expected = learn_many_tokens(config, "float64", alone(), 0);
  on_ranks(4, [&](Communicator& communicator) {
    expect_same(learn_many_tokens(config, "float64", communicator, 3, false, false, /*tensor_size=*/2), expected,
                1e-12);
  });
}

// Sums over blocks of columns are in the order of a whole head.
TEST(SpreadWeights, Float32LogProbsOfWindowsHaveTheBitsOfAWholeHead) {
  ModelConfig config = small_config(25000, 1);
  config.hidden_size = 44;
  const Learnt expected = learn_many_tokens(config, "float32", alone(), 0);
  on_ranks(3, [&](Communicator& communicator) {
    const Learnt got = learn_many_tokens(config, "float32", communicator, 3);
    EXPECT_EQ(got.log_prob, expected.log_prob);
    EXPECT_EQ(got.entropy, expected.entropy);
    expect_same_reports(got.reports.front(), expected.reports.front(), 1e-5);
  });
}

// A pass leaves neither the embedding nor the head in memory, and no rank has their whole gradient, unless a window is larger.
TEST(SpreadWeights, NoRankHasTheWholeVocabulary) {
  on_ranks(2, [](Communicator& communicator) {
    for (const int64_t window_bytes : {0, 1, 1 << 20}) {
      const bool is_whole = window_bytes != 1;
      TestPolicy policy("float64", kShape.vocab, 2, 5, {&communicator, 3}, 1, window_bytes);
      const RandomRows data(false, kShape);
      const std::vector<int64_t> rows{0, 1};
      const PackedForward forward = forward_rows(policy.model, data.batch, rows).value();
      EXPECT_EQ(has_memory(policy.model.head_weight()), is_whole);
      EXPECT_EQ(policy.model.head_grad().defined(), is_whole);
      const LogProbs probs = head_log_prob(forward.hidden_RH, policy.model.head(), forward.targets_R, 1.0, false);
      EXPECT_EQ(has_memory(policy.model.head_weight()), is_whole);
      EXPECT_FALSE(has_memory(policy.model.embedding_weight()));
      ASSERT_OK(finish_forward({&policy.model}));
    }
  });
}

// A rank rounds the numbers that it has, before they travel or after merged matrices were computed from them.
TEST(SpreadWeights, DeterministicBfloat16UpdatesAreEqualToTheBit) {
  size_t index = 0;
  for (const Variant& variant : variants()) {
    LearnerOptions options;
    if (variant.options) variant.options(options);
    const bool is_plain = options.pass.path == LayerPath::kPlain;
    if (is_plain && variant.has_adapter()) continue;        // refused
    if (options.teacher_loss.teacher != nullptr) continue;  // in float64
    std::optional<test::ThreadsOfRanks> threads;
    if (is_plain) threads.emplace();
    const Update expected = update_of(variant, alone(), {}, 2, "bfloat16");
    const Update expected_by_windows = update_of(variant, alone(), {.window_bytes = 1}, 2, "bfloat16");
    const bool is_even = index++ % 2 == 0;
    for (const Mesh& mesh : {is_even ? kTwo : kThree, is_even ? kThreeByWindows : kTwoByWindows}) {
      SCOPED_TRACE(variant.name + ", " + name_of(mesh));
      const Update& want = mesh.window_bytes > 0 ? expected_by_windows : expected;
      on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
        const Update got = update_of(variant, communicator, mesh, 2, "bfloat16");
        expect_same_reports(got.report, want.report, 0.0);
        for (size_t i = 0; i < got.weights.size(); ++i) EXPECT_TRUE(got.weights[i].equal(want.weights[i])) << i;
      });
    }
  }
}

at::Tensor log_probs_of(Model& model, const RandomRows& data) {
  const std::vector<int64_t> rows{0, 1};
  const PackedForward forward = forward_rows(model, data.batch, rows).value();
  const at::Tensor out =
      head_log_prob(forward.hidden_RH.detach(), model.head(), forward.targets_R, 1.0, false).log_prob_R;
  EXPECT_OK(finish_forward({&model}));
  return out;
}

// Passes and rollouts read bfloat16 copies. Saves and comparisons read their masters, too, as long as there are any.
TEST(SpreadWeights, MastersAreThereOnlyIfTheyAreAskedFor) {
  on_ranks(2, [](Communicator& communicator) {
    const test::TempDir folder;
    TestPolicy policy("bfloat16", kShape.vocab, 2, 5, {&communicator, 3}, 1, /*window_bytes=*/1),
        whole("bfloat16", kShape.vocab, 2, 5);
    WeightShards& shards = *shards_of(policy.model);
    const auto expect_memory = [&](bool has_copies, bool has_masters) {
      const DecoderWeights& weights = policy.model.weights();
      for (size_t layer = 0; layer < 2; ++layer) {
        EXPECT_EQ(has_memory(weights.rounded[layer].qkv_QH), has_copies);
        EXPECT_EQ(has_memory(weights.layers[layer].qkv_weight_QH), has_masters);
      }
      EXPECT_EQ(has_memory(weights.embedding_VH), has_copies);
    };
    const auto expect_whole = [&](bool has_masters) {
      {
        const auto copies = WholeWeights::gather({&policy.model}, GatheredLayers::kWhole, GatheredMasters::kNo);
        ASSERT_OK(copies);
        expect_memory(true, false);
        EXPECT_TRUE(policy.model.weights().rounded[1].down_HI.equal(whole.model.weights().rounded[1].down_HI));
        const auto all = WholeWeights::gather({&policy.model});
        ASSERT_OK(all);
        expect_memory(true, has_masters);
        const std::vector<NamedParameter> numbers = policy.model.numbers(), expected = whole.model.numbers();
        for (size_t i = 0; i < numbers.size(); ++i) {
          EXPECT_EQ(numbers[i].tensor.scalar_type(), expected[i].tensor.scalar_type()) << numbers[i].name;
          EXPECT_TRUE(numbers[i].tensor.detach().equal(expected[i].tensor.detach())) << numbers[i].name;
        }
      }
      expect_memory(false, false);
    };
    expect_memory(false, false);
    expect_whole(true);
    ASSERT_OK(shards.offload_masters(std::make_shared<Offload>(folder.path())));
    EXPECT_FALSE(shards.lies_in_file(0)) << "the embedding has no copies";
    EXPECT_TRUE(shards.lies_in_file(1));
    expect_whole(true);
    policy.model.drop_masters();
    whole.model.drop_masters();
    EXPECT_EQ(shards.numbers(1).scalar_type(), at::kBFloat16);
    expect_whole(false);
    ASSERT_OK(shards.offload_numbers(std::make_shared<Offload>(folder.path())));
    EXPECT_TRUE(shards.lies_in_file(0));
    EXPECT_TRUE(shards.lies_in_file(1));
    expect_whole(false);
    const RandomRows data(false, kShape);
    EXPECT_TRUE(log_probs_of(policy.model, data).equal(log_probs_of(whole.model, data))) << "windows come from files";
  });
}

// A reference has the numbers of the policy, in files too, or is the base of its adapter.
TEST(SpreadWeights, ReferencesReadTheirNumbersByWindows) {
  const RandomRows data(false, kShape);
  const auto make = [] { return Model::random(small_config(kShape.vocab, 2), 5, "float64").value(); };
  Model whole = make();
  const at::Tensor expected = log_probs_of(whole, data);
  on_ranks(2, [&](Communicator& communicator) {
    const test::TempDir folder;
    for (const bool has_adapter : {false, true}) {
      SCOPED_TRACE(has_adapter ? "with an adapter" : "without one");
      Model policy = make();
      if (has_adapter) {
        ASSERT_OK(policy.train_lora({.rank = 3, .alpha = 6.0, .target_modules = {"all-linear"}}, 4));
        randomize(policy.trainable());
        policy.weights_changed();
      }
      const auto shards = WeightShards::spread(policy, communicator, ShardCut::kBlocks, false, /*window_bytes=*/1);
      Model base = has_adapter ? policy.base_view() : policy.frozen_shape();
      Model copy = base.frozen_shape();
      ASSERT_OK(shards->spread_copy(copy)->offload_numbers(std::make_shared<Offload>(folder.path())));
      EXPECT_FALSE(has_memory(copy.head_weight()));
      EXPECT_LT((log_probs_of(copy, data) - expected).abs().max().item<double>(), 1e-12);
      if (!has_adapter) continue;
      const auto view = shards->spread_base(base);
      EXPECT_NE(view->windows_of(0), nullptr);
      EXPECT_LT((log_probs_of(base, data) - expected).abs().max().item<double>(), 1e-12);
    }
  });
}

// What an adapter trains as a whole has memory on every rank. The rest of its layers comes and goes.
void expect_trained_stays(bool use_dora) {
  on_ranks(2, [=](Communicator& communicator) {
    Model model = Model::random(small_config(kShape.vocab, 2), 5, "float64").value();
    ASSERT_OK(model.train_lora({.rank = 3,
                                .alpha = 6.0,
                                .target_modules = {"q_proj", "down_proj"},
                                .use_dora = use_dora,
                                .modules_to_save = {"v_proj", "embed_tokens"}},
                               4));
    const std::vector<at::Tensor> expected = weights_of(model);
    const auto shards = WeightShards::spread(model, communicator, ShardCut::kBlocks);
    const LayerWeights& layer = model.weights().layers[1];
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(has_memory(model.weights().embedding_VH));
      EXPECT_TRUE(has_memory(layer.qkv_weight_QH)) << "v is trained as a whole";
      EXPECT_FALSE(has_memory(layer.down_weight_HI));
      EXPECT_FALSE(has_memory(layer.o_weight_HQ));
      EXPECT_TRUE(has_memory(model.stored_parameters()[0].tensor)) << "no pass reads the base's embedding";
      const auto whole = WholeWeights::gather({&model});
      ASSERT_OK(whole);
      const std::vector<at::Tensor> weights = weights_of(model);
      for (size_t p = 0; p < weights.size(); ++p) EXPECT_TRUE(weights[p].equal(expected[p])) << p;
    }
  });
}

TEST(SpreadWeights, WhatAnAdapterTrainsAsAWholeStays) {
  for (const bool use_dora : {false, true}) {
    SCOPED_TRACE(use_dora ? "DoRA" : "LoRA");
    expect_trained_stays(use_dora);
  }
}

}  // namespace
}  // namespace mortise
