// verl's learning-rate schedules: those of FSDP, and Megatron's, which have settings of their own.
#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {
namespace {

// Settings that one of the two has, and the other does not read.
constexpr std::string_view kMegatronLeaves[] = {"lr_warmup_init", "lr_decay_steps",     "lr_decay_style",
                                                "min_lr",         "lr_wsd_decay_steps", "lr_wsd_decay_style"};
constexpr std::string_view kFsdpLeaves[] = {"lr_scheduler_type", "min_lr_ratio", "num_cycles",
                                            "zero_indexed_step", "warmup_style", "lr_wsd_stable_steps_ratio"};

// By the engine that the file names; else by Megatron's settings, which verl refuses with another engine.
bool is_megatron(Translation& t, const std::string& table) {
  bool names_engine = false;
  for (const std::string_view name : {"hydra.config_name", "model_engine", "actor.strategy"}) {
    if (!t.is_given(name) || !t.value(name).is_string()) continue;
    if (t.text(name).find("megatron") != std::string::npos) return true;
    names_engine = names_engine || name != "hydra.config_name";
  }
  return !names_engine && std::ranges::any_of(kMegatronLeaves, [&](std::string_view leaf) {
    return t.is_given(fmt::format("{}{}", table, leaf));
  });
}

void note_leaves(Translation& t, const std::string& table, std::span<const std::string_view> leaves,
                 std::string_view why) {
  for (const std::string_view leaf : leaves)
    if (const std::string key = fmt::format("{}{}", table, leaf); t.is_given(key)) t.note(key, why);
}

// A learning rate there, a share of it here.
void set_share(Translation& t, const std::string& table, std::string_view leaf, std::string_view ours) {
  const std::string key = fmt::format("{}{}", table, leaf), lr = table + "lr";
  if (t.is_null(key) || t.number(key) == 0) {
    if (t.is_given(key)) t.note(key, "as here");
    return;
  }
  const double share = t.number(key) / t.number(lr);
  if (!(share >= 0 && share <= 1))
    return t.problem(key, fmt::format("{} is not between 0 and {}", key, lr), "Megatron refuses it too");
  t.set(fmt::format("{}{}", table, ours), share, {key, lr});
}

void set_megatron_shape(Translation& t, const std::string& table, const std::string& style) {
  const std::string style_key = table + "lr_decay_style", type = table + "lr_scheduler_type";
  if (style == "WSD") {
    const std::string steps = table + "lr_wsd_decay_steps", shape = table + "lr_wsd_decay_style";
    t.set(type, "warmup_stable_decay", {style_key});
    if (t.is_null(steps)) return t.problem(steps, "lr_decay_style WSD needs lr_wsd_decay_steps", "set it");
    t.set(steps, t.integer(steps), {steps});
    t.set(shape, t.text(shape), {shape});
    return;
  }
  if (style == "inverse-square-root") {
    const std::string steps = table + "lr_warmup_steps", ratio = table + "lr_warmup_steps_ratio";
    t.set(type, "inverse_sqrt", {style_key});
    const bool warms = (!t.is_null(steps) && t.integer(steps) > 0) || (!t.is_null(ratio) && t.number(ratio) > 0);
    if (!warms)
      t.problem(style_key, "lr_decay_style inverse-square-root without a warm-up is not supported",
                "set lr_warmup_steps to 1 or more");
  } else if (style == "linear" || style == "cosine" || style == "constant") {
    t.set(type, style, {style_key});
  } else {
    t.problem(style_key, fmt::format("{} is not one of Megatron's schedules", quote(style)),
              "use constant, linear, cosine, inverse-square-root or WSD");
  }
  note_leaves(t, table, std::span(kMegatronLeaves).subspan(4), "only with lr_decay_style WSD");
}

// The length of the warm-up. In Megatron's form 0 steps also leave it to the ratio.
void set_verl_warmup(Translation& t, const std::string& table, int64_t least) {
  const std::string ratio = table + "lr_warmup_steps_ratio", steps = table + "lr_warmup_steps";
  if (!t.is_null(steps) && t.integer(steps) >= least) {
    if (t.is_given(ratio)) t.note(ratio, "lr_warmup_steps is given");
  } else if (!t.is_null(ratio)) {
    if (least > 0 && t.is_given(steps)) t.set(steps, -1, {steps, ratio}, "0 leaves it to lr_warmup_steps_ratio there");
    t.set(ratio, t.number(ratio), {ratio});
  }
}

void set_megatron_schedule(Translation& t, const std::string& table) {
  note_leaves(t, table, kFsdpLeaves, "Megatron's schedule does not read it");
  const std::string length = table + "lr_decay_steps";
  const std::string style = t.text(table + "lr_decay_style");
  set_megatron_shape(t, table, style);
  set_verl_warmup(t, table, /*least=*/1);
  set_share(t, table, "lr_warmup_init", "lr_warmup_init_ratio");
  if (style == "constant") {
    for (const char* leaf : {"min_lr", "lr_decay_steps"})
      if (t.is_given(table + leaf)) t.note(table + leaf, "lr_decay_style is constant");
    return;
  }
  set_share(t, table, "min_lr", "min_lr_ratio");
  if (!t.is_null(length)) t.set(length, t.integer(length), {length});
}

void set_fsdp_schedule(Translation& t, const std::string& table) {
  const std::string type_key = table + "lr_scheduler_type", style = table + "warmup_style";
  const std::string& name = t.is_null(style) ? type_key : style;  // the older name wins, as in verl
  if (name == style && t.is_given(type_key)) t.note(type_key, "warmup_style wins");
  const std::string type = t.text(name), stable = table + "lr_wsd_stable_steps_ratio";
  const bool is_wsd = type == "wsd";
  if (!is_wsd && type != "constant" && type != "cosine")
    t.problem(name, quote(type) + " is not one of verl's schedules", "use constant, cosine or wsd");
  t.set(type_key, is_wsd ? "warmup_stable_decay" : type, {name});
  if (is_wsd)
    t.set(table + "lr_wsd_stable_ratio", t.number(stable), {stable});
  else if (t.is_given(stable))
    t.note(stable, "only with wsd");
  for (const std::string leaf : {"min_lr_ratio", "num_cycles"}) {
    const std::string key = table + leaf;
    if (type == "cosine" || is_wsd) {
      if (!t.is_null(key)) t.set(key, t.number(key), {key});
    } else if (t.is_given(key)) {
      t.note(key, "only with cosine and wsd");
    }
  }
  const std::string from_zero = table + "zero_indexed_step";
  if (type != "constant" && !t.flag(from_zero))
    t.set(table + "schedule_from_one", true, {from_zero});
  else if (t.is_given(from_zero))
    t.note(from_zero, type == "constant" ? "verl's constant schedule does not read it" : "as here");
  set_verl_warmup(t, table, /*least=*/0);
}

}  // namespace

bool uses_megatron(Translation& t, const std::string& part) { return is_megatron(t, part + ".optim."); }

void translate_verl_schedule(Translation& t, const std::string& part) {
  const std::string table = part + ".optim.";
  const bool megatron = uses_megatron(t, part);
  t.set(table + "schedule_unit", "step", {table + (megatron ? "lr_decay_style" : "lr_scheduler_type")},
        "verl's schedule counts steps");
  if (megatron) return set_megatron_schedule(t, table);
  note_leaves(t, table, kMegatronLeaves, "only Megatron's schedule reads it (actor.strategy)");
  set_fsdp_schedule(t, table);
}

}  // namespace mortise
