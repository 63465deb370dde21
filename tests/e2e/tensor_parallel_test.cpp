// Tensor parallel in whole runs of `mortise launch`: the numbers of one process, the same checkpoints, resumes with other
// meshes, refusals, what --dry-run says, and a rank that is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rank_runs.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

// Passes of at most 20 tokens, however many ranks share them.
std::vector<std::string> tensor_mesh(int tensor_size, int sequence_size = 1) {
  return {"actor.tensor_model_parallel_size=" + std::to_string(tensor_size),
          "actor.ulysses_sequence_parallel_size=" + std::to_string(sequence_size),
          "actor.ppo_max_token_len_per_gpu=" + std::to_string(20 / sequence_size),
          "critic.ppo_max_token_len_per_gpu=20"};
}

// The same ranks also sample together.
std::vector<std::string> sampling_mesh(int rollout_size, int tensor_size = 1) {
  return joined(tensor_mesh(tensor_size),
                {"rollout.tensor_model_parallel_size=" + std::to_string(rollout_size), "rollout.max_num_seqs=4"});
}

class TensorParallelRuns : public testing::TestWithParam<SharedCase> {};

TEST_P(TensorParallelRuns, Float64RunsAreEqualToRounding) {
  const std::vector<SharedRun> all{
      {"dp_2_tp_2", 4, tensor_mesh(2)}, {"tp_4", 4, tensor_mesh(4)}, {"sp_2_tp_2", 4, tensor_mesh(2, 2)}};
  expect_numbers_of_one_process(GetParam().run, tensor_mesh(1), chosen(GetParam(), all));
}

INSTANTIATE_TEST_SUITE_P(
    All, TensorParallelRuns,
    testing::Values(
        SharedCase{{"adaptive_kl", "train", {}}, {"dp_2_tp_2", "tp_4", "sp_2_tp_2"}},
        SharedCase{{"critic_and_validation",
                    "train",
                    {"algorithm.adv_estimator=gae", "~algorithm.adv_params", "trainer.test_freq=1",
                     "data.val_files=data/train.jsonl", "data.val_max_samples=40"}},
                   {"dp_2_tp_2", "sp_2_tp_2"}},
        SharedCase{{"sampling_ahead_recomputed_layers_and_sgd",
                    "train",
                    {"trainer.mode=one_step_off", "actor.optim.optimizer=sgd", "actor.optim.momentum=0.9",
                     "model.enable_gradient_checkpointing=true"}},
                   {"tp_4"}},
        SharedCase{{"adapters_of_policy_and_critic",
                    "train",
                    {"model.lora_rank=2", "actor.policy_loss.loss_mode=gspo", "actor.use_kl_loss=true",
                     "algorithm.adv_estimator=gae", "~algorithm.adv_params", "critic.model.lora_rank=2"}},
                   {"dp_2_tp_2", "sp_2_tp_2"}},
        SharedCase{
            {"dora_with_dropout", "train", {"model.lora_rank=2", "model.lora_dropout=0.2", "model.use_dora=true"}},
            {"tp_4", "sp_2_tp_2"}},
        SharedCase{{"lora_with_biases",
                    "train",
                    {"model.lora_rank=2", "model.lora_bias=all", "model.modules_to_save=[embed_tokens,norm]",
                     "actor.use_kl_loss=true", "trainer.mode=one_step_off"}},
                   {"dp_2_tp_2", "tp_4"}},
        SharedCase{{"full_kl", "train", {"actor.use_kl_loss=true", "actor.kl_loss_type=full"}}, {"sp_2_tp_2"}},
        SharedCase{{"filtered_log_probs", "train", {"rollout.top_k=5", "rollout.filtered_log_probs=true"}},
                   {"sp_2_tp_2"}},
        SharedCase{{"phi3", "train", {"actor.use_kl_loss=true"}, "--fused"}, {"tp_4", "sp_2_tp_2"}},
        SharedCase{{"gpt_oss", "train", {"actor.use_kl_loss=true"}, "--gpt-oss"}, {"dp_2_tp_2", "tp_4"}},
        SharedCase{{"sft", "sft", {}}, {"sp_2_tp_2"}}),
    [](const auto& one) { return std::string(one.param.run.name); });

class SampledTogether : public testing::TestWithParam<SharedCase> {};

// With split layers and with whole ones, also while groups take prompts from each other.
TEST_P(SampledTogether, Float64RunsAreEqualToRounding) {
  std::vector<std::string> zero = sampling_mesh(2);
  zero.emplace_back("ranks.zero_stage=3");
  const std::vector<std::string> device{"model.device=cpu-as-device"};
  const std::vector<SharedRun> all{{"tp_2", 4, sampling_mesh(2, 2)},
                                   {"tp_4", 4, sampling_mesh(4, 4)},
                                   {"smaller_groups", 4, sampling_mesh(2, 4)},
                                   {"larger_groups", 4, sampling_mesh(4, 2)},
                                   {"whole_layers", 4, sampling_mesh(2)},
                                   {"zero_3", 2, zero},
                                   {"on_devices", 4, joined(sampling_mesh(2, 2), device)},
                                   {"on_devices_zero_3", 2, joined(zero, device)}};
  expect_numbers_of_one_process(GetParam().run, tensor_mesh(1), chosen(GetParam(), all));
}

INSTANTIATE_TEST_SUITE_P(
    All, SampledTogether,
    testing::Values(
        SharedCase{{"validation",
                    "train",
                    {"trainer.test_freq=1", "data.val_files=data/train.jsonl", "data.val_max_samples=4"}},
                   {"tp_2", "tp_4", "smaller_groups", "larger_groups", "whole_layers", "zero_3", "on_devices"}},
        SharedCase{{"greedy_baselines", "train", {"algorithm.adv_estimator=remax", "~algorithm.adv_params"}},
                   {"smaller_groups", "zero_3"}},
        SharedCase{{"lora_with_a_reference", "train", {"model.lora_rank=2", "actor.use_kl_loss=true"}},
                   {"tp_2", "larger_groups", "zero_3", "on_devices_zero_3"}},
        SharedCase{
            {"over_sampling", "train", {"rollout.over_sampling=1.5", "rollout.n=2", "data.max_response_length=12"}},
            {"tp_2", "whole_layers", "zero_3"}}),
    [](const auto& one) { return std::string(one.param.run.name); });

// Families whose matrices are split in a way of their own.
TEST(SampledTogetherRun, EveryFamilyGivesTheNumbersOfOneProcess) {
  for (const auto& [name, model] : {std::pair("phi3", "--fused"), std::pair("gpt_oss", "--gpt-oss")}) {
    SCOPED_TRACE(name);
    expect_numbers_of_one_process(
        {name, "train", {}, model}, tensor_mesh(1),
        {{"zero_3", 4, joined(sampling_mesh(2, 2), {"ranks.zero_stage=3"})}, {"whole_layers", 2, sampling_mesh(2)}});
  }
}

// The samples of the first step are those of one process, with log-probs as near as `tolerance`.
void expect_samples_of_one_process(const std::string& dtype, double tolerance) {
  const TinyTask task;
  const auto samples_of = [&](int num_ranks, const std::string& out, const std::vector<std::string>& mesh) {
    const Outcome outcome =
        launch(task, num_ranks, "train", out,
               until(1, joined(mesh, {"trainer.rollout_data_dir=" + out + "/samples", "model.dtype=" + dtype})));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    const std::string text = default_env().read_file(task.path() / out / "samples/1.jsonl").value();
    std::vector<Json> rows;
    std::stringstream lines(text);
    for (std::string line; std::getline(lines, line);) rows.push_back(parse_json(line, "samples").value());
    return rows;
  };
  const std::vector<Json> alone = samples_of(1, "alone", {});
  ASSERT_FALSE(alone.empty());
  for (const std::vector<Json>& rows :
       {samples_of(2, "tp_2", sampling_mesh(2, 2)), samples_of(4, "whole_layers", sampling_mesh(2))}) {
    ASSERT_EQ(rows.size(), alone.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].at("token_ids"), alone[i].at("token_ids")) << i;
      const auto got = rows[i].at("log_probs").get<std::vector<double>>();
      const auto want = alone[i].at("log_probs").get<std::vector<double>>();
      ASSERT_EQ(got.size(), want.size());
      for (size_t t = 0; t < got.size(); ++t) EXPECT_NEAR(got[t], want[t], tolerance);
    }
  }
}

// The fast path. The weights of the first step are the same, so its tokens are, and log-probs differ by rounding.
TEST(SampledTogetherRun, Float32SamplesOfTheFirstStepAreThoseOfOneProcess) {
  expect_samples_of_one_process("float32", 1e-5);
}

TEST(SampledTogetherRun, Bfloat16SamplesOfTheFirstStepAreThoseOfOneProcess) {
  expect_samples_of_one_process("bfloat16", 1e-2);
}

TEST(SampledTogetherRun, DeterministicRunsDoNotDependOnTheNumberOfGroups) {
  expect_bits_of_one_group(sampling_mesh(2, 2));
}

TEST(SampledTogetherRun, AValidationAloneSamplesTogether) {
  const TinyTask task;
  const auto numbers_of = [&](int num_ranks, const std::string& out, const std::vector<std::string>& mesh) {
    const Outcome outcome =
        launch(task, num_ranks, "train", out,
               joined(mesh, {"model.dtype=float64", "trainer.val_only=true", "data.val_files=data/train.jsonl",
                             "rollout.val_kwargs.do_sample=true", "data.val_max_samples=40"}));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
  };
  numbers_of(1, "alone", {});
  numbers_of(2, "together", sampling_mesh(2, 2));
  expect_near_rows(task.path() / "together", task.path() / "alone", "metrics.jsonl", 1e-11);
  // Settings of updates that cannot be used with groups, or not with ranks, have no meaning here.
  for (const std::string setting :
       {"actor.tensor_model_parallel_size=4", "trainer.mode=one_step_off", "ranks.zero_stage=3", "ref.offload=file"}) {
    SCOPED_TRACE(setting);
    const std::string out = setting.substr(setting.find('=') + 1);
    numbers_of(4, out, joined(sampling_mesh(2, 4), {setting}));
    expect_near_rows(task.path() / out, task.path() / "alone", "metrics.jsonl", 1e-11);
  }
}

TEST(SampledTogetherRun, EvalOnRanksSamplesTogether) {
  const TinyTask task;
  const auto numbers_of = [&](int num_ranks, const std::vector<std::string>& mesh) {
    const Outcome outcome = launch(
        task, num_ranks, "eval", "out",
        joined(mesh, {"model.dtype=float64", "data.val_files=data/train.jsonl", "rollout.val_kwargs.do_sample=true",
                      "rollout.val_kwargs.temperature=1", "data.val_max_samples=40", "--json"}));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return parse_json(outcome.output.substr(outcome.output.find('{')), "eval").value();
  };
  const Json alone = numbers_of(1, {});
  for (const auto& mesh : {sampling_mesh(2), sampling_mesh(2, 4), sampling_mesh(4)}) {
    const Json together = numbers_of(4, mesh);
    EXPECT_EQ(together.at("num_rows"), alone.at("num_rows"));
    int num_compared = 0;
    for (const auto& [name, value] : alone.items()) {
      if (!name.starts_with("val-core/") && !name.starts_with("eval_completions/")) continue;
      EXPECT_NEAR(together.at(name).get<double>(), value.get<double>(), 1e-11) << name;
      ++num_compared;
    }
    EXPECT_GT(num_compared, 0);
  }
}

TEST(SampledTogetherRun, WhatCannotBeSharedIsRefusedByName) {
  const TinyTask task;
  const std::string key = "rollout.tensor_model_parallel_size";
  expect_refused(task, 1, {key + "=2"}, "'" + key + "' is 2, but 1 rank cannot form groups of 2");
  expect_refused(task, 3, {key + "=3"}, "'" + key + "' is 3, but the 4 query heads, 2 key-value heads and ");
  for (const std::string setting : {"rollout.name=replay", "trainer.mode=one_step_off"}) {
    SCOPED_TRACE(setting);
    expect_refused(task, 1, {key + "=2", setting}, "cannot be used with " + key + " = 2",
                   "'" + setting.substr(0, setting.find('=')) + "'");
  }
}

TEST(SampledTogetherRun, TheDryRunShowsTheGroups) {
  const TinyTask task;
  EXPECT_THAT(dry_run(task, 4, sampling_mesh(2)),
              HasSubstr("# rollouts: groups of 2 ranks sample the same rows, and a rank sends about"));
  const auto numbers = [&](int rollout, int tensor) {
    return dry_run_numbers(task, 4, sampling_mesh(rollout, tensor));
  };
  const Json alone = numbers(1, 2), together = numbers(2, 2);
  EXPECT_EQ(alone.at("ranks").at("rollout_tensor_parallel_size"), 1);
  EXPECT_EQ(together.at("ranks").at("rollout_tensor_parallel_size"), 2);
  EXPECT_GT(together.at("ranks").at("rollout_bytes_sent_per_step").get<int64_t>(), 0);
  const auto weights_sent = [](const Json& one) {
    return one.at("ranks").at("weight_bytes_sent_per_step").get<int64_t>();
  };
  EXPECT_GT(weights_sent(together), 0) << "embedding and head";
  EXPECT_GT(weights_sent(alone), 2 * weights_sent(together));
  const auto bytes = [](const Json& one, const char* part) { return one.at("memory_bytes").at(part).get<double>(); };
  EXPECT_EQ(bytes(together, "kv_cache") * 2, bytes(alone, "kv_cache"));
  EXPECT_LT(bytes(together, "rollout_weights"), bytes(alone, "rollout_weights"));
  EXPECT_LT(bytes(together, "whole_weights_in_rollout"), bytes(alone, "whole_weights_in_rollout"));
  const Json larger = numbers(4, 2);
  EXPECT_GT(bytes(larger, "whole_weights_in_rollout"), bytes(together, "whole_weights_in_rollout"))
      << "other groups gather all layers";
  EXPECT_GT(weights_sent(larger), weights_sent(together));
}

TEST(SampledTogetherRun, ARankThatIsKilledIsNamed) { expect_killed_rank_is_named(sampling_mesh(2, 2)); }

TEST(TensorParallelRun, DeterministicRunsDoNotDependOnTheNumberOfGroups) { expect_bits_of_one_group(tensor_mesh(2)); }

std::vector<std::string> with_zero(int64_t stage, const std::vector<std::string>& mesh) {
  return joined(mesh, {"ranks.zero_stage=" + std::to_string(stage)});
}

// The state is shared by the ranks that have the same part of the layers. Every stage of every kind of group is run once,
// with one of the three configurations.
TEST(TensorParallelRun, StatesThatAreSharedGiveTheSameNumbers) {
  const std::vector<SharedRun> updates{{"zero_1", 4, with_zero(1, tensor_mesh(2))},
                                       {"zero_2", 4, with_zero(2, tensor_mesh(2))},
                                       {"zero_2_of_one_group", 2, with_zero(2, tensor_mesh(2))},
                                       {"zero_2_sp_2", 4, with_zero(2, tensor_mesh(2, 2))},
                                       {"zero_3", 4, with_zero(3, tensor_mesh(2))},
                                       {"zero_3_of_one_group", 2, with_zero(3, tensor_mesh(2))}};
  const SharedCase lion{{"lion", "train", {"actor.optim.optimizer=lion"}},
                        {"zero_1", "zero_2_sp_2", "zero_3_of_one_group"}};
  expect_numbers_of_one_process(lion.run, tensor_mesh(1), chosen(lion, updates));
  // With a validation and a reference. Rollouts gather all layers, or the ranks sample with their parts.
  expect_numbers_of_one_process(
      {"zero_3",
       "train",
       {"actor.use_kl_loss=true", "trainer.test_freq=1", "data.val_files=data/train.jsonl", "data.val_max_samples=4"}},
      tensor_mesh(1),
      {{"zero_3", 4, with_zero(3, tensor_mesh(2))},
       {"together", 4, with_zero(3, sampling_mesh(2, 2))},
       {"larger_groups", 4, with_zero(3, sampling_mesh(4, 2))}});
  // An adapter is whole on every rank of a group, and its state is shared by the groups.
  const SharedCase lora{{"lora", "train", {"model.lora_rank=2", "actor.use_kl_loss=true"}},
                        {"zero_2", "zero_2_of_one_group"}};
  expect_numbers_of_one_process(lora.run, tensor_mesh(1), chosen(lora, updates));
  for (const int64_t stage : is_long() ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3})
    expect_bits_of_one_group(with_zero(stage, tensor_mesh(2)));
}

// With stage 3, ranks with the same part also share the base of an adapter.
TEST(TensorParallelRun, TheBaseOfAnAdapterIsSharedToo) {
  const SharedCase lora{
      {"lora",
       "train",
       {"model.lora_rank=2", "model.target_modules=[q_proj,v_proj,down_proj]", "actor.use_kl_loss=true",
        "trainer.test_freq=1", "data.val_files=data/train.jsonl", "data.val_max_samples=4"}},
      {"zero_3_sp_2", "zero_3_of_one_group", "together"}};
  expect_numbers_of_one_process(lora.run, tensor_mesh(1),
                                chosen(lora, {{"zero_3", 4, with_zero(3, tensor_mesh(2))},
                                              {"zero_3_sp_2", 8, with_zero(3, tensor_mesh(2, 2))},
                                              {"zero_3_of_one_group", 2, with_zero(3, tensor_mesh(2))},
                                              {"together", 4, with_zero(3, sampling_mesh(2, 2))},
                                              {"larger_groups", 4, with_zero(3, sampling_mesh(4, 2))}}));
}

// With a reference, whose bfloat16 matrices have no masters, and a huggingface/ that is rounded, next to which the masters
// are in the state.
TEST(TensorParallelRun, DeterministicBfloat16RunsDoNotDependOnTheNumberOfGroups) {
  for (const std::string save_dtype : {"train", "bfloat16"}) {
    if (save_dtype == "train" && !is_long()) continue;
    SCOPED_TRACE(save_dtype);
    expect_bits_of_one_group(joined(tensor_mesh(2), {"model.dtype=bfloat16", "actor.use_kl_loss=true",
                                                     "trainer.save_dtype=" + save_dtype, "ranks.zero_stage=1"}));
  }
  for (const std::string masters : {"true", "false"}) {
    SCOPED_TRACE(masters);
    expect_bits_of_one_group(
        joined(sampling_mesh(2, 2), {"model.dtype=bfloat16", "actor.optim.master_weights=" + masters}));
  }
  expect_bits_of_one_group(with_zero(3, joined(tensor_mesh(2), {"model.dtype=bfloat16", "actor.use_kl_loss=true"})));
  if (is_long()) expect_bits_of_one_group(joined(sampling_mesh(2), {"model.dtype=bfloat16"}));
}

// Matrices that exist in bfloat16 only. Their roundings depend on who has which, so only the runs themselves are compared.
TEST(TensorParallelRun, Bfloat16WeightsWithoutMastersResumeWithAnotherMesh) {
  const TinyTask task;
  const std::vector<std::string> settings{"model.dtype=bfloat16", "actor.optim.master_weights=false",
                                          "actor.optim.optimizer=adafactor", "actor.use_kl_loss=true"};
  const std::vector<std::pair<int, std::vector<std::string>>> meshes{
      {2, tensor_mesh(2)}, {1, tensor_mesh(1)}, {4, sampling_mesh(2, 4)}, {2, sampling_mesh(2)}};
  for (size_t i = 0; i < meshes.size(); ++i) {
    const auto& [size, mesh] = meshes[i];
    const Outcome part = launch(task, size, "train", "out", until(static_cast<int64_t>(i) + 1, joined(settings, mesh)));
    ASSERT_EQ(part.code, 0) << part.output;
  }
}

// The merged matrices of an adapter are rounded, and those of its base for the reference.
TEST(TensorParallelRun, DeterministicBfloat16RunsOfAnAdapterDoNotDependOnTheNumberOfGroups) {
  const std::vector<std::string> adapter{"model.dtype=bfloat16", "actor.use_kl_loss=true", "model.lora_rank=2",
                                         "ranks.zero_stage=1"};
  expect_bits_of_one_group(joined(tensor_mesh(2), adapter), "adapter_model.safetensors");
  expect_bits_of_one_group(joined(sampling_mesh(2, 2), adapter), "adapter_model.safetensors");
  expect_bits_of_one_group(with_zero(3, joined(tensor_mesh(2), {"model.dtype=bfloat16", "actor.use_kl_loss=true",
                                                                "model.lora_rank=2", "model.use_dora=true"})),
                           "adapter_model.safetensors");
}

// 2 x 2 ranks, then one process, then 1 x 4, then ZeRO, then both, then one process.
void expect_resumes_with_another_mesh(const std::vector<std::string>& more, const std::string& model) {
  SCOPED_TRACE(more.front() + " " + model);
  const TinyTask task(model);
  const std::vector<std::string> settings = joined({"model.dtype=float64"}, more);
  ASSERT_EQ(launch(task, 1, "train", "straight", until(6, joined(settings, tensor_mesh(1)))).code, 0);
  for (const auto& [step, num_ranks, size] :
       std::vector<std::tuple<int64_t, int, int>>{{1, 4, 2}, {2, 1, 1}, {3, 4, 4}, {4, 2, 1}, {5, 4, 2}, {6, 1, 1}}) {
    const int64_t stage = step < 4 || step == 6 ? 0 : step == 4 ? 1 : 3;
    const Outcome part =
        launch(task, num_ranks, "train", "out", until(step, joined(settings, with_zero(stage, tensor_mesh(size)))));
    ASSERT_EQ(part.code, 0) << part.output;
  }
  expect_near_rows(task.path() / "out", task.path() / "straight", "updates.jsonl", 1e-11);
}

// A reference that follows the policy, a state of whole parameters in files, and an adapter that begins with a part of the base
// and trains a matrix as a whole.
TEST(TensorParallelRun, ResumesWithAnotherMesh) {
  const std::vector<std::string> follows{"actor.use_kl_loss=true", "ref.sync_steps=2", "ref.mixup_alpha=0.5"};
  expect_resumes_with_another_mesh(
      joined({"trainer.save_dtype=train", "actor.optim.optimizer=adafactor", "actor.optim.offload=file"}, follows),
      "--tiny");
  expect_resumes_with_another_mesh(
      joined({"model.lora_rank=2", "model.target_modules=[q_proj,v_proj,down_proj]", "model.init_lora_weights=pissa",
              "model.modules_to_save=[o_proj]", "ref.offload=file"},
             follows),
      "--tiny");
  if (is_long()) expect_resumes_with_another_mesh({"trainer.save_dtype=bfloat16"}, "--tiny");
}

// Fused matrices and stacks of experts. With a huggingface/ that is rounded, the exact weights are in the state too.
TEST(TensorParallelRun, EveryFamilyResumesWithAnotherMesh) {
  expect_resumes_with_another_mesh({"trainer.save_dtype=bfloat16", "actor.optim.offload=file"}, "--fused");
  expect_resumes_with_another_mesh({"trainer.save_dtype=bfloat16", "actor.optim.optimizer=muon"}, "--gpt-oss");
  if (!is_long()) return;
  expect_resumes_with_another_mesh({"model.lora_rank=2", "model.target_modules=[v_proj]",
                                    "model.target_parameters=[mlp.experts.gate_up_proj,mlp.router.weight]"},
                                   "--gpt-oss");
}

TEST(TensorParallelRun, WhatCannotBeSharedIsRefusedByName) {
  const TinyTask task;
  const auto refused = [&](int num_ranks, const std::vector<std::string>& settings, const std::string& text,
                           const std::string& also = "") { expect_refused(task, num_ranks, settings, text, also); };
  refused(1, tensor_mesh(2), "'actor.tensor_model_parallel_size' is 2, but 1 rank cannot form groups of 2");
  refused(3, tensor_mesh(3), "'actor.tensor_model_parallel_size' is 3, but the 4 query heads, 2 key-value heads and ");
  refused(1, {"actor.tensor_model_parallel_size=9223372036854775807"}, "actor.tensor_model_parallel_size");
  refused(2, tensor_mesh(2, 2),
          "'actor.ulysses_sequence_parallel_size' is 2, but 2 ranks cannot form groups of 4 (with "
          "actor.tensor_model_parallel_size = 2)");
  refused(2, {"actor.tensor_model_parallel_size=2", "ref.ulysses_sequence_parallel_size=2"},
          "'ref.ulysses_sequence_parallel_size' is 2, but 2 ranks cannot form groups of 4");
}

TEST(TensorParallelRun, TheDryRunShowsTheMesh) {
  const TinyTask task;
  EXPECT_THAT(dry_run(task, 4, tensor_mesh(2)), HasSubstr("# mesh: dp 2 x tp 2; 2 ranks share the layers in updates"));
  EXPECT_THAT(dry_run(task, 4, tensor_mesh(2, 2)),
              HasSubstr("# mesh: dp 1 x sp 2 x tp 2; 2 ranks share the tokens of each pass, and send"));
  const auto numbers = [&](int size, const std::vector<std::string>& more = {}) {
    return dry_run_numbers(task, 4, joined(tensor_mesh(size), more));
  };
  const Json whole = numbers(1), half = numbers(2), quarter = numbers(4);
  EXPECT_EQ(whole.at("ranks").at("tensor_parallel_size"), 1);
  EXPECT_EQ(whole.at("ranks").at("tensor_bytes_sent_per_update"), 0);
  EXPECT_EQ(quarter.at("ranks").at("tensor_parallel_size"), 4);
  EXPECT_GT(quarter.at("ranks").at("tensor_bytes_sent_per_update").get<int64_t>(),
            half.at("ranks").at("tensor_bytes_sent_per_update").get<int64_t>());
  EXPECT_EQ(quarter.at("ranks").at("gradient_bytes_sent_per_update"), 0) << "no other rank has the same part";
  for (const std::string part : {"weights", "gradients", "optimizer", "reference"}) {
    const auto bytes = [&](const Json& one) { return one.at("memory_bytes").at(part).get<double>(); };
    EXPECT_LT(bytes(half), bytes(whole)) << part;
    EXPECT_LT(bytes(quarter), bytes(half)) << part;
  }
  EXPECT_GT(half.at("memory_bytes").at("whole_weights_in_rollout").get<int64_t>(), 0);
  EXPECT_EQ(whole.at("memory_bytes").at("part_in_save").get<double>(), 0.0);
  EXPECT_GT(half.at("memory_bytes").at("part_in_save").get<double>(), 0.0);
  const auto in_step = [](const Json& one) {
    return one.at("memory_bytes").at("whole_parameters_in_step").get<double>();
  };
  EXPECT_EQ(in_step(half), 0.0) << "AdamW steps parts";
  EXPECT_GT(in_step(numbers(2, {"actor.optim.optimizer=muon"})), 0.0);
  // With an adapter a rank has its part of the base, and of the matrices that the adapter changes merged.
  const auto weights_of_adapter = [&](int size) {
    return numbers(size, {"model.lora_rank=2", "model.target_modules=[v_proj]"})
        .at("memory_bytes")
        .at("weights")
        .get<double>();
  };
  EXPECT_LT(weights_of_adapter(2), weights_of_adapter(1));
  EXPECT_LT(weights_of_adapter(4), weights_of_adapter(2));
  // With stage 3 of ZeRO, ranks with the same part share the base.
  const auto memory_of_adapter = [&](const std::string& setting, const char* part) {
    return numbers(2, {"model.lora_rank=2", "actor.use_kl_loss=true", setting})
        .at("memory_bytes")
        .at(part)
        .get<double>();
  };
  EXPECT_LT(memory_of_adapter("ranks.zero_stage=3", "weights"), memory_of_adapter("ranks.zero_stage=2", "weights"));
  EXPECT_GT(memory_of_adapter("model.dtype=bfloat16", "weights"), memory_of_adapter("model.dtype=float32", "weights"));
  EXPECT_GT(memory_of_adapter("model.dtype=bfloat16", "reference"), 0.0) << "rounded matrices of the base";
}

TEST(TensorParallelRun, ARankThatIsKilledIsNamed) { expect_killed_rank_is_named(tensor_mesh(2)); }

}  // namespace
}  // namespace mortise::test
