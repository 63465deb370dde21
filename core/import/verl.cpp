// verl's ppo_trainer: the settings that depend on each other (verl_rules.cpp lists them).
//
// verl forces the aggregation of sapo and geo_mean (before version 0.9 of gspo too). Its YAML sets clip_ratio_low and
// _high to 0.2, so clip_ratio alone has no effect. Its schedule counts steps. The result spells all of this out.
#include <fmt/core.h>

#include <algorithm>

#include "foundation/base/text.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {
namespace {

// verl makes a critic if the estimator is gae. With critic.enable alone it makes one that nothing reads.
bool has_critic(const Translation& t) { return t.value("algorithm.adv_estimator") == "gae"; }

// Which of verl's trainers the file is for. Each has a file of defaults of its own, which adds to ppo_trainer. ppo_trainer
// itself refuses to run without its hybrid engine, so a resolved file without it is for one of the others.
enum class VerlTrainer { kSync, kOneStepOff, kFullyAsync };

VerlTrainer trainer_of(Translation& t) {
  const std::string file = t.text("hydra.config_name");
  if (file.starts_with("one_step_off_ppo")) return VerlTrainer::kOneStepOff;
  for (const char* leaf : {"staleness_threshold", "trigger_parameter_sync_step", "require_batches", "partial_rollout"})
    if (t.is_given(fmt::format("async_training.{}", leaf))) return VerlTrainer::kFullyAsync;
  if (file.starts_with("fully_async_ppo")) return VerlTrainer::kFullyAsync;
  return t.flag("hybrid_engine") ? VerlTrainer::kSync : VerlTrainer::kOneStepOff;
}

void set_verl_mode(Translation& t) {
  constexpr std::string_view kFile = "hydra.config_name";
  const VerlTrainer trainer = trainer_of(t);
  if (trainer == VerlTrainer::kSync) return t.note_given({"hybrid_engine"}, "as here");
  if (trainer == VerlTrainer::kOneStepOff) {
    std::vector<std::string_view> names;
    for (const std::string_view name : {kFile, std::string_view("hybrid_engine")})
      if (t.is_given(name)) names.push_back(name);
    return t.set("trainer.mode", "one_step_off", names, "verl's one_step_off_policy; docs/async.md");
  }
  const std::string_view name = t.is_given(kFile) ? kFile : "async_training.staleness_threshold";
  t.problem(name,
            "verl's fully async trainer learns from completions in the order in which they end, so the rows of an "
            "update depend on time",
            "remove its settings (async_training, rollout.total_rollout_steps) and the name of its trainer, give "
            "data.train_batch_size, and set trainer.mode = \"async\" and trainer.max_staleness in the new file "
            "(docs/async.md)");
}

void set_batches(Translation& t) {
  const bool by_tokens = t.flag("actor.use_dynamic_bsz");
  if (by_tokens) t.set("actor.use_dynamic_bsz", true, {"actor.use_dynamic_bsz"});
  const std::string_view rows = "actor.ppo_micro_batch_size_per_gpu", tokens = "actor.ppo_max_token_len_per_gpu";
  if (!t.is_null(rows) && !by_tokens) t.set(rows, t.integer(rows), {rows}, reasons::kSpeed);
  if (!t.is_null(rows) && by_tokens) t.note(rows, "actor.use_dynamic_bsz is true");
  if (!t.is_null(tokens) && by_tokens) t.set(tokens, t.integer(tokens), {tokens}, reasons::kSpeed);
  if (!t.is_null(tokens) && !by_tokens) t.note(tokens, "actor.use_dynamic_bsz is false");

  const auto same = [&t](std::string_view name, std::string_view other) {
    if (t.is_null(name) || !t.is_given(name) || t.number(name) == t.number(other)) return;
    t.problem(name, fmt::format("{} differs from {}", quote(name), other),
              "make them equal, because Mortise has only one of them");
  };
  if (!t.flag("algorithm.filter_groups.enable") && trainer_of(t) != VerlTrainer::kFullyAsync)
    same("data.gen_batch_size", "data.train_batch_size");
  same("rollout.prompt_length", "data.max_prompt_length");
  same("actor.optim.clip_grad", "actor.grad_clip");
  if (has_critic(t)) same("critic.optim.clip_grad", "critic.grad_clip");
}

// verl's engines have the size in tables of their own too. It counts where the part's own setting is 1, as in verl.
void set_sequence_parallel(Translation& t, const std::string& part, std::initializer_list<std::string_view> engines) {
  const std::string key = part + ".ulysses_sequence_parallel_size";
  for (const std::string_view name : engines) {
    if (!t.is_given(name)) continue;
    const int64_t size = t.is_null(name) ? 1 : t.integer(name);
    if (size <= 1) {
      t.note(name, fmt::format("1 leaves {} as it is", key));
    } else if (t.is_set(key) && t.value_set(key) != 1) {
      t.note(name, fmt::format("{} wins", key));
    } else {
      t.set(key, size, {name}, reasons::kSpeed);
    }
  }
}

void set_tensor_parallel(Translation& t) {
  constexpr std::string_view kName = "actor.megatron.tensor_model_parallel_size";
  if (!t.is_given(kName)) return;
  const int64_t size = t.is_null(kName) ? 1 : t.integer(kName);
  if (size <= 1)
    t.note(kName, "1: every rank has whole layers");
  else
    t.set("actor.tensor_model_parallel_size", size, {kName}, reasons::kSpeed);
}

// verl's default is 2. So the key is set only if the run needs several ranks anyway: a run with FSDP may be one process
// here.
void set_rollout_tensor_parallel(Translation& t) {
  constexpr std::string_view kName = "rollout.tensor_model_parallel_size";
  constexpr std::string_view kActor = "actor.tensor_model_parallel_size";
  if (!t.is_given(kName) || t.is_set("rollout.name")) return;  // servers have it on their command lines
  const int64_t size = t.is_null(kName) ? 1 : t.integer(kName);
  const int64_t actor = t.is_set(kActor) ? t.value_set(kActor).get<int64_t>() : 1;
  if (size <= 1)
    t.note(kName, "1: every rank samples rows of its own");
  else if (actor > 1)
    t.set(kName, size, {kName}, reasons::kSpeed);
  else
    t.note(kName, fmt::format("every rank samples rows of its own; on several ranks, {} = {} lets {} sample together",
                              kName, size, size));
}

void set_run_length(Translation& t) {
  if (t.is_null("trainer.total_training_steps")) {
    t.set("trainer.total_epochs", t.integer("trainer.total_epochs"), {"trainer.total_epochs"});
  } else {
    t.note_given({"trainer.total_epochs"}, "trainer.total_training_steps is given");
  }
}

// The rows have the same columns here, in the same formats.
void set_files(Translation& t, std::string_view name) {
  const std::vector<std::string> files = t.texts(name);
  if (!files.empty()) {
    t.set(name, files, {name});
  } else if (name == "data.train_files") {
    t.ask("data", "train_files = [\"train.parquet\"]");
  }
}

// Files of tools that nobody reads are a mistake, also in a run with one turn.
bool names_tool_files(const Translation& t) {
  for (const char* leaf : {"tool_config_path", "function_tool_path", "interaction_config_path"})
    if (!t.is_null(fmt::format("rollout.multi_turn.{}", leaf))) return true;
  return false;
}

// verl drops all but the first call of a turn by default. In a run with one turn there is nothing to say.
void set_turns(Translation& t) {
  const std::string_view calls = "rollout.multi_turn.max_parallel_calls";
  if (t.flag("rollout.multi_turn.enable")) t.set(calls, t.integer(calls), {calls});
}

void set_validation(Translation& t) {
  // verl gives the temperature to its sampler, and ignores do_sample.
  const std::string_view temperature = "rollout.val_kwargs.temperature";
  const bool samples = t.number(temperature) > 0;
  if (samples) t.set("rollout.val_kwargs.do_sample", true, {temperature}, "verl reads the temperature alone");
  t.note_given({"rollout.val_kwargs.do_sample"}, "verl reads rollout.val_kwargs.temperature alone");
  for (const std::string_view key :
       {temperature, std::string_view("rollout.val_kwargs.top_k"), std::string_view("rollout.val_kwargs.top_p")}) {
    if (samples) {
      t.set(key, t.value(key), {key});
    } else {
      t.note_given({key}, "rollout.val_kwargs.temperature is 0: validation is greedy");
    }
  }
  const bool has_rows = !t.texts("data.val_files").empty();
  for (const std::string_view key : {"trainer.test_freq", "trainer.val_before_train"}) {
    if (!t.is_given(key)) continue;
    if (has_rows) {
      t.set(key, t.value(key), {key});
    } else {
      t.note(key, "data.val_files is not given");
    }
  }
}

void set_trainer(Translation& t) {
  const Json path = t.value("trainer.resume_from_path");
  if (path.is_string() && t.text("trainer.resume_mode") == "resume_path") {
    t.set("trainer.resume_from_path", path, {"trainer.resume_from_path"});
    t.warn("trainer.resume_from_path", "a checkpoint of verl cannot be resumed: name one of `mortise train`");
  } else {
    t.note_given({"trainer.resume_from_path"}, "only with resume_mode resume_path");
  }
}

// The file whose settings the overrides change. The import does not have it, and uses verl's own defaults for the rest.
void warn_of_other_defaults(Translation& t) {
  const std::string_view key = "hydra.config_name";
  const std::string name = t.text(key);
  if (name == "ppo_trainer" || name == "ppo_trainer.yaml") return t.note_given({key}, "its defaults are those here");
  if (trainer_of(t) != VerlTrainer::kSync) return;  // what it adds is said by set_verl_mode
  t.warn(key, fmt::format("the file {} is not read: what is not on the command line is taken as in verl's ppo_trainer; "
                          "import the resolved file where it says otherwise",
                          quote(name)));
}

void set_critic_adapter(Translation& t) {
  constexpr const char* kFolder = "critic.model.lora_adapter_path";
  if (!t.is_null(kFolder)) {
    t.set(kFolder, t.text(kFolder), {kFolder}, "it must hold the value head");
    t.note_given({"critic.model.lora_rank", "critic.model.lora_alpha", "critic.model.target_modules",
                  "critic.model.target_parameters", "critic.model.exclude_modules"},
                 "the adapter has its own");
    return;
  }
  t.note_given({kFolder}, "as here");
  if (t.integer("critic.model.lora_rank") > 0) {
    for (const char* key : {"critic.model.lora_rank", "critic.model.lora_alpha"}) t.set(key, t.value(key), {key});
    for (const char* key :
         {"critic.model.target_modules", "critic.model.target_parameters", "critic.model.exclude_modules"}) {
      if (!t.is_null(key)) t.set(key, t.texts(key), {key});
    }
    return;
  }
  t.note_given({"critic.model.lora_rank"}, "as here");
  t.note_given({"critic.model.lora_alpha", "critic.model.target_modules", "critic.model.target_parameters",
                "critic.model.exclude_modules"},
               "only with lora_rank");
}

void set_model(Translation& t) {
  if (t.is_null("model.path")) {
    t.ask("model", "path = \"...\"  # the model's folder");
  } else {
    t.set("model.path", t.text("model.path"), {"model.path"});
  }
  const Json overrides = t.table("model.override_config");
  constexpr LoraNames kLora{.rank = "model.lora_rank",
                            .alpha = "model.lora_alpha",
                            .dropout = "",
                            .modules = "model.target_modules",
                            .rslora = "",
                            .parameters = "model.target_parameters"};
  if (t.integer("model.lora_rank") > 0) {
    translate_lora(t, kLora, "all-linear");
    if (!t.is_null("model.exclude_modules"))
      t.set("model.exclude_modules", t.texts("model.exclude_modules"), {"model.exclude_modules"});
  } else {
    t.note_given({"model.lora_rank"}, "as here");
    t.note_given({"model.lora_alpha", "model.target_modules", "model.target_parameters", "model.exclude_modules"},
                 "only with lora_rank");
  }
  for (const auto& [key, value] : overrides.items()) {
    const bool dropout = key.find("drop") != std::string::npos && value.is_number() && value.get<double>() == 0;
    // Megatron's tables. The model must not change, and there are no experts.
    const bool empty = key == "model_config" && (value.is_null() || (value.is_object() && value.empty()));
    if (dropout || empty || key == "attn_implementation" || key == "moe_config" || key == "use_cache") continue;
    t.problem("model.override_config", fmt::format("model.override_config.{} would change the model", key),
              "change the model's config.json instead");
  }
  if (t.is_given("model.override_config")) t.note("model.override_config", "nothing in it changes the model here");
}

// verl computes the reference of an adapter's run by the policy without its adapter.
void set_reference(Translation& t) {
  constexpr std::string_view kPath = "ref.model.path";
  if (t.is_null(kPath)) return t.note_given({kPath}, "the reference is the initial model");
  if (!t.flag("actor.use_kl_loss") && !t.flag("algorithm.use_kl_in_reward"))
    return t.note(kPath, "there is no KL, so there is no reference");
  if (t.integer("model.lora_rank") > 0) return t.note(kPath, "with an adapter the reference is the model without it");
  t.set("ref.path", t.text(kPath), {kPath});
}

}  // namespace

void prepare_verl(Translation& t) {
  if (!t.flag("rollout.multi_turn.enable") && !names_tool_files(t))
    t.leave_out("rollout.multi_turn", "rollout.multi_turn.enable is false, so a completion is one turn");
  if (!has_critic(t)) t.leave_out("critic", "algorithm.adv_estimator asks for no values: there is no critic");
}

void translate_verl(Translation& t) {
  translate_verl_objective(t);
  set_verl_mode(t);
  set_batches(t);
  set_sequence_parallel(t, "actor",
                        {"actor.fsdp_config.ulysses_sequence_parallel_size", "actor.veomni.ulysses_parallel_size"});
  set_sequence_parallel(t, "ref",
                        {"ref.fsdp_config.ulysses_sequence_parallel_size", "ref.veomni.ulysses_parallel_size"});
  translate_verl_schedule(t, "actor");
  translate_verl_optimizer(t, "actor");
  set_run_length(t);
  set_files(t, "data.train_files");
  set_files(t, "data.val_files");
  set_validation(t);
  translate_verl_servers(t);
  set_turns(t);
  set_trainer(t);
  set_model(t);
  set_reference(t);
  set_tensor_parallel(t);
  set_rollout_tensor_parallel(t);
  set_sleep(t, "rollout.free_cache_engine");
  warn_of_other_defaults(t);
  translate_verl_rewards(t);
  if (!has_critic(t)) return;
  set_critic_adapter(t);
  set_sequence_parallel(
      t, "critic",
      {"critic.fsdp.ulysses_sequence_parallel_size", "critic.fsdp_config.ulysses_sequence_parallel_size",
       "critic.model.fsdp_config.ulysses_sequence_parallel_size", "critic.veomni.ulysses_parallel_size"});
  translate_verl_schedule(t, "critic");
  translate_verl_optimizer(t, "critic");
  const std::string_view mode = t.is_null("critic.loss_agg_mode") ? "actor.loss_agg_mode" : "critic.loss_agg_mode";
  t.set("critic.loss_agg_mode", t.text(mode), {mode});
}

}  // namespace mortise
