// The keys of [actor], [ref] and [critic]: how models learn from the samples.
#include "config/field_builder.h"

namespace mortise {
namespace {

void add_actor_batches(FieldTable<RunConfig, ActorConfig>& table) {
  table
      .add("ppo_mini_batch_size", &ActorConfig::ppo_mini_batch_size,
           "Prompts per update (one optimizer step), over all ranks; an update learns from this many times rollout.n "
           "rows. Must divide data.train_batch_size.")
      .at_least(1);
  table
      .add("ppo_micro_batch_size_per_gpu", &ActorConfig::ppo_micro_batch_size_per_gpu,
           "Most rows in one forward and backward pass; changes memory and speed, never the gradient. Passes are as "
           "few as hold the update, alike in tokens, and keep the rows of a prompt together where they fit. null: "
           "passes are cut by ppo_max_token_len_per_gpu.")
      .at_least(1)
      .trl("per_device_train_batch_size");
  table.add("use_dynamic_bsz", &ActorConfig::use_dynamic_bsz,
            "Cut passes by ppo_max_token_len_per_gpu even where ppo_micro_batch_size_per_gpu is given.");
  table
      .add("ppo_max_token_len_per_gpu", &ActorConfig::ppo_max_token_len_per_gpu,
           "Most tokens (prompt and completion, without padding) in one pass where passes are cut by tokens, which "
           "also makes them alike in tokens; changes memory "
           "and speed, never the gradient. null: 2048, or the longest possible row where that is more.")
      .at_least(1);
  table.add("ppo_epochs", &ActorConfig::ppo_epochs, "Times that the rows of a step are gone through, in updates.")
      .at_least(1)
      .at_most(1'000'000)
      .trl("num_iterations");
  table.add("shuffle", &ActorConfig::shuffle,
            "Deal the step's rows to its updates in a new random order, by whole groups, in every pass of ppo_epochs.");
  table
      .add("grad_clip", &ActorConfig::grad_clip,
           "Largest L2 norm of all gradients of an update; larger ones are scaled down to it. 0: no clipping.")
      .at_least(0)
      .trl("max_grad_norm");
}

void add_actor_loss(FieldTable<RunConfig, ActorConfig>& table) {
  const std::string given = " Given to the policy loss if its table has a parameter of this name.";
  table
      .add("clip_ratio", &ActorConfig::clip_ratio,
           "Half-width of the clip range of the importance ratio, on both sides. null: the policy loss's own range, in "
           "its published form where it has one (0.2 for vanilla; 3e-4 below and 4e-4 above for gspo)." +
               given)
      .at_least(0);
  table
      .add("clip_ratio_low", &ActorConfig::clip_ratio_low,
           "Clip range below 1: the ratio is held above 1 - clip_ratio_low. null: clip_ratio, or the policy loss's "
           "own." +
               given)
      .at_least(0)
      .trl("epsilon");
  table
      .add("clip_ratio_high", &ActorConfig::clip_ratio_high,
           "Clip range above 1: the ratio is held below 1 + clip_ratio_high. null: clip_ratio, or the policy loss's "
           "own." +
               given)
      .at_least(0)
      .trl("epsilon_high");
  table
      .add("clip_ratio_c", &ActorConfig::clip_ratio_c,
           "Dual clip (arXiv 1912.09729): the loss of a token with negative advantage is at most this many times the "
           "advantage's size; above 1. 0 switches it off. null: the policy loss's own (3 for vanilla)." +
               given)
      .at_least(0)
      .trl("delta");
  table
      .add("loss_agg_mode", &ActorConfig::loss_agg_mode,
           "How the loss per token becomes one number, always over the whole update and all ranks: token-mean (mean "
           "over tokens), token-sum, seq-mean-token-mean (mean over a row's tokens, then over rows), "
           "seq-mean-token-sum, seq-mean-token-sum-norm (that divided by loss_scale_factor), prompt-mean (mean over "
           "the tokens of a prompt's rows, then over prompts), auto (the policy loss's own: seq-mean-token-mean for "
           "gspo, token-mean for vanilla).")
      .one_of({"token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm",
               "prompt-mean", "auto"})
      .trl("loss_type");
  table
      .add("loss_scale_factor", &ActorConfig::loss_scale_factor,
           "The constant that seq-mean-token-sum-norm divides by. null: data.max_response_length.")
      .above(0);
  table.add("loss_scale_by_rows", &ActorConfig::loss_scale_by_rows,
            "seq-mean-token-sum-norm also divides by the number of rows. false: the sum over rows alone, as in verl "
            "before March 2026.");
  table
      .add("loss_agg_rows", &ActorConfig::loss_agg_rows,
           "Rows that count in a mean over rows: nonempty leaves out those without a token to learn from, all counts "
           "them.")
      .one_of({"nonempty", "all"});
  table
      .add("entropy_coeff", &ActorConfig::entropy_coeff,
           "Coefficient of the entropy bonus, which is subtracted from the loss. 0: none.")
      .trl("entropy_coef");
  table.add("use_kl_loss", &ActorConfig::use_kl_loss,
            "Add kl_loss_coef times the KL of the policy to the initial model to the loss.");
  table.add("kl_loss_coef", &ActorConfig::kl_loss_coef, "Coefficient of the KL term of use_kl_loss.")
      .at_least(0)
      .at_most(1e6)
      .trl("beta");
  table
      .add("kl_loss_type", &ActorConfig::kl_loss_type,
           "KL estimator of use_kl_loss, by plugin name (kl = k1, abs, mse = k2, low_var_kl = k3). A trailing + takes "
           "the estimator's value with the gradient of k2. full: no estimate, but the KL over the whole vocabulary at "
           "every token; the reference then runs together with the policy in each update.")
      .plugin("kl_estimator");
  table.add("kl_params", &ActorConfig::kl_params, "Further parameters of that estimator, checked against its table.");
}

// Which tokens of the policy term count.
void add_actor_masks(FieldTable<RunConfig, ActorConfig>& table) {
  table
      .add(
          "top_entropy_quantile", &ActorConfig::top_entropy_quantile,
          "Share of an update's tokens, those of the highest entropy, that carry the policy term and the entropy bonus "
          "(arXiv 2506.01939); the divisors of the aggregation stay what they are. 1: all.")
      .above(0)
      .at_most(1)
      .trl("top_entropy_quantile");
  table
      .add("off_policy_mask_threshold", &ActorConfig::off_policy_mask_threshold,
           "Tokens with a negative advantage are left out of the policy term where the mean over their row of the "
           "sampler's log-prob (the old one where the sampler gave none) less the policy's is above this (arXiv "
           "2512.02556; ms-swift: off_policy_sequence_mask_delta). null: none are.")
      .trl("off_policy_mask_threshold");
}

void add_reference(FieldCatalog& catalog) {
  FieldTable<RunConfig, RefConfig> table(
      catalog, "ref", "The reference model: the initial policy, unless refreshed; there is one where a KL needs it.",
      [](RunConfig& config) -> RefConfig& { return config.ref; });
  table
      .add("log_prob_micro_batch_size_per_gpu", &RefConfig::log_prob_micro_batch_size_per_gpu,
           "Rows in one forward pass of the reference. null: actor.ppo_micro_batch_size_per_gpu.")
      .at_least(1);
  table.add("log_prob_use_dynamic_bsz", &RefConfig::log_prob_use_dynamic_bsz,
            "Cut the reference's passes by tokens even where a number of rows is given. null: actor.use_dynamic_bsz.");
  table
      .add("log_prob_max_token_len_per_gpu", &RefConfig::log_prob_max_token_len_per_gpu,
           "Tokens in one pass of the reference where passes are cut by tokens. null: "
           "actor.ppo_max_token_len_per_gpu.")
      .at_least(1);
  table
      .add("sync_steps", &RefConfig::sync_steps,
           "Steps between refreshes: ref = (1 - mixup_alpha) ref + mixup_alpha policy. null: the initial policy stays "
           "(TRL: sync_ref_model = false).")
      .at_least(1)
      .trl("ref_model_sync_steps");
  table
      .add("mixup_alpha", &RefConfig::mixup_alpha,
           "Share of the policy in a refresh of the reference: 1 copies it; small ones every step make a moving "
           "average.")
      .above(0)
      .at_most(1)
      .trl("ref_model_mixup_alpha");
}

void add_optimizer(FieldCatalog& catalog, const std::string& name, std::function<OptimConfig&(RunConfig&)> section) {
  FieldTable<RunConfig, OptimConfig> table(catalog, name, "AdamW and the learning-rate schedule.", std::move(section));
  table.add("lr", &OptimConfig::lr, "Learning rate at the top of the schedule.").at_least(0).trl("learning_rate");
  table
      .add("weight_decay", &OptimConfig::weight_decay,
           "Decoupled weight decay; parameters with bias or norm in their name are spared.")
      .at_least(0);
  table.add("betas", &OptimConfig::betas, "Decay rates of the two moments.")
      .at_least(0)
      .below(1)
      .items(2)
      .trl("adam_beta1, adam_beta2");
  table.add("eps", &OptimConfig::eps, "Added to the root of the second moment.").above(0).trl("adam_epsilon");
  table
      .add("lr_scheduler_type", &OptimConfig::lr_scheduler_type,
           "Course of the learning rate after the warm-up: constant, linear (straight down to the floor), cosine.")
      .one_of({"constant", "linear", "cosine"});
  table
      .add("lr_warmup_steps", &OptimConfig::lr_warmup_steps,
           "Length of the linear warm-up from 0, counted in schedule_unit. -1: lr_warmup_steps_ratio decides.")
      .at_least(-1)
      .trl("warmup_steps");
  table
      .add("lr_warmup_steps_ratio", &OptimConfig::lr_warmup_steps_ratio,
           "Length of the warm-up as a share of the whole schedule; used where lr_warmup_steps is -1.")
      .at_least(0)
      .at_most(1)
      .trl("warmup_ratio");
  table
      .add("min_lr_ratio", &OptimConfig::min_lr_ratio,
           "Floor of the linear and cosine decay, as a share of lr. No effect with constant.")
      .at_least(0)
      .at_most(1);
  table
      .add("num_cycles", &OptimConfig::num_cycles,
           "Periods of the cosine over the schedule: 0.5 goes down once. No effect otherwise.")
      .above(0)
      .at_most(1e6);
  table
      .add(
          "schedule_unit", &OptimConfig::schedule_unit,
          "What the schedule counts: update (as TRL) or step (as verl, one step of the schedule for each batch however "
          "many updates it has).")
      .one_of({"update", "step"});
}

}  // namespace

void add_entropy_control(FieldCatalog& catalog) {
  using Section = EntropyControlConfig;
  FieldTable<RunConfig, Section> table(catalog, "actor.entropy_ctrl", "The coefficient of the entropy bonus.",
                                       [](RunConfig& config) -> Section& { return config.actor.entropy_ctrl; });
  table
      .add("type", &Section::type,
           "fixed keeps actor.entropy_coeff. adaptive (Skywork-OR1, arXiv 2505.22312, as TRL has it) starts from it, "
           "raises it "
           "by delta after an update whose mean entropy is at most target_entropy and lowers it after any other, and "
           "applies "
           "it only in the update after one of the first kind.")
      .one_of({"fixed", "adaptive"})
      .trl("use_adaptive_entropy");
  table.add("target_entropy", &Section::target_entropy, "Nats per token that adaptive holds the entropy above.")
      .at_least(0)
      .trl("entropy_target");
  table.add("delta", &Section::delta, "Change of the coefficient after each update, adaptive only.")
      .at_least(0)
      .trl("entropy_coef_delta");
  table.add("min_coeff", &Section::min_coeff, "Least coefficient, adaptive only.").at_least(0).trl("entropy_coef_min");
  table.add("max_coeff", &Section::max_coeff, "Largest coefficient, adaptive only.")
      .at_least(0)
      .trl("entropy_coef_max");
}

void add_critic(FieldCatalog& catalog) {
  FieldTable<RunConfig, CriticConfig> table(catalog, "critic",
                                            "The value model, which there is where algorithm.adv_estimator asks for "
                                            "values (gae); `objective eval --critic` reads "
                                            "its loss.",
                                            [](RunConfig& config) -> CriticConfig& { return config.critic; });
  table
      .add("cliprange_value", &CriticConfig::cliprange_value,
           "How far a value may move from the one before the update before it is clipped.")
      .above(0);
  table
      .add("loss_agg_mode", &CriticConfig::loss_agg_mode,
           "How the value loss per token becomes one number: as actor.loss_agg_mode.")
      .one_of({"token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm",
               "prompt-mean"});
  table.add("grad_clip", &CriticConfig::grad_clip, "Largest L2 norm of all gradients of an update. 0: no clipping.")
      .at_least(0);
  table.add("ppo_mini_batch_size", &CriticConfig::ppo_mini_batch_size, "Prompts per update. null: the actor's.")
      .at_least(1);
  table
      .add("ppo_micro_batch_size_per_gpu", &CriticConfig::ppo_micro_batch_size_per_gpu,
           "Rows in one forward and backward pass. null: the actor's.")
      .at_least(1);
  table
      .add("ppo_max_token_len_per_gpu", &CriticConfig::ppo_max_token_len_per_gpu,
           "Tokens in one pass where passes are cut by tokens. null: the actor's.")
      .at_least(1);
  table
      .add("ppo_epochs", &CriticConfig::ppo_epochs,
           "Times that the rows of a step are gone through, in updates. null: the actor's.")
      .at_least(1)
      .at_most(1'000'000);
  FieldTable<RunConfig, CriticModelConfig> model(
      catalog, "critic.model", "Where the critic comes from.",
      [](RunConfig& config) -> CriticModelConfig& { return config.critic.model; });
  model.add("path", &CriticModelConfig::path,
            "Folder of a sequence classifier with one label, taken as it is, or of a language model, whose head is "
            "replaced by "
            "a random one. null: model.path.");
  add_optimizer(catalog, "critic.optim", [](RunConfig& config) -> OptimConfig& { return config.critic.optim; });
}

void add_train_fields(FieldCatalog& catalog) {
  {
    FieldTable<RunConfig, ActorConfig> table(catalog, "actor", "The policy's updates: batches, loss, optimizer.",
                                             [](RunConfig& config) -> ActorConfig& { return config.actor; });
    add_actor_batches(table);
    add_actor_loss(table);
    add_actor_masks(table);
  }
  FieldTable<RunConfig, PolicyLossConfig> loss(
      catalog, "actor.policy_loss", "The policy loss: its name and its parameters.",
      [](RunConfig& config) -> PolicyLossConfig& { return config.actor.policy_loss; });
  loss.add("loss_mode", &PolicyLossConfig::loss_mode,
           "Policy loss, by plugin name: vanilla (PPO clip with dual clip), gspo, or \"pack.id/name@^1.0\".")
      .plugin("policy_loss");
  loss.add("params", &PolicyLossConfig::params,
           "Every other key of this table is a parameter of the loss, checked against its table (`mortise plugin "
           "describe NAME` lists them). It wins over the key of the same name in [actor].")
      .inline_table();
  add_entropy_control(catalog);
  add_optimizer(catalog, "actor.optim", [](RunConfig& config) -> OptimConfig& { return config.actor.optim; });
  add_reference(catalog);
  add_critic(catalog);
}

}  // namespace mortise
