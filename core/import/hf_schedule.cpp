// The length of a run and its learning rate, as transformers.Trainer has them: shared by TRL and ms-swift.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "config/run_config.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

void set_run_length(Translation& t, const HfBatches& batches) {
  const int64_t updates = t.integer("max_steps");
  if (updates > 0) {
    t.note_given({"num_train_epochs"}, "max_steps is given");
    const std::optional<int64_t> steps = batches.whole_steps(updates);
    if (steps && !batches.carries_rows) {
      t.set("trainer.total_training_steps", *steps, {"max_steps"},
            *steps == updates
                ? ""
                : "there in updates, here in generation batches of " + format_f64(batches.updates_per_step));
    } else {
      t.set("trainer.total_training_updates", updates, {"max_steps"});
    }
  } else {
    const double epochs = t.number("num_train_epochs");
    if (!(epochs > 0 && epochs <= 1e9)) {
      t.problem("num_train_epochs", "num_train_epochs is " + format_f64(epochs),
                "set it above 0 and at most 1e9, or give max_steps");
    } else if (epochs == std::floor(epochs)) {
      t.set("trainer.total_epochs", static_cast<int64_t>(epochs), {"num_train_epochs"});
    } else {
      t.set("trainer.total_epochs", epochs, {"num_train_epochs"},
            batches.updates_per_step == 1
                ? ""
                : fmt::format("rounded up to whole steps of {} updates", format_f64(batches.updates_per_step)));
    }
  }
}

void set_warmup(Translation& t, const HfBatches& batches, bool ignored) {
  if (ignored) {
    const std::string why = fmt::format("lr_scheduler_type {} has no warm-up", t.text("lr_scheduler_type"));
    return t.note_given({"warmup_steps", "warmup_ratio"}, why);
  }
  double steps = t.number("warmup_steps");
  std::string_view name = "warmup_steps";
  if (steps == 0 && t.is_given("warmup_ratio")) {
    name = "warmup_ratio";
    steps = t.number("warmup_ratio");
  }
  if (steps < 0 || steps > 1e12) return t.problem(name, fmt::format("{} is {}", quote(name), format_f64(steps)), "");
  if (steps >= 1 || steps == 0) {
    if (steps >= 1) t.set("actor.optim.lr_warmup_steps", static_cast<int64_t>(steps), {name});
    return;
  }
  const int64_t updates = t.integer("max_steps");
  if (updates > 0) {
    t.set("actor.optim.lr_warmup_steps", static_cast<int64_t>(std::ceil(static_cast<double>(updates) * steps)),
          {name, "max_steps"});
  } else {
    t.set("actor.optim.lr_warmup_steps_ratio", steps, {name},
          batches.updates_per_step > 0 ? "rounded down here, up there" : "");
  }
}

// A setting of lr_scheduler_kwargs, by the schedule that has it.
struct ScheduleSetting {
  std::string_view type, name, key;
  bool of_lr = false;  // a learning rate there, a share of it here
};
constexpr ScheduleSetting kScheduleSettings[] = {
    {"cosine", "num_cycles", "actor.optim.num_cycles"},
    {"cosine_with_min_lr", "num_cycles", "actor.optim.num_cycles"},
    {"cosine_with_min_lr", "min_lr", "actor.optim.min_lr_ratio", true},
    {"cosine_with_min_lr", "min_lr_rate", "actor.optim.min_lr_ratio"},
    {"cosine_warmup_with_min_lr", "num_cycles", "actor.optim.num_cycles"},
    {"cosine_warmup_with_min_lr", "min_lr", "actor.optim.min_lr_ratio", true},
    {"cosine_warmup_with_min_lr", "min_lr_rate", "actor.optim.min_lr_ratio"},
    {"cosine_warmup_with_min_lr", "warmup_lr_rate", "actor.optim.lr_warmup_init_ratio"},
    {"cosine_with_restarts", "num_cycles", "actor.optim.num_cycles"},
    {"polynomial", "lr_end", "actor.optim.min_lr_ratio", true},
    {"polynomial", "power", "actor.optim.power"},
    {"inverse_sqrt", "timescale", "actor.optim.timescale"},
    {"warmup_stable_decay", "num_decay_steps", "actor.optim.lr_wsd_decay_steps"},
    {"warmup_stable_decay", "min_lr_ratio", "actor.optim.min_lr_ratio"},
    {"warmup_stable_decay", "num_cycles", "actor.optim.num_cycles"},
    {"reduce_lr_on_plateau", "factor", "actor.optim.lr_metric.factor"},
    {"reduce_lr_on_plateau", "patience", "actor.optim.lr_metric.patience"},
    {"reduce_lr_on_plateau", "threshold", "actor.optim.lr_metric.threshold"},
    {"reduce_lr_on_plateau", "cooldown", "actor.optim.lr_metric.cooldown"},
    {"reduce_lr_on_plateau", "min_lr", "actor.optim.lr_metric.min_lr"},
    {"reduce_lr_on_plateau", "eps", "actor.optim.lr_metric.eps"},
    {"greedy", "factor", "actor.optim.lr_metric.factor"},
    {"greedy", "patience", "actor.optim.lr_metric.patience"},
    {"greedy", "threshold", "actor.optim.lr_metric.threshold"},
    {"greedy", "cooldown", "actor.optim.lr_metric.cooldown"},
    {"greedy", "warmup", "actor.optim.lr_metric.raise_cooldown"},
    {"greedy", "min_lr", "actor.optim.lr_metric.min_lr"},
    {"greedy", "max_lr", "actor.optim.lr_metric.max_lr"},
    {"greedy", "eps", "actor.optim.lr_metric.eps"},
    {"greedy", "reset_start", "actor.optim.lr_metric.reset_start"},
};

const ScheduleSetting* find_setting(std::string_view type, std::string_view name) {
  const auto* found = std::ranges::find_if(
      kScheduleSettings, [&](const ScheduleSetting& setting) { return setting.type == type && setting.name == name; });
  return found == std::end(kScheduleSettings) ? nullptr : found;
}

constexpr std::string_view kKwargs = "lr_scheduler_kwargs";

bool follows_validations(std::string_view type) { return type == "reduce_lr_on_plateau" || type == "greedy"; }

// A setting that names a shape.
bool set_shape(Translation& t, std::string_view key, const Json& value) {
  const std::string style = value.is_string() ? value.get<std::string>() : "";
  if (style != "linear" && style != "cosine" && style != "1-sqrt") return false;
  t.set(key, style == "1-sqrt" ? "minus_sqrt" : style, {kKwargs});
  return true;
}

// num_stable_steps ends the schedule there after the warm-up, these steps and the decay.
bool set_stable_steps(Translation& t, const Json& kwargs) {
  const Json stable = kwargs.value("num_stable_steps", Json()), decay = kwargs.value("num_decay_steps", Json());
  constexpr std::string_view kWarmup = "actor.optim.lr_warmup_steps";
  if (!stable.is_number_integer() || !decay.is_number_integer()) return false;
  if (t.is_set("actor.optim.lr_warmup_steps_ratio")) return false;  // its length is not known here
  const int64_t warmup = t.is_set(kWarmup) ? t.value_set(kWarmup).get<int64_t>() : 0;
  t.set("actor.optim.lr_decay_steps", warmup + stable.get<int64_t>() + decay.get<int64_t>(), {kKwargs},
        "the warm-up, num_stable_steps and num_decay_steps");
  return true;
}

// Settings that are not one number of a key. Whether `name` is one of them, and is handled.
bool set_special(Translation& t, const std::string& type, const std::string& name, const Json& kwargs) {
  const Json& value = kwargs[name];
  if (type == "warmup_stable_decay") {
    if (name == "decay_type") return set_shape(t, "actor.optim.lr_wsd_decay_style", value);
    if (name == "warmup_type") return value == "linear" || set_shape(t, "actor.optim.lr_warmup_style", value);
    return name == "num_stable_steps" && set_stable_steps(t, kwargs);
  }
  if (!follows_validations(type)) return false;
  if (name == "mode" || name == "threshold_mode") {
    if (!value.is_string()) return false;
    t.set("actor.optim.lr_metric." + name, value, {kKwargs});
    return true;
  }
  if (type != "greedy") return false;
  if (name == "window_size" || name == "smooth") {
    if (name == "smooth" && kwargs.value("smooth", Json()) == true)
      t.set("actor.optim.lr_metric.smooth_window", kwargs.value("window_size", Json(50)), {kKwargs});
    return value.is_boolean() || value.is_number_integer();
  }
  return name == "verbose" && value.is_boolean();
}

// What transformers takes where the file says nothing, and ours is another.
void set_schedule_defaults(Translation& t, const Json& kwargs, const std::string& type, double learning_rate) {
  const auto lacks = [&](const char* name) { return !kwargs.contains(name) || kwargs[name].is_null(); };
  constexpr std::string_view kType = "lr_scheduler_type";
  if (type == "cosine_with_restarts" && lacks("num_cycles")) t.set("actor.optim.num_cycles", 1.0, {kType});
  if (type == "polynomial" && lacks("lr_end"))
    t.set("actor.optim.min_lr_ratio", 1e-7 / learning_rate, {kType, "learning_rate"}, "transformers' lr_end is 1e-7");
  if (type == "warmup_stable_decay") {
    if (lacks("num_decay_steps"))
      t.problem(kKwargs, "warmup_stable_decay needs lr_scheduler_kwargs.num_decay_steps",
                "add it, as transformers asks");
    if (!lacks("min_lr_ratio") && kwargs["min_lr_ratio"] != 0)
      t.set("actor.optim.lr_warmup_init_ratio", kwargs["min_lr_ratio"], {kKwargs},
            "transformers' warm-up begins there");
  }
  if ((type == "cosine_with_min_lr" || type == "cosine_warmup_with_min_lr") && lacks("min_lr") == lacks("min_lr_rate"))
    t.problem(kKwargs, fmt::format("{} needs one of min_lr and min_lr_rate", type),
              "add one of them to lr_scheduler_kwargs, as transformers asks");
  if (!follows_validations(type)) return;
  if (lacks("mode")) t.set("actor.optim.lr_metric.mode", "min", {kType}, "a smaller metric is better: their default");
  if (type == "greedy" && lacks("min_lr"))
    t.set("actor.optim.lr_metric.min_lr", 1e-3, {kType}, "transformers' default");
}

void set_schedule_kwargs(Translation& t, const Json& kwargs, const std::string& type, double learning_rate) {
  for (const auto& [key, value] : kwargs.items()) {
    if (value.is_null() || set_special(t, type, key, kwargs)) continue;
    const ScheduleSetting* setting = find_setting(type, key);
    if (setting == nullptr || !value.is_number()) {
      t.problem(kKwargs, fmt::format("lr_scheduler_kwargs.{} is not supported with {}", key, quote(type)),
                "remove it, or choose a schedule that has it");
    } else if (setting->of_lr) {
      t.set(setting->key, value.get<double>() / learning_rate, {kKwargs, "learning_rate"});
    } else {
      t.set(setting->key, value, {kKwargs});
    }
  }
  set_schedule_defaults(t, kwargs, type, learning_rate);
}

// What reduce_lr_on_plateau and greedy follow.
void set_schedule_metric(Translation& t) {
  constexpr std::string_view kMetric = "metric_for_best_model", kType = "lr_scheduler_type";
  if (t.is_null(kMetric))
    return t.problem(kType, fmt::format("{} follows eval_loss there, and a validation has no loss here", t.text(kType)),
                     "set metric_for_best_model: eval_reward, and lr_scheduler_kwargs: {mode: max}");
  t.set("actor.optim.lr_metric.name", metric_of_validation(t.text(kMetric)), {kMetric});
}

}  // namespace

void translate_hf_schedule(Translation& t, const HfBatches& batches, double learning_rate) {
  if (batches.is_known) set_run_length(t, batches);
  const std::string type = t.text("lr_scheduler_type");
  const bool plain = type == "constant";
  if (!plain && parse_choice<LrSchedule>(type)) {  // the same name
    t.set("actor.optim.lr_scheduler_type", type, {"lr_scheduler_type"});
  } else if (type == "cosine_with_min_lr") {
    t.set("actor.optim.lr_scheduler_type", "cosine", {"lr_scheduler_type"});
  } else if (plain || type == "constant_with_warmup") {
    t.set("actor.optim.lr_scheduler_type", "constant", {"lr_scheduler_type"});
  } else {
    t.problem(
        "lr_scheduler_type", fmt::format("lr_scheduler_type {} is not supported", quote(type)),
        "there are constant, constant_with_warmup, linear, cosine, cosine_with_min_lr, cosine_with_restarts, "
        "cosine_warmup_with_min_lr, polynomial, inverse_sqrt, warmup_stable_decay, reduce_lr_on_plateau and greedy");
  }
  const bool follows = follows_validations(type);
  set_warmup(t, batches, plain || follows);
  if (follows) set_schedule_metric(t);
  set_schedule_kwargs(t, t.table("lr_scheduler_kwargs"), type, learning_rate);
  const double beta1 = t.number("adam_beta1"), beta2 = t.number("adam_beta2");
  if (beta1 != 0.9 || beta2 != 0.999 || t.is_given("adam_beta1") || t.is_given("adam_beta2"))
    t.set("actor.optim.betas", Json::array({beta1, beta2}), {"adam_beta1", "adam_beta2"});
  if (t.is_null("max_grad_norm")) {
    t.set("actor.grad_clip", 0.0, {"max_grad_norm"});
  } else {
    t.set("actor.grad_clip", t.number("max_grad_norm"), {"max_grad_norm"});
  }
}

}  // namespace mortise
