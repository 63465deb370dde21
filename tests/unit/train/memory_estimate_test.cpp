// What --dry-run says that a rank and its device have in memory.
#include "train/run/memory_estimate.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/load.h"
#include "model/adapters/lora_plan.h"
#include "model/head/kept_logits.h"
#include "model/layers/recompute.h"
#include "model/weights/parameters.h"
#include "train/run/device_need.h"
#include "train/run/memory_parts.h"
#include "train/run/rank_estimate.h"
#include "unit/learn/moe_config.h"
#include "unit/learn/small_config.h"
#include "unit/train/run_of_passes.h"

namespace mortise {
namespace {

// What each of `num_ranks` ranks needs with stage 3, from the keys of a run and the adapter that it trains.
struct Spread {
  ModelConfig model;
  LoadedConfig loaded;
  TrainedSize trained;
  UnitBytes units;
  MemoryEstimate alone, shared;
  RankEstimate sent;

  Spread(ModelConfig model_in, std::vector<std::string> overrides, int num_ranks = 2,
         const std::optional<LoraSize>& lora = std::nullopt)
      : model(std::move(model_in)), loaded(load_config(default_env(), "", with_stage(std::move(overrides))).value()) {
    const RunConfig& config = loaded.config;
    trained = trained_size(model, lora, loaded, "actor.optim").value();
    units = unit_bytes(model, 4.0);
    units.window = vocabulary_window(model, trained, config);
    alone = shared = estimate_memory(model, lora, trained, config, /*by_operators=*/false);
    share_memory(model, units, trained, config, lora.has_value(), num_ranks, {}, shared);
    sent = estimate_ranks(config, model, plan_batches(config), units, trained, num_ranks);
  }
  static std::vector<std::string> with_stage(std::vector<std::string> overrides) {
    overrides.emplace_back("ranks.zero_stage=3");
    return overrides;
  }
};

// Bytes of what stays whole, by the names in the model's files.
double whole_bytes(const ModelConfig& model) {
  double numbers = 0;
  for (const NamedParameter& parameter : allocate_parameters(model, at::kFloat, false).parameters) {
    const bool is_router = parameter.name.ends_with("mlp.gate.weight");
    if (parameter.tensor.dim() == 1 || is_router) numbers += static_cast<double>(parameter.tensor.numel());
  }
  return numbers * 4.0;
}

// The largest part is read whole. It counts if no step needs more.
TEST(MemoryEstimates, CountWhatIsReadAtTheStart) {
  const Spread spread(moe_config(), {});
  EXPECT_EQ(spread.alone.started, 0.0);
  EXPECT_EQ(spread.shared.started, std::max(spread.units.layer, spread.units.largest_end));
  const Spread both(small_config(64, 3), {"actor.tensor_model_parallel_size=2"}, 4);
  EXPECT_EQ(both.shared.started, 1.5 * std::max(both.units.layer, both.units.largest_end));
  const Spread split(small_config(64, 3), {"actor.tensor_model_parallel_size=2"}, 2);
  EXPECT_EQ(split.shared.started, std::max(split.units.layer, split.units.largest_end));
  const Spread validates(moe_config(), {"trainer.val_only=true"});
  EXPECT_EQ(validates.shared.started, 0.0);
  MemoryEstimate memory;
  memory.weights = 3;
  memory.gradients = memory.whole = 2;
  const double steps = memory.total();
  memory.started = 9;
  EXPECT_EQ(memory.total(), steps + 7);
  TrainedSize merges = split.trained;
  merges.merge.matrices = 2;
  memory = split.alone;
  share_memory(split.model, split.units, merges, split.loaded.config, false, 2, {}, memory);
  EXPECT_EQ(memory.started, std::max(split.units.layer + 4.0 * split.units.matrix, split.units.largest_end))
      << "two matrices of float64 next to a layer of float32";
  merges.merge.has_head = true;
  memory = split.alone;
  share_memory(split.model, split.units, merges, split.loaded.config, false, 2, {}, memory);
  EXPECT_EQ(memory.started, std::max(split.units.layer + 4.0 * split.units.matrix, 5.0 * split.units.largest_end));
}

// A rank that writes files has one part at a time whole, however many files it writes.
TEST(MemoryEstimates, CountAPartOfSplitLayersInSaves) {
  const ModelConfig model = small_config(64, 12);
  const Spread spread(model, {}), split(model, {"actor.tensor_model_parallel_size=2"});
  EXPECT_EQ(spread.shared.saved, 0.0) << "train samples, and a rollout needs more";
  EXPECT_EQ(split.shared.saved - split.shared.gradients, std::max(split.units.layer, split.units.largest_end));
  const Spread rounded(model, {"actor.tensor_model_parallel_size=2", "model.dtype=bfloat16"});
  EXPECT_EQ(rounded.shared.saved - rounded.shared.gradients, std::max(1.5 * split.units.layer, split.units.largest_end))
      << "with masters";
  const auto both = [&](const TrainedSize& trained) {
    MemoryEstimate memory = rounded.alone;
    share_memory(model, rounded.units, trained, rounded.loaded.config, false, 4, {}, memory);
    return memory.saved - memory.gradients;
  };
  const double own = 1.5;  // a rank's half of the part is put together first
  EXPECT_DOUBLE_EQ(both(rounded.trained), own * std::max(1.5 * split.units.layer, split.units.largest_end));
  TrainedSize keeps = rounded.trained;
  keeps.of_vocabulary = 1;
  EXPECT_DOUBLE_EQ(both(keeps), std::max(own * 1.5 * split.units.layer, split.units.largest_end));
}

TEST(MemoryEstimates, CountWhatAnAdapterReadsAtTheStart) {
  const ModelConfig model = small_config(29, 12);
  const std::vector<std::string> made{"model.lora_rank=2"}, continued{"model.lora_adapter_path=/a/folder"};
  const auto spread = [&](LoraChoice choice, const std::vector<std::string>& keys) {
    choice.rank = 2;
    const auto parameters = allocate_parameters(model, at::kFloat, false).parameters;
    return Spread(model, keys, 2, measure_lora(parameters, plan_fresh_lora(parameters, choice).value()));
  };
  const LoraChoice plain, dora{.use_dora = true}, pissa{.init = LoraInit::kPissa},
      saves{.target_modules = {"q_proj"}, .modules_to_save = {"v_proj"}};
  const Spread one = spread(plain, made);
  const double part = std::max(one.units.layer, one.units.largest_end);
  EXPECT_EQ(one.shared.started, part);
  EXPECT_EQ(spread(plain, continued).shared.started, part);
  EXPECT_EQ(spread(dora, continued).shared.started, part) << "its magnitudes come from its folder";
  const double kept = one.units.layer * 0.99;  // nearly all of a layer is computed once or twice more
  EXPECT_GT(spread(dora, made).shared.started, one.units.layer + kept);
  EXPECT_LT(spread(dora, made).shared.started, 2.1 * one.units.layer);
  EXPECT_GT(spread(pissa, made).shared.started, one.units.layer + 2.0 * kept);
  EXPECT_EQ(spread(pissa, continued).shared.started, spread(pissa, made).shared.started);
  EXPECT_EQ(spread(saves, made).shared.started, part);
}

TEST(MemoryEstimates, CountWhatACriticReadsAtTheStart) {
  const Spread run(small_config(29, 3), {});
  CriticBytes critic;
  critic.started = 1e6;
  for (const int64_t stage : {2, 3}) {
    RunConfig config = run.loaded.config;
    config.ranks.zero_stage = stage;
    MemoryEstimate memory = run.alone;
    share_memory(run.model, run.units, run.trained, config, false, 2, critic, memory);
    EXPECT_EQ(memory.started, stage == 3 ? 1e6 : 0.0);
  }
}

TEST(MemoryEstimates, CountWhatStaysWholeWithStage3) {
  const Spread run(moe_config(), {"trainer.deterministic=false"});
  const double whole = whole_bytes(run.model), matrices = static_cast<double>(run.model.num_parameters()) * 4.0 - whole;
  ASSERT_GT(whole, 0.0);
  EXPECT_DOUBLE_EQ(run.units.whole, whole);
  EXPECT_DOUBLE_EQ(run.shared.weights, matrices / 2.0 + whole);
  EXPECT_EQ(run.units.window.rows, 0) << "the head is smaller than a window";
  EXPECT_DOUBLE_EQ(run.shared.gradients, matrices / 2.0 + whole * 1.5 + run.units.layer + run.units.ends);
}

// A large vocabulary is in memory in windows only, unless a device reads it whole.
TEST(MemoryEstimates, CountWindowsOfEmbeddingAndHead) {
  ModelConfig model = small_config(300000, 2);
  model.hidden_size = 64;
  const double matrix = 300000.0 * 64.0 * 4.0, window = 32.0 * 1024 * 1024;
  const Spread run(model, {});
  EXPECT_DOUBLE_EQ(run.shared.gathered, 3.0 * window) << "a window, its gradient, and that on its way";
  const double own = (run.units.all + run.units.whole) / 2.0;
  EXPECT_DOUBLE_EQ(run.shared.gradients, own + run.units.whole + run.units.layer) << "the owners get those of windows";
  for (const auto& [pass, counted] : {std::pair(2000.0, 2000.0), std::pair(20000.0, 8192.0)}) {
    const Spread tokens(model, {"actor.ppo_max_token_len_per_gpu=" + std::to_string(static_cast<int64_t>(pass))});
    EXPECT_DOUBLE_EQ(tokens.shared.head - tokens.alone.head, counted * 64.0 * 4.0)
        << "the hidden states' gradients of a window";
  }
  const Spread kept(model, {"trainer.deterministic=true"});
  EXPECT_DOUBLE_EQ(kept.shared.gathered, window) << "whole gradients are no part of a window";
  EXPECT_GE(kept.shared.gradients, kept.alone.gradients);
  const Spread filtered(model, {"rollout.filtered_log_probs=true", "rollout.top_k=20"});
  EXPECT_DOUBLE_EQ(filtered.shared.gathered, run.shared.gathered);
  EXPECT_DOUBLE_EQ(filtered.sent.weight_bytes - run.sent.weight_bytes,
                   matrix / 2.0 * static_cast<double>((run.sent.most_passes + 1) / 2))
      << "one walk more of each pass";
  const Spread compared(model, {"actor.use_kl_loss=true", "actor.kl_loss_type=full"});
  EXPECT_DOUBLE_EQ(compared.shared.gathered, 4.0 * window) << "a window of the reference, too";
  EXPECT_LT(compared.shared.head, compared.alone.head - 64e6) << "logits of two windows, not of two heads";
  EXPECT_GT(compared.sent.weight_bytes, run.sent.weight_bytes + 4.0 * matrix / 2.0);
}

TEST(MemoryEstimates, HaveTheRowsOfWindowsThatPassesRead) {
  ModelConfig model = small_config(131072, 2);
  model.hidden_size = 64;
  const RunConfig config;
  const auto rows = [&](bool is_on_device = false) {
    return vocabulary_window(model, {.is_on_device = is_on_device}, config).rows;
  };
  EXPECT_EQ(rows(), 0) << "one window would be the whole matrix";
  model.vocab_size += 1;
  EXPECT_EQ(rows(), 131072);
  for (const int64_t hidden : {2112, 3584, 16384}) {
    model.hidden_size = hidden;
    EXPECT_EQ(rows(), 2048) << "no window cuts a block";
    EXPECT_DOUBLE_EQ(vocabulary_window(model, {}, config).bytes, 2048.0 * static_cast<double>(hidden) * 4.0);
  }
  EXPECT_EQ(rows(/*is_on_device=*/true), 0) << "a device reads whole heads";
}

// Ranks that share the vocabulary have windows of their own rows.
TEST(MemoryEstimates, CountWindowsOfARanksRows) {
  ModelConfig model = small_config(300000, 2);
  model.hidden_size = 64;
  const double window = 32.0 * 1024 * 1024;
  const Spread run(model, {"actor.tensor_model_parallel_size=2"}, 4), whole(model, {});
  EXPECT_EQ(run.units.window.rows, 131072);
  EXPECT_DOUBLE_EQ(run.shared.gathered, 3.0 * window);
  EXPECT_LT(run.shared.gradients, whole.shared.gradients);
  const Spread small(model, {"actor.tensor_model_parallel_size=4"}, 8);
  EXPECT_EQ(small.units.window.rows, 0) << "one window would be all rows of a rank";
  EXPECT_EQ(vocabulary_window(model, {.of_vocabulary = 1}, small.loaded.config).rows, 131072)
      << "an adapter that trains the head keeps all rows on every rank";
  const Spread alone(model, {"actor.tensor_model_parallel_size=2"}, 2);
  EXPECT_DOUBLE_EQ(alone.shared.head, alone.alone.head) << "no other rank has the same rows";
}

// So that all numbers of ranks have the same bits, one process passes a large head in windows, too.
TEST(MemoryEstimates, CountTheWindowsOfDeterministicUpdates) {
  ModelConfig model = small_config(300000, 2);
  model.hidden_size = 64;
  const auto head = [&](const std::string& deterministic, const std::string& tokens) {
    return Spread(model, {"trainer.deterministic=" + deterministic, "actor.ppo_max_token_len_per_gpu=" + tokens})
        .alone.head;
  };
  EXPECT_DOUBLE_EQ(head("true", "2000") - head("false", "2000"), 2000.0 * 64.0 * 4.0);
  EXPECT_DOUBLE_EQ(head("true", "20000") - head("false", "20000"), 8192.0 * 64.0 * 4.0);
  model.vocab_size = 131072;
  EXPECT_DOUBLE_EQ(head("true", "2000"), head("false", "2000")) << "the head is one window";
}

// A reference that is the base of the adapter has the rows of the policy's head.
TEST(MemoryEstimates, CountTheSharedBaseOnce) {
  ModelConfig model = small_config(300000, 2);
  model.hidden_size = 64;
  const auto parameters = allocate_parameters(model, at::kFloat, false).parameters;
  LoraPlan plan = plan_fresh_lora(parameters, {.rank = 2, .target_modules = {"q_proj"}}).value();
  const LoraSize lora = measure_lora(parameters, plan);
  const auto run = [&](std::vector<std::string> overrides) {
    overrides.emplace_back("model.lora_rank=2");
    overrides.emplace_back("model.target_modules=[\"q_proj\"]");
    return Spread(model, std::move(overrides), 2, lora);
  };
  const std::vector<std::string> full{"actor.use_kl_loss=true", "actor.kl_loss_type=full"};
  std::vector<std::string> refreshed = full;
  refreshed.emplace_back("ref.sync_steps=3");
  const Spread alone = run({"actor.use_kl_loss=true"}), shared = run(full), copied = run(refreshed);
  const double window = shared.units.window.bytes;
  ASSERT_GT(window, 0.0);
  EXPECT_DOUBLE_EQ(shared.shared.gathered, alone.shared.gathered);
  EXPECT_DOUBLE_EQ(copied.shared.gathered, shared.shared.gathered + window);
  const double head = static_cast<double>(model.vocab_size * model.hidden_size) * 4.0;
  EXPECT_DOUBLE_EQ(copied.sent.weight_bytes - shared.sent.weight_bytes,
                   2.0 * head / 2.0 * static_cast<double>((shared.sent.most_passes + 1) / 2));
}

// In a run with 32,768 rows, 40 tokens more per row took 98 MiB more.
TEST(MemoryEstimates, CountTheRowsOfAStep) {
  RunConfig config;
  config.data.train_batch_size = 4096;
  config.rollout.n = 8;
  config.data.max_response_length = 8;
  const double before = bytes_of_rows(config);
  EXPECT_GT(before, 0.0);
  config.data.max_response_length = 48;
  EXPECT_NEAR(bytes_of_rows(config) - before, 98.0 * (1 << 20), 5.0 * (1 << 20));
  const double of_one_step = bytes_of_rows(config);
  config.trainer.max_staleness = 2;
  config.trainer.mode = TrainMode::kAsync;
  EXPECT_EQ(bytes_of_rows(config), of_one_step * static_cast<double>(1 + config.trainer.steps_ahead()));
  EXPECT_GT(config.trainer.steps_ahead(), 0);
}

// Ranks on GPUs that sample together decode without graphs.
TEST(MemoryEstimates, CountGraphsOfOneSampler) {
  const ModelConfig model = small_config(29, 2);
  RunConfig config;
  EXPECT_GT(graph_bytes(model, config), 0.0);
  config.rollout.tensor_model_parallel_size = 2;
  EXPECT_EQ(graph_bytes(model, config), 0.0);
}

// The experts of Qwen3-30B-A3B: of each token, 8 have gate and up in float32 and their product in bfloat16, or that and
// the result in float32.
TEST(MemoryEstimates, CountTheExpertsOfAFullPass) {
  ModelConfig model = small_config(29, 2);
  RunConfig config;
  EXPECT_EQ(expert_pass_bytes(model, config), 0.0);
  model.hidden_size = 2048;
  model.moe.num_experts = 128, model.moe.experts_per_token = 8, model.moe.expert_size = 768;
  model.moe.is_dense.assign(static_cast<size_t>(model.num_layers), false);
  config.model.dtype = ModelDtype::kBfloat16;
  config.rollout.max_num_batched_tokens = 1000;
  const double pairs = 1000.0 * 8 * (2 * 768 + 4 * 2048);
  EXPECT_GT(expert_pass_bytes(model, config), pairs);
  EXPECT_LT(expert_pass_bytes(model, config), 1.2 * pairs);
  config.rollout.max_num_batched_tokens = 1 << 20;  // by libtorch's operators
  EXPECT_LT(expert_pass_bytes(model, config), 10.0 * pairs);
  config.model.dtype = ModelDtype::kFloat64;
  EXPECT_EQ(expert_pass_bytes(model, config), 0.0);
}

// A bfloat16 model on a device has a copy of its head, tied or not, while it samples, and in each pass of the head one, with the
// gradients that are rounded. A divergence has the copy of the other model's head too.
TEST(MemoryEstimates, CountTheRoundedHeadOfADevice) {
  const auto estimate = [](const ModelConfig& model, std::vector<std::string> settings, bool by_operators = true) {
    settings.emplace_back("actor.ppo_max_token_len_per_gpu=2048");  // its default depends on the device
    const Spread run(model, std::move(settings));
    const auto tokens = tokens_on_rank(run.loaded.config, plan_batches(run.loaded.config), by_operators);
    return std::pair{estimate_memory(model, std::nullopt, run.trained, run.loaded.config, by_operators),
                     static_cast<int64_t>(tokens)};
  };
  for (const bool is_tied : {true, false}) {
    ModelConfig model = small_config(29, 2);
    model.tie_word_embeddings = is_tied;
    const auto plain = estimate(model, {}).first;
    const auto [rounded, tokens] = estimate(model, {"model.dtype=bfloat16"});
    const double copy = 2.0 * 29.0 * static_cast<double>(model.hidden_size);
    EXPECT_DOUBLE_EQ(plain.rollout, 0.0);
    EXPECT_DOUBLE_EQ(rounded.rollout, copy);
    const auto pass = static_cast<double>(rounded_head_bytes(tokens, model.hidden_size, model.vocab_size));
    EXPECT_DOUBLE_EQ(rounded.head - plain.head, pass);
    const auto divergence = [&](bool by_operators) {
      return estimate(model, {"actor.use_kl_loss=true", "actor.kl_loss_type=full", "model.dtype=bfloat16"},
                      by_operators)
          .first.head;
    };
    EXPECT_DOUBLE_EQ(divergence(true) - divergence(false), pass + copy);
  }
}

// With the kernels of core/cuda a pass on a GPU keeps as much less as its layers do (device_layers_test.cpp).
TEST(MemoryEstimates, CountWhatTheKernelsOfADeviceKeep) {
  const ModelConfig model = small_config(29, 2);
  Spread run(model, {"model.dtype=bfloat16", "actor.ppo_max_token_len_per_gpu=2048"});
  NumberSizes sizes(4, 2);
  sizes.by_operators = run.trained.is_on_device = true;
  const auto activations = [&] {
    return estimate_memory(model, std::nullopt, run.trained, run.loaded.config, true).activations;
  };
  const double by_operators = activations(), of_layer = static_cast<double>(layer_memory(model, sizes).kept);
  sizes.by_kernels = run.trained.has_kernels = true;
  const double tokens = tokens_on_rank(run.loaded.config, plan_batches(run.loaded.config), true);
  const double less = of_layer - static_cast<double>(layer_memory(model, sizes).kept);
  EXPECT_GT(less, 0.0);
  EXPECT_DOUBLE_EQ(by_operators - activations(), tokens * less * static_cast<double>(model.num_layers));
}

// The base of a DoRA layer stays while it is open, also if the adapter comes from a folder.
TEST(MemoryEstimates, CountTheBaseThatDoraReads) {
  const ModelConfig model = small_config(29, 2);
  const auto gathered = [&](bool use_dora) {
    const auto parameters = allocate_parameters(model, at::kFloat, false).parameters;
    LoraPlan plan =
        plan_fresh_lora(parameters, {.rank = 2, .target_modules = {"all-linear"}, .use_dora = use_dora}).value();
    return Spread(model, {"model.lora_adapter_path=/a/folder"}, 2, measure_lora(parameters, plan)).shared.gathered;
  };
  EXPECT_DOUBLE_EQ(gathered(true) - gathered(false), unit_bytes(model, 4.0).layer);
}

// Without master weights a rank's numbers of a layer are float32 while they are stepped, with lower stages those of a bucket.
TEST(MemoryEstimates, CountTheNumbersThatAStepWidens) {
  const ModelConfig model = small_config(29, 3);
  const Spread run(model, {"model.dtype=bfloat16", "actor.optim.master_weights=false"});
  EXPECT_DOUBLE_EQ(run.shared.stepped, run.units.layer / 2.0);
  EXPECT_DOUBLE_EQ(Spread(model, {"model.dtype=bfloat16"}).shared.stepped, 0.0);
  RunConfig config = run.loaded.config;
  config.ranks.zero_stage = 2;
  MemoryEstimate memory = run.alone;
  share_memory(model, run.units, run.trained, config, false, 2, {}, memory);
  EXPECT_DOUBLE_EQ(memory.stepped, run.units.layers / 2.0) << "all layers are one bucket";
}

// The gradient of a model of 4 layers of 64 MiB each, with an embedding of its own.
TEST(MemoryEstimates, CountTheBucketsInWhichGradientsLeave) {
  constexpr double kMiB = 1 << 20;
  ModelConfig model = small_config(1 << 16, 4);
  model.hidden_size = 512;
  model.intermediate_size = 10000;
  const Spread run(model, {"trainer.deterministic=false"});
  const double all = run.alone.gradients, end = run.trained.units.largest_end;
  const auto gradients = [&](int64_t stage, int64_t passes, int num_ranks, bool deterministic = false) {
    RunConfig config = run.loaded.config;
    config.ranks.zero_stage = stage;
    config.trainer.deterministic = deterministic;
    config.actor.use_dynamic_bsz = false;
    config.actor.ppo_micro_batch_size_per_gpu = 1;
    config.rollout.n = 1;
    config.data.train_batch_size = config.actor.ppo_mini_batch_size = passes * num_ranks;
    MemoryEstimate memory = run.alone;
    memory.activations = 0;
    share_memory(model, run.units, run.trained, config, false, num_ranks, {}, memory);
    return memory.gradients;
  };
  EXPECT_DOUBLE_EQ(gradients(2, 2, 4), all / 4 + end + (3 * 32 + 64) * kMiB);
  EXPECT_DOUBLE_EQ(gradients(2, 2, 2), all / 2 + end + (3 * 32 + 64) * kMiB);
  EXPECT_DOUBLE_EQ(gradients(1, 1, 4), gradients(2, 1, 4)) << "one pass is the last one";
  EXPECT_DOUBLE_EQ(gradients(1, 2, 4), all + 64 * kMiB);
  EXPECT_DOUBLE_EQ(gradients(1, 2, 4, true), 2 * all) << "that of the first pass stays";
  EXPECT_DOUBLE_EQ(gradients(1, 1, 4, true), all + all / 4 + 64 * kMiB) << "a rank's part of the sum, and messages";
  EXPECT_DOUBLE_EQ(gradients(1, 7, 4, true), 3 * all + all / 4 + 64 * kMiB) << "sums of four, two and one passes";
  EXPECT_DOUBLE_EQ(gradients(0, 8, 4, true), 4 * all);
  EXPECT_DOUBLE_EQ(gradients(0, 8, 1, true), 4 * all) << "one process adds in the same order";
  EXPECT_DOUBLE_EQ(gradients(2, 1, 4, true), gradients(2, 1, 4) + all / 4) << "the sum of the four";
  EXPECT_DOUBLE_EQ(gradients(2, 7, 4, true), gradients(2, 7, 4) + 3 * all / 4) << "16 + 8 + 4 of 28 micro-batches";
}

// A critic's gradient leaves layer by layer, and never meets that of the policy.
TEST(MemoryEstimates, CountTheCriticsPartOfItsGradient) {
  const ModelConfig model = small_config(29, 12);
  const Spread run(model, {"trainer.deterministic=false"});
  CriticBytes critic;
  critic.units = unit_bytes(model, 4.0);
  critic.trained = run.trained;
  critic.weights = critic.matrices = critic.units.all;
  critic.gradients = 2.0 * run.alone.gradients;  // as if it was larger than the policy
  critic.trained.units.all *= 2.0;
  const auto shared = [&](bool has_lora) {
    critic.has_lora = has_lora;
    MemoryEstimate memory = run.alone;
    memory.critic = critic.weights + critic.gradients;
    share_memory(model, run.units, run.trained, run.loaded.config, false, 2, critic, memory);
    return memory;
  };
  EXPECT_DOUBLE_EQ(shared(false).critic, critic.weights / 2.0);
  EXPECT_DOUBLE_EQ(shared(false).gradients, run.shared.gradients + run.trained.units.all / 2.0);
  EXPECT_GE(shared(true).gradients, critic.gradients) << "an adapter's is whole until the pass has ended";
  // It has micro-batches of its own: seven in an update, and the policy has one.
  RunConfig config = run_of_passes(7);
  config.trainer.deterministic = true;
  config.actor.ppo_micro_batch_size_per_gpu = 7;
  config.critic.ppo_micro_batch_size_per_gpu = 1;
  critic.has_lora = false;
  critic.activations = 1e12;  // more than all sums
  for (const int num_ranks : {1, 2}) {
    MemoryEstimate without = run.alone;
    RunConfig other = config;
    other.critic.ulysses_sequence_parallel_size = 4;  // not checked in a run that has no critic
    share_memory(model, run.units, run.trained, other, false, num_ranks, {}, without);
    EXPECT_EQ(without.critic, 0.0);
    MemoryEstimate memory = run.alone;
    memory.critic = critic.gradients;
    share_memory(model, run.units, run.trained, config, false, num_ranks, critic, memory);
    EXPECT_DOUBLE_EQ(memory.critic, 3.0 * critic.gradients) << "of seven, or of four in each of two ranks";
  }
}

// What an adapter trains of embedding and head in their place is whole on every rank, and so is the base's unless a
// reference reads that.
TEST(MemoryEstimates, CountEndsThatAnAdapterTrains) {
  const ModelConfig model = small_config(4096, 12);
  const auto parameters = allocate_parameters(model, at::kFloat, false).parameters;
  const auto spread = [&](const std::string& kl, std::vector<std::string> saved) {
    const LoraChoice choice{.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = std::move(saved)};
    return Spread(model, {"model.lora_rank=2", "actor.use_kl_loss=" + kl, "trainer.deterministic=false"}, 2,
                  measure_lora(parameters, plan_fresh_lora(parameters, choice).value()));
  };
  const Spread plain = spread("false", {}), whole = spread("false", {"embed_tokens"}),
               viewed = spread("true", {"embed_tokens"});
  const double end = plain.units.largest_end;
  EXPECT_DOUBLE_EQ(whole.trained.units.ends, end);
  EXPECT_DOUBLE_EQ(whole.shared.weights, plain.shared.weights + 2.0 * end);
  EXPECT_DOUBLE_EQ(viewed.shared.weights, plain.shared.weights + end);
  EXPECT_DOUBLE_EQ(whole.shared.whole, plain.shared.whole - end) << "a rollout does not read the base's";
  EXPECT_GE(whole.shared.gradients, end);
}

// Ranks that share tokens send an adapter's gradient behind the pass.
TEST(MemoryEstimates, CountTheWholeGradientOfAnAdapterWithSharedTokens) {
  const ModelConfig model = small_config(1 << 16, 12);
  const auto parameters = allocate_parameters(model, at::kFloat, false).parameters;
  const LoraChoice choice{.rank = 2, .target_modules = {"q_proj"}, .modules_to_save = {"embed_tokens"}};
  const LoraSize lora = measure_lora(parameters, plan_fresh_lora(parameters, choice).value());
  const Spread run(model, {"model.lora_rank=2", "trainer.deterministic=false"}, 4, lora);
  const auto gradients = [&](int64_t size) {
    RunConfig config = run.loaded.config;
    config.ranks.zero_stage = 2;
    config.actor.ulysses_sequence_parallel_size = size;
    config.actor.ppo_max_token_len_per_gpu = 1;
    MemoryEstimate memory = run.alone;
    memory.activations = 0;
    share_memory(model, run.units, run.trained, config, true, 4, {}, memory);
    return memory.gradients;
  };
  const double all = run.alone.gradients;
  EXPECT_DOUBLE_EQ(gradients(2), all + all / 4.0 + 2.0 * all) << "next to its part of the sum, and with messages";
  EXPECT_LT(gradients(1), gradients(2) + all);
}

// Only a step reads the state that lies in files, when there are no activations.
TEST(MemoryEstimates, CountStateInFilesWhileItIsStepped) {
  const ModelConfig model = small_config(4096, 12);
  const Spread run(model, {"actor.optim.offload=file"});
  MemoryEstimate memory = run.shared;
  offload_memory(model, run.trained, run.loaded.config, false, 2, {}, memory);
  EXPECT_DOUBLE_EQ(memory.moments, 0.0);
  EXPECT_DOUBLE_EQ(memory.files, run.shared.moments);
  EXPECT_DOUBLE_EQ(memory.stepped, run.trained.largest_moments / 2.0);
}

// What rests on the host is on the device in updates alone, and only that of the policy or that of the critic.
TEST(DeviceNeed, StatesThatLeaveCountInUpdatesAlone) {
  const ModelConfig model = small_config(4096, 12);
  const Spread run(model, {"actor.optim.offload=while_sampling", "critic.optim.offload=while_sampling"});
  TrainedSize trained = run.trained;
  CriticBytes critic;
  critic.moments = 64.0;
  MemoryEstimate memory = run.shared;
  memory.critic = 100.0;
  const MemoryEstimate before = memory;
  offload_memory(model, trained, run.loaded.config, false, 2, critic, memory);
  EXPECT_EQ(memory.resting, 0.0) << "the CPU has one memory";
  trained.is_on_device = true;
  offload_memory(model, trained, run.loaded.config, false, 2, critic, memory);
  EXPECT_GT(memory.moments, 64.0);
  EXPECT_EQ(memory.resting_masters, 0.0) << "float32 has no copies";
  EXPECT_EQ(memory.total(), before.total());
  const auto need = [&](const MemoryEstimate& one, MemoryUse use) {
    return device_need(one, run.loaded.config, 2).bytes(use);
  };
  const double of_critic = run.loaded.config.ranks.zero_stage > 0 ? 32.0 : 64.0;
  EXPECT_DOUBLE_EQ(need(before, MemoryUse::kSampling) - need(memory, MemoryUse::kSampling), memory.moments + of_critic);
  EXPECT_DOUBLE_EQ(need(before, MemoryUse::kUpdates) - need(memory, MemoryUse::kUpdates), of_critic);
  memory.resting_critic = memory.resting + 1.0;
  memory.critic = 2.0 * memory.resting_critic;
  MemoryEstimate stays = memory;
  stays.resting = stays.resting_critic = 0.0;
  EXPECT_DOUBLE_EQ(need(stays, MemoryUse::kUpdates) - need(memory, MemoryUse::kUpdates), memory.resting);
}

// Masters of bfloat16 matrices rest too, but for ranks that exchange them. A start reads them.
TEST(DeviceNeed, MastersThatLeaveCountInUpdatesAndAtTheStart) {
  const ModelConfig model = small_config(4096, 12);
  const Spread run(model, {"actor.optim.offload=while_sampling", "model.dtype=bfloat16"});
  TrainedSize trained = run.trained;
  trained.is_on_device = true;
  RunConfig config = run.loaded.config;
  config.ranks.zero_stage = 0;
  MemoryEstimate memory = run.shared;
  memory.weights = weight_bytes(model, ModelDtype::kBfloat16, WeightCopies::kMasters);
  offload_memory(model, trained, config, false, 1, {}, memory);
  EXPECT_EQ(memory.resting_masters, master_bytes(model, ModelDtype::kBfloat16));
  EXPECT_GT(memory.resting_masters, 0.0);
  MemoryEstimate stays = memory;
  stays.resting_masters = 0.0;
  const auto saved = [&](MemoryUse use) {
    return device_need(stays, config, 1).bytes(use) - device_need(memory, config, 1).bytes(use);
  };
  EXPECT_DOUBLE_EQ(saved(MemoryUse::kSampling), memory.resting_masters);
  EXPECT_EQ(saved(MemoryUse::kUpdates), 0.0);
  EXPECT_EQ(saved(MemoryUse::kStart), 0.0);
  config.ranks.zero_stage = 1;
  memory = run.shared;
  offload_memory(model, trained, config, false, 2, {}, memory);
  EXPECT_EQ(memory.resting_masters, 0.0) << "ranks exchange them";
}

}  // namespace
}  // namespace mortise
