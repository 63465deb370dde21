// The settings that TRL and ms-swift share through transformers.Trainer: batches, schedule, checkpoints, validation.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "foundation/base/text.h"
#include "foundation/formats/json.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 40;  // products of the counts below stay exact

// A count of at least 1; anything else is a problem and gives 1.
int64_t count_of(Translation& t, std::string_view name) {
  const int64_t value = t.integer(name);
  if (value >= 1 && value <= 1'000'000) return value;
  t.problem(name, fmt::format("{} must be from 1 to 1,000,000, but is {}", quote(name), value), "");
  return 1;
}

// Micro-steps that one generation batch is cut into.
int64_t steps_per_generation(Translation& t, int64_t rows, int64_t accumulation) {
  if (!t.is_null("generation_batch_size") && !t.is_null("steps_per_generation")) {
    t.problem("generation_batch_size", "generation_batch_size and steps_per_generation are both given", "give one");
    return accumulation;
  }
  if (!t.is_null("steps_per_generation")) return count_of(t, "steps_per_generation");
  if (t.is_null("generation_batch_size")) return accumulation;
  const int64_t batch = count_of(t, "generation_batch_size");
  if (batch % rows == 0) return batch / rows;
  t.problem("generation_batch_size",
            fmt::format("generation_batch_size ({}) is not a multiple of the rows of a micro-step ({})", batch, rows),
            "per_device_train_batch_size times --processes must divide it");
  return accumulation;
}

// How a generation batch is cut, in completions.
struct Cut {
  int64_t rows, steps, accumulation, group;
};

// Batches without whole groups for the known processes may have them for the real number of processes.
std::string more_processes(const Processes& processes) {
  if (processes.is_said) return "";
  return "if several processes run, give --processes N; otherwise ";
}

bool check_cut(Translation& t, const Cut& cut, const Processes& processes) {
  const auto& [rows, steps, accumulation, group] = cut;
  const std::string of = " of " + processes.text();
  if (rows * steps > kMostRows || rows * accumulation > kMostRows) {
    t.problem("per_device_train_batch_size", "a step has more completions than Mortise supports", "");
    return false;
  }
  if ((rows * steps) % group != 0) {
    t.problem("num_generations",
              fmt::format("a generation batch of {} completions{} does not hold whole groups of {} (num_generations)",
                          rows * steps, of, group),
              more_processes(processes) + "change num_generations; the framework refuses it too");
    return false;
  }
  return true;
}

// An update over several whole generation batches becomes an update over one batch, because no weights change between
// them, unless the framework normalizes within each of them (NormalizesBatches). Its divisors then differ: see
// warn_of_own_divisors. Passes over a batch that lie in one update give the same gradient each, so one of them is enough.
// Returns the number of generation batches in an update.
int64_t join_batches(Translation& t, Cut& cut, int64_t& passes, NormalizesBatches normalizes_batches) {
  if (cut.accumulation % cut.steps != 0 || cut.rows * cut.steps % cut.group != 0) return 1;
  const int64_t passes_in_update = cut.accumulation / cut.steps;
  if (passes % passes_in_update == 0) {
    cut.accumulation = cut.steps;
    passes /= passes_in_update;
    return 1;
  }
  if (passes_in_update % passes != 0) return 1;
  const int64_t num_joined = passes_in_update / passes;
  cut.accumulation /= passes;
  passes = 1;
  if (!normalizes_batches(t)) cut.steps = cut.accumulation;
  return num_joined;
}

// Some updates hold the end of a generation batch, or of a pass over it, and the beginning of the next.
void set_carried_rows(Translation& t, const HfBatches& batches) {
  if (!batches.carries_rows) return;
  t.set("actor.carry_rows", true, {"gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"},
        "an update may hold rows of several generation batches or passes");
}

// `passes` over the rows of a step.
void set_update_size(Translation& t, const Cut& cut, DealtRows order, int64_t passes) {
  const int64_t rows = cut.rows * cut.accumulation;
  const bool is_random = order == DealtRows::kAtRandom && cut.accumulation % cut.steps != 0;
  if (rows % cut.group == 0) {
    t.set("actor.ppo_mini_batch_size", rows / cut.group,
          {"per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"},
          is_random ? fmt::format("in prompts. TRL draws the rows of an update at random; for that, set "
                                  "actor.rows_per_update = {} and actor.shuffle = true{}",
                                  rows, passes == 1 ? "" : "; here each of num_iterations has a new order")
                    : "in prompts");
    return;
  }
  t.set("actor.rows_per_update", rows, {"per_device_train_batch_size", "gradient_accumulation_steps"},
        fmt::format("in completions, because an update does not hold whole groups of {}", cut.group));
  if (!is_random) return;
  t.set("actor.shuffle", true, {"steps_per_generation"},
        passes == 1 ? "TRL draws the rows of an update at random"
                    : "TRL draws the rows of an update at random; here each of num_iterations has a new order");
}

// The best checkpoint is kept; transformers also loads it at the end.
void set_best_model(Translation& t) {
  const bool loads = t.flag("load_best_model_at_end");
  if (!loads && t.is_null("metric_for_best_model")) return t.note_given({"greater_is_better"}, "there is no metric");
  const std::string metric = t.is_null("metric_for_best_model") ? "loss" : t.text("metric_for_best_model");
  if (metric.ends_with("loss"))
    return t.problem("metric_for_best_model", fmt::format("a validation has no {}", quote(metric)),
                     "set metric_for_best_model: eval_reward");
  t.set("trainer.metric_for_best_model", metric_of_validation(metric), {"metric_for_best_model"},
        loads ? "the file `best` in the run's folder names the checkpoint that transformers would load" : "");
  if (!t.is_null("greater_is_better"))
    t.set("trainer.greater_is_better", t.flag("greater_is_better"), {"greater_is_better"});
}

// `otherwise`: the steps if eval_steps is not given.
void set_validation(Translation& t, const HfBatches& batches, const std::string& strategy, std::string_view name,
                    std::string_view otherwise) {
  double every = 0;
  std::string_view of = "eval_steps";
  if (strategy == "steps") {
    if (t.is_null("eval_steps")) of = otherwise;
    every = t.is_null(of) ? 0 : t.number(of);
  }
  if (every >= 1) {
    t.set("trainer.test_freq", batches.fewest_steps(every), {name, of}, "there in updates, here in steps");
  } else {
    t.note(name, "validations here come every trainer.test_freq steps; the last step is always validated");
  }
  const bool own = !t.is_null("num_generations_eval");
  t.set("rollout.val_kwargs.n", t.integer(own ? "num_generations_eval" : "num_generations"),
        {name, own ? "num_generations_eval" : "num_generations"});
  t.set("rollout.val_kwargs.do_sample", true, {name}, "validated as it is trained");
  t.set("rollout.val_kwargs.temperature", t.number("temperature"), {name, "temperature"});
  if (!t.is_null("top_k")) t.set("rollout.val_kwargs.top_k", t.integer("top_k"), {name, "top_k"});
  t.set("rollout.val_kwargs.top_p", t.number("top_p"), {name, "top_p"});
  if (!t.is_null("min_p")) t.set("rollout.val_kwargs.min_p", t.number("min_p"), {name, "min_p"});
  if (!t.is_set("data.val_files")) t.ask("data", "val_files = [\"val.jsonl\"]  # eval_strategy asks for validations");
}

void set_logging(Translation& t) {
  if (!t.flag("log_completions")) return;
  if (!t.is_null("num_completions_to_print")) {
    t.set("trainer.num_completions_to_print", t.integer("num_completions_to_print"), {"num_completions_to_print"});
  } else {
    t.set("trainer.num_completions_to_print", t.integer("num_generations"), {"log_completions"},
          "all of them: trainer.rollout_data_dir");
  }
}

}  // namespace

HfBatches translate_hf_batches(Translation& t, const Processes& processes, NormalizesBatches normalizes_batches,
                               DealtRows order) {
  HfBatches plan;
  const int64_t rows = count_of(t, "per_device_train_batch_size") * processes.count;
  const int64_t micro_steps = t.is_null("gradient_accumulation_steps") ? 1 : count_of(t, "gradient_accumulation_steps");
  const int64_t group = count_of(t, "num_generations");
  int64_t passes = count_of(t, "num_iterations");
  Cut cut{rows, steps_per_generation(t, rows, micro_steps), micro_steps, group};
  plan.num_joined = join_batches(t, cut, passes, normalizes_batches);
  if (!check_cut(t, cut, processes)) return plan;
  const int64_t steps = cut.steps, accumulation = cut.accumulation;
  if (group < 2)
    t.problem("num_generations", "num_generations is 1, so there is nothing to compare a completion with",
              "set it to 2 or more");
  plan.updates_per_step = static_cast<double>(steps * passes) / static_cast<double>(accumulation);
  plan.carries_rows = steps % accumulation != 0;
  plan.micro_steps = micro_steps * processes.count;  // passes that are left out here are micro-steps there
  plan.is_known = true;
  t.set("rollout.n", group, {"num_generations"});
  t.set("data.train_batch_size", rows * steps / group,
        {"per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
         "num_generations"},
        processes.count == 1 ? "in prompts" : fmt::format("in prompts, of {} processes", processes.count));
  set_update_size(t, cut, order, passes);
  set_carried_rows(t, plan);
  t.set("actor.ppo_micro_batch_size_per_gpu", t.integer("per_device_train_batch_size"), {"per_device_train_batch_size"},
        reasons::kSpeed);
  if (passes != 1) t.set("actor.ppo_epochs", passes, {"num_iterations"});
  return plan;
}

std::optional<int64_t> HfBatches::whole_steps(int64_t updates) const {
  const double steps = static_cast<double>(updates) / updates_per_step;
  if (updates_per_step != std::floor(updates_per_step) || steps != std::floor(steps)) return std::nullopt;
  return static_cast<int64_t>(steps);
}

int64_t HfBatches::fewest_steps(double updates) const {
  return static_cast<int64_t>(std::ceil(updates / updates_per_step));
}

void warn_of_own_divisors(Translation& t, const HfBatches& batches) {
  if (batches.num_joined == 1) {
    if (batches.carries_rows)
      t.warn("loss_type",
             "an update may hold rows of two generation batches. There the loss of a row is divided by the mean number "
             "of tokens in an update's share of its own batch. Here it is divided by the tokens of the update");
    return;
  }
  t.warn("loss_type",
         fmt::format("an update has {} generation batches. There the loss of each is divided by its own tokens, so a "
                     "token of a batch with few tokens counts more. Here all tokens of the update count alike",
                     batches.num_joined));
}

namespace {

// The ZeRO stage in DeepSpeed's settings, which may be ms-swift's name for a file of them ("zero2_offload"). Nothing: they
// do not say.
std::optional<int64_t> zero_stage_of(const Json& deepspeed) {
  if (deepspeed.is_string()) {
    const std::string text = deepspeed.get<std::string>();
    if (text.starts_with("zero") && text.size() > 4 && text[4] >= '0' && text[4] <= '3') return text[4] - '0';
    if (!text.starts_with('{')) return std::nullopt;
    const auto settings = parse_json(text, "deepspeed");
    return settings.ok() && settings->is_object() ? zero_stage_of(*settings) : std::nullopt;
  }
  if (!deepspeed.is_object()) return std::nullopt;
  const Json* zero = json_find(deepspeed, "zero_optimization");
  if (zero == nullptr || !zero->is_object()) return 0;
  const Json* stage = json_find(*zero, "stage");
  if (stage == nullptr) return 0;
  return stage->is_number_integer() ? std::optional(stage->get<int64_t>()) : std::nullopt;
}

void set_zero_stage(Translation& t) {
  const Json deepspeed = t.value("deepspeed");
  if (deepspeed.is_null()) return;
  const std::optional<int64_t> stage = zero_stage_of(deepspeed);
  if (!stage || *stage < 0 || *stage > 3)
    t.note("deepspeed", "set ranks.zero_stage to its zero_optimization.stage; all else changes memory and speed only");
  else
    t.set("ranks.zero_stage", *stage, {"deepspeed"});
}

}  // namespace

void translate_hf_files(Translation& t, const HfBatches& batches, bool validates_as_it_saves) {
  const std::string save = t.text("save_strategy");
  if (save == "steps") {
    const double every = t.number("save_steps");
    if (every >= 1 && every < 1e12) {
      t.set("trainer.save_freq", batches.fewest_steps(every), {"save_strategy", "save_steps"},
            "there in updates, here in steps");
    } else {
      t.note("save_steps", "a share of the run; set trainer.save_freq, the last step is always saved");
    }
  } else if (t.is_given("save_strategy")) {
    t.note("save_strategy", "trainer.save_freq counts steps; the last step is always saved");
  }
  const std::string_view name = t.is_given("eval_strategy") ? "eval_strategy" : "evaluation_strategy";
  const bool as_saved = validates_as_it_saves && !t.is_given(name);
  const std::string strategy = as_saved ? save : t.is_given(name) ? t.text(name) : t.text("eval_strategy");
  const bool validates = strategy == "steps" || strategy == "epoch";
  t.set("trainer.val_before_train", validates && t.flag("eval_on_start"), {"eval_on_start"});
  if (validates) {
    const std::string_view otherwise = validates_as_it_saves ? "save_steps" : "logging_steps";
    set_validation(t, batches, strategy,
                   as_saved           ? "save_strategy"
                   : t.is_given(name) ? name
                                      : "eval_strategy",
                   otherwise);
  }
  set_best_model(t);
  set_logging(t);
  set_zero_stage(t);
  if (t.is_given("resume_from_checkpoint") && !t.is_null("resume_from_checkpoint")) {
    const Json resume = t.value("resume_from_checkpoint");
    if (resume.is_boolean()) {
      t.set("trainer.resume_mode", resume.get<bool>() ? "auto" : "disable", {"resume_from_checkpoint"});
    } else {
      t.problem("resume_from_checkpoint", "a run cannot continue from a checkpoint of transformers",
                "give its folder as the model");
    }
  }
}

void translate_clipped_loss(Translation& t, const std::string& loss_type, const std::string& level) {
  const bool token = level == "token";
  const std::string_view name = token                  ? "vanilla"
                                : loss_type == "luspo" ? "luspo"
                                : level == "sequence"  ? "gspo"
                                                       : "gspo_token";
  t.set("actor.policy_loss.loss_mode", std::string(name), {"loss_type", "importance_sampling_level"});
  const double low = t.number("epsilon");
  t.set("actor.clip_ratio_low", low, {"epsilon"});
  t.set("actor.clip_ratio_high", t.is_null("epsilon_high") ? low : t.number("epsilon_high"),
        {t.is_null("epsilon_high") ? "epsilon" : "epsilon_high"});
  if (!t.is_null("delta")) t.set("actor.policy_loss.delta", t.number("delta"), {"delta"});
  if (token) {
    t.set("actor.clip_ratio_c", 0.0, {"loss_type"}, "no dual clip");
    return;
  }
  if (name == "gspo") t.set("actor.policy_loss.gradient", "row", {"importance_sampling_level"});
  t.set("actor.policy_loss.max_log_ratio", kNoCap, {"importance_sampling_level"}, "no cap");
}

void translate_reference(Translation& t, const HfBatches& batches) {
  if (!t.flag("sync_ref_model")) {
    for (const std::string_view name : {"ref_model_sync_steps", "ref_model_mixup_alpha"}) {
      if (t.is_given(name)) t.note(name, "only with sync_ref_model");
    }
    return;
  }
  if (!t.is_set("actor.kl_loss_coef") && !t.is_set("algorithm.use_kl_in_reward")) {
    return t.problem("sync_ref_model", "sync_ref_model is true, but beta is 0, so there is no reference to refresh",
                     "remove it, or set beta");
  }
  const int64_t updates = count_of(t, "ref_model_sync_steps");
  const bool has_equal_steps = batches.updates_per_step == std::floor(batches.updates_per_step);
  const std::optional<int64_t> steps = has_equal_steps ? batches.whole_steps(updates) : std::nullopt;
  t.set("ref.sync_steps", steps.value_or(updates), {"sync_ref_model", "ref_model_sync_steps"});
  if (!steps)
    t.set("ref.sync_unit", "update", {"ref_model_sync_steps"}, "some of its multiples are inside a generation batch");
  t.set("ref.mixup_alpha", t.number("ref_model_mixup_alpha"), {"ref_model_mixup_alpha"});
}

bool is_local_data(std::string_view name) {
  for (const std::string_view begin : {"/", "./", "../", "~"}) {
    if (name.starts_with(begin)) return true;
  }
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.remove_suffix(packed.size());
  }
  for (const std::string_view end : {".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

}  // namespace mortise
