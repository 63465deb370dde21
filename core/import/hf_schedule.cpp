// The length of a run and its learning rate, as transformers.Trainer has them: shared by TRL and ms-swift.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

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
    if (t.is_given("warmup_steps")) t.note("warmup_steps", "lr_scheduler_type constant has no warm-up");
    if (t.is_given("warmup_ratio")) t.note("warmup_ratio", "lr_scheduler_type constant has no warm-up");
    return;
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
    {"cosine_with_restarts", "num_cycles", "actor.optim.num_cycles"},
    {"polynomial", "lr_end", "actor.optim.min_lr_ratio", true},
    {"polynomial", "power", "actor.optim.power"},
    {"inverse_sqrt", "timescale", "actor.optim.timescale"},
    {"warmup_stable_decay", "num_decay_steps", "actor.optim.lr_wsd_decay_steps"},
    {"warmup_stable_decay", "min_lr_ratio", "actor.optim.min_lr_ratio"},
};

const ScheduleSetting* find_setting(std::string_view type, std::string_view name) {
  const auto* found = std::ranges::find_if(
      kScheduleSettings, [&](const ScheduleSetting& setting) { return setting.type == type && setting.name == name; });
  return found == std::end(kScheduleSettings) ? nullptr : found;
}

// warmup_stable_decay's settings that are texts. Whether `name` is one of them, and is handled.
bool set_stable_decay(Translation& t, const std::string& name, const Json& value) {
  constexpr std::string_view kKwargs = "lr_scheduler_kwargs";
  if (name == "decay_type") {
    const std::string style = value.is_string() ? value.get<std::string>() : "";
    if (style != "linear" && style != "cosine" && style != "1-sqrt") return false;
    t.set("actor.optim.lr_wsd_decay_style", style == "1-sqrt" ? "minus_sqrt" : style, {kKwargs});
    return true;
  }
  return name == "warmup_type" && value == "linear";
}

void set_schedule_kwargs(Translation& t, const Json& kwargs, const std::string& type, double learning_rate) {
  constexpr std::string_view kKwargs = "lr_scheduler_kwargs";
  for (const auto& [key, value] : kwargs.items()) {
    if (value.is_null() || (type == "warmup_stable_decay" && set_stable_decay(t, key, value))) continue;
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
  // The defaults there that are not ours.
  if (type == "cosine_with_restarts" && !kwargs.contains("num_cycles"))
    t.set("actor.optim.num_cycles", 1.0, {"lr_scheduler_type"});
  if (type == "polynomial" && !kwargs.contains("lr_end"))
    t.set("actor.optim.min_lr_ratio", 1e-7 / learning_rate, {"lr_scheduler_type", "learning_rate"},
          "transformers' lr_end is 1e-7");
  if (type == "warmup_stable_decay" && !kwargs.contains("num_decay_steps"))
    t.problem(kKwargs, "warmup_stable_decay needs lr_scheduler_kwargs.num_decay_steps", "add it, as transformers asks");
}

}  // namespace

void translate_hf_schedule(Translation& t, const HfBatches& batches, double learning_rate) {
  if (batches.is_known) set_run_length(t, batches);
  const std::string type = t.text("lr_scheduler_type");
  const bool plain = type == "constant";
  constexpr std::string_view kSame[] = {"linear",     "cosine",       "cosine_with_restarts",
                                        "polynomial", "inverse_sqrt", "warmup_stable_decay"};
  if (std::ranges::find(kSame, type) != std::end(kSame)) {
    t.set("actor.optim.lr_scheduler_type", type, {"lr_scheduler_type"});
  } else if (type == "cosine_with_min_lr") {
    t.set("actor.optim.lr_scheduler_type", "cosine", {"lr_scheduler_type"});
  } else if (plain || type == "constant_with_warmup") {
    t.set("actor.optim.lr_scheduler_type", "constant", {"lr_scheduler_type"});
  } else {
    t.problem("lr_scheduler_type", fmt::format("lr_scheduler_type {} is not supported", quote(type)),
              "there are constant, constant_with_warmup, linear, cosine, cosine_with_min_lr, cosine_with_restarts, "
              "polynomial, inverse_sqrt and warmup_stable_decay");
  }
  set_warmup(t, batches, plain);
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
