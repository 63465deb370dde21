// verl's learning-rate schedules: Megatron's, and what FSDP's has besides a constant and a cosine.
#include "import_support.h"

namespace mortise::test {
namespace {

OptimConfig optim_of(std::string_view overrides) { return imported("verl", overrides, "run.sh").actor.optim; }
std::string problem_of(std::string_view overrides) { return import_error("verl", overrides, "run.sh"); }

std::string of_grpo(std::string_view more) { return "algorithm.adv_estimator=grpo\n" + std::string(more); }

TEST(ImportVerlSchedule, IsMegatronsWithMegatron) {
  const std::string optim = "actor_rollout_ref.actor.optim.", megatron = "actor_rollout_ref.actor.strategy=megatron ";
  OptimConfig config =
      optim_of(of_grpo(megatron + optim + "lr=2e-6 " + optim + "min_lr=2e-7 " + optim + "lr_warmup_init=1e-7 " + optim +
                       "lr_decay_style=cosine " + optim + "lr_decay_steps=500 " + optim + "lr_warmup_steps=20 " +
                       optim + "lr_warmup_steps_ratio=0.1"));
  EXPECT_EQ(config.lr_scheduler_type, LrSchedule::kCosine);
  EXPECT_EQ(config.schedule_unit, ScheduleUnit::kStep);
  EXPECT_DOUBLE_EQ(config.min_lr_ratio, 0.1);
  EXPECT_DOUBLE_EQ(config.lr_warmup_init_ratio.value(), 0.05);
  EXPECT_EQ(config.lr_decay_steps, 500);
  EXPECT_EQ(config.lr_warmup_steps, 20);
  config = optim_of(of_grpo(megatron + optim + "lr_decay_style=WSD " + optim + "lr_wsd_decay_steps=30 " + optim +
                            "lr_warmup_steps=0 " + optim + "lr_warmup_steps_ratio=0.1"));
  EXPECT_EQ(config.lr_scheduler_type, LrSchedule::kWarmupStableDecay);
  EXPECT_EQ(config.lr_wsd_decay_style, LrDecay::kExponential);
  EXPECT_EQ(config.lr_wsd_decay_steps, 30);
  EXPECT_EQ(config.lr_warmup_steps, -1) << "0 leaves it to the ratio";
  EXPECT_EQ(config.lr_warmup_steps_ratio, 0.1);
  config = optim_of(of_grpo(optim + "lr_decay_style=inverse-square-root " + optim + "lr_warmup_steps=5"));
  EXPECT_EQ(config.lr_scheduler_type, LrSchedule::kInverseSqrt) << "its settings alone say that it is Megatron";
  config = optim_of(of_grpo(megatron + "+" + optim + "override_optimizer_config.optimizer_cpu_offload=True"));
  EXPECT_FALSE(config.decay_all_parameters) << "Megatron decays neither biases nor norms";
  EXPECT_THAT(problem_of(of_grpo(megatron + optim + "lr_decay_style=inverse-square-root")),
              HasSubstr("without a warm-up"));
  EXPECT_THAT(problem_of(of_grpo(megatron + optim + "lr_decay_style=WSD")), HasSubstr("needs lr_wsd_decay_steps"));
  EXPECT_THAT(problem_of(of_grpo(megatron + optim + "lr_decay_style=step")), HasSubstr("not one of Megatron's"));
  EXPECT_THAT(problem_of(of_grpo(megatron + optim + "lr_decay_style=linear " + optim + "min_lr=1")),
              HasSubstr("is not between 0 and"));
}

// As verl's trainer for Megatron resolves it.
TEST(ImportVerlSchedule, TheDefaultsOfItsMegatronTrainerImport) {
  const RunConfig config =
      imported("verl",
               "algorithm: {adv_estimator: grpo}\n"
               "actor_rollout_ref:\n"
               "  actor:\n"
               "    strategy: megatron\n"
               "    optim: {optimizer: adam, lr_warmup_init: 0.0, lr_decay_steps: null, min_lr: 0.0,\n"
               "            lr_decay_style: constant, weight_decay_incr_style: constant,\n"
               "            lr_wsd_decay_style: exponential, lr_wsd_decay_steps: null,\n"
               "            use_checkpoint_opt_param_scheduler: false, override_optimizer_config: {}}\n"
               "    megatron: {tensor_model_parallel_size: 2, override_ddp_config: {}, dtype: bfloat16,\n"
               "               override_transformer_config: {recompute_modules: [core_attn]}}\n"
               "  model: {override_config: {model_config: {}, moe_config: {freeze_moe_router: false}}}\n"
               "  rollout: {layer_name_map: {qkv_layer_name: qkv, gate_proj_layer_name: gate_up}}\n");
  OptimConfig optim = optim_of(of_grpo(""));
  optim.decay_all_parameters = false;  // Megatron decays neither biases nor norms
  EXPECT_EQ(config.actor.optim, optim);
  EXPECT_EQ(config.actor.tensor_model_parallel_size, 2);
}

TEST(ImportVerlSchedule, CountsFromOneAndHasWsd) {
  const std::string optim = "actor_rollout_ref.actor.optim.";
  OptimConfig config = optim_of(of_grpo(optim + "lr_scheduler_type=cosine " + optim + "zero_indexed_step=False"));
  EXPECT_TRUE(config.schedule_from_one);
  EXPECT_FALSE(optim_of(of_grpo(optim + "zero_indexed_step=False")).schedule_from_one) << "constant ignores it";
  config = optim_of(of_grpo(optim + "lr_scheduler_type=wsd " + optim + "min_lr_ratio=0.1"));
  EXPECT_EQ(config.lr_scheduler_type, LrSchedule::kWarmupStableDecay);
  EXPECT_EQ(config.lr_wsd_stable_ratio, 0.9);
  EXPECT_EQ(config.min_lr_ratio, 0.1);
}

}  // namespace
}  // namespace mortise::test
