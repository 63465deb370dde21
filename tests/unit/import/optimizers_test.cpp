// The optimizers of TRL, ms-swift and verl, and the ones that are refused.
#include "foundation/base/choice.h"
#include "import/frameworks.h"
#include "import_support.h"

namespace mortise::test {
namespace {

OptimConfig trl_optim(const std::string& settings) { return imported("trl", settings).actor.optim; }

constexpr std::string_view kSwiftRun = "train_type: full\nper_device_train_batch_size: 8\n";
constexpr std::string_view kVerlOptim = "actor_rollout_ref.actor.optim.";

OptimConfig verl_optim(const std::string& settings) {
  return imported("verl", "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo " + settings, "run.sh")
      .actor.optim;
}
std::string verl_optim_error(const std::string& settings) {
  return import_error("verl", "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo " + settings, "run.sh");
}
// "optimizer=SGD" and so on as overrides of the actor's.
std::string overrides(std::initializer_list<std::string_view> settings) {
  std::string out;
  for (const std::string_view setting : settings)
    out.append(setting.starts_with("override") ? "+" : "").append(kVerlOptim).append(setting).append(" ");
  return out;
}

TEST(ImportOptimizers, TransformersNamesAreOurs) {
  const std::pair<const char*, const char*> names[] = {
      {"adamw_torch", "adamw"},         {"adamw_torch_fused", "adamw"}, {"paged_adamw_32bit", "adamw"},
      {"adamw_bnb_8bit", "adamw_8bit"}, {"adamw_8bit", "adamw_8bit"},   {"paged_adamw_8bit", "adamw_8bit"},
      {"adafactor", "adafactor"},       {"lion_32bit", "lion"},         {"sgd", "sgd"}};
  for (const auto& [theirs, ours] : names)
    EXPECT_EQ(choice_name(trl_optim(std::string("optim: ") + theirs).optimizer), ours) << theirs;
  EXPECT_EQ(choice_name(trl_optim("").optimizer), "adamw");
  EXPECT_FALSE(trl_optim("optim: adamw_8bit").quantize_embeddings) << "the Trainer keeps them in full";
  const OptimConfig sgd = trl_optim("optim: sgd\noptim_args: \"momentum=0.9, nesterov=True,weight_decay=0.1\"");
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_EQ(sgd.nesterov, true);
  EXPECT_EQ(sgd.weight_decay, 0.1);
  EXPECT_THAT(import_error("trl", "optim: lion_8bit"),
              HasSubstr("optim 'lion_8bit' is not supported; there are adamw"));
  EXPECT_THAT(import_error("trl", "optim: galore_adamw"), HasSubstr("is not supported"));
  EXPECT_THAT(import_error("trl", "optim: sgd\noptim_args: maximize=true"), HasSubstr("optim_args: 'maximize=true'"));
}

TEST(ImportOptimizers, SwiftsMuonIsMoonlights) {
  const std::string run(kSwiftRun);
  const OptimConfig muon =
      imported("swift", run + "optimizer: muon\noptim_args: \"ns_steps=6,momentum=0.9\"").actor.optim;
  EXPECT_EQ(choice_name(muon.optimizer), "muon");
  EXPECT_EQ(choice_name(muon.adjust_lr_fn), "match_rms_adamw");
  EXPECT_EQ(muon.ns_steps, 6);
  EXPECT_EQ(muon.momentum, 0.9);
  EXPECT_TRUE(muon.decay_all_parameters);
  EXPECT_EQ(choice_name(imported("swift", run + "optim: adafactor").actor.optim.optimizer), "adafactor");
  EXPECT_THAT(import_error("swift", run + "optimizer: lorap"), HasSubstr("optimizer 'lorap' is not supported"));
}

TEST(ImportOptimizers, VerlsClassesAreOurs) {
  const OptimConfig adamw = verl_optim("");
  EXPECT_EQ(choice_name(adamw.optimizer), "adamw");
  EXPECT_TRUE(adamw.decay_all_parameters) << "verl knows no exceptions";
  EXPECT_FALSE(verl_optim(overrides({"weight_decay=0"})).decay_all_parameters);
  const OptimConfig sgd =
      verl_optim(overrides({"optimizer=SGD", "override_optimizer_config={momentum:0.9,nesterov:true}"}));
  EXPECT_EQ(choice_name(sgd.optimizer), "sgd");
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_EQ(sgd.nesterov, true);
  const OptimConfig eight = verl_optim(overrides({"optimizer=AdamW8bit", "optimizer_impl=bitsandbytes.optim"}));
  EXPECT_EQ(choice_name(eight.optimizer), "adamw_8bit");
  EXPECT_TRUE(eight.quantize_embeddings) << "bitsandbytes without the Trainer";
  const OptimConfig lion = verl_optim(overrides({"optimizer=Lion", "optimizer_impl=bitsandbytes.optim"}));
  EXPECT_EQ(choice_name(lion.optimizer), "lion");
  EXPECT_EQ(lion.betas, (std::vector<double>{0.9, 0.99}));
  EXPECT_THAT(verl_optim_error(overrides({"optimizer=Adafactor"})), HasSubstr("of torch.optim is not supported"));
  EXPECT_THAT(verl_optim_error(overrides({"optimizer_impl=torchao.optim"})),
              HasSubstr("'torchao.optim' is not supported"));
  EXPECT_THAT(verl_optim_error(overrides({"override_optimizer_config={amsgrad:true}"})),
              HasSubstr("'amsgrad' is not supported"));
}

}  // namespace
}  // namespace mortise::test
