// verl's rewards: its scorers by data source, a function, the dapo manager's length, a reward model.
#include "foundation/base/text.h"

#include <fmt/core.h>
#include "import/frameworks.h"

namespace mortise {
namespace {

constexpr std::string_view kBuffer[] = {"reward_model.overlong_buffer.enable", "reward_model.overlong_buffer.len",
                                        "reward_model.overlong_buffer.penalty_factor",
                                        "reward_model.overlong_buffer.log"};

// The same reward as the recipe of DAPO asks for it: its limit is the longest completion.
void set_overlong_buffer(Translation& t) {
  const auto& [enable, length, factor, log] = kBuffer;
  if (!t.is_given(enable) && !t.is_given(length)) return t.note_given({factor, log}, "there is no overlong_buffer.len");
  if (!t.flag(enable)) return t.note_given({length, factor, log}, "reward_model.overlong_buffer.enable is false");
  if (t.text("reward_model.reward_manager") != "dapo")
    return t.problem(enable, "only the dapo reward manager reads reward_model.overlong_buffer",
                     "set reward_model.reward_manager to dapo, or enable to false");
  if (!t.is_null("reward_model.reward_kwargs"))
    return t.problem(enable,
                     "reward_model.overlong_buffer and reward_model.reward_kwargs both set the overlong penalty",
                     "keep one of them");
  if (t.integer(length) < 1) return t.problem(length, "reward_model.overlong_buffer.len must be at least 1", "");
  const std::string reward = t.add_reward("length", {enable});
  t.set(reward + ".name", "overlong", {enable});
  t.set(reward + ".limit", t.integer("data.max_response_length"), {"data.max_response_length"});
  t.set(reward + ".buffer", t.integer(length), {length});
  t.set(reward + ".penalty", -t.number(factor), {factor});
  t.note_given({log}, "the reward has a column of its own");
}

// The reward of the length that verl's dapo manager adds.
void set_overlong(Translation& t, std::string_view manager, std::string_view kwargs) {
  if (t.text(manager) != "dapo") {
    if (!t.text(manager).empty() && t.text(manager) != "naive")
      t.warn(manager,
             "the rewards run in worker processes of Mortise, in place of the manager " + quote(t.text(manager)));
    return t.note_given({kwargs}, "only with the dapo manager");
  }
  const Json table = t.table(kwargs);
  const Json buffer = table.contains("overlong_buffer_cfg") ? table["overlong_buffer_cfg"] : Json::object();
  if (!buffer.is_object() || !buffer.contains("enable") || buffer["enable"] != true) return;
  const Json length = buffer.contains("len") ? buffer["len"] : Json();
  const Json factor = buffer.contains("penalty_factor") ? buffer["penalty_factor"] : Json(1.0);
  const Json limit = table.contains("max_resp_len") ? table["max_resp_len"] : Json();
  if (!length.is_number_integer() || !factor.is_number() || !(limit.is_null() || limit.is_number_integer())) {
    return t.problem(kwargs, "overlong_buffer_cfg needs whole numbers len and max_resp_len and a penalty_factor", "");
  }
  const std::string reward = t.add_reward("length", {kwargs});
  t.set(reward + ".name", "overlong", {kwargs});
  if (!limit.is_null()) t.set(reward + ".limit", limit, {kwargs});
  if (!limit.is_null() && limit.get<int64_t>() < t.integer("data.max_response_length")) t.warn(kwargs, kNoFloor);
  t.set(reward + ".buffer", length, {kwargs});
  t.set(reward + ".penalty", -factor.get<double>(), {kwargs});
}

// A reward model replaces the scorers, in both forms of verl; false if none is requested. If there is also a function,
// versions differ: older ones do not call it, newer ones let the function call the model.
bool set_reward_model(Translation& t) {
  const bool older = t.flag("reward_model.enable"), newer = t.flag("reward.reward_model.enable");
  const std::string_view enable = older ? "reward_model.enable" : "reward.reward_model.enable";
  const std::string_view path = older ? "reward_model.model.path" : "reward.reward_model.model_path";
  const std::string_view tokenizer = "reward_model.model.input_tokenizer", length = "reward_model.max_length";
  if (!older && !newer) {
    t.note_given({"reward_model.model.path", tokenizer, length, "reward.reward_model.model_path"},
                 "there is no reward model");
    return false;
  }
  for (const std::string_view function : {"reward.custom_reward_function.path", "custom_reward_function.path"}) {
    if (t.is_null(function)) continue;
    t.problem(enable, fmt::format("a reward model with {} is not supported: which of the two counts differs", function),
              "remove one, and write a [[reward]] table for it");
    return true;
  }
  if (t.is_null(path)) {
    t.problem(path, fmt::format("{} is not given, and {} is true", quote(path), enable), "name the model's folder");
    return true;
  }
  const std::string reward = add_reward_model(t, t.text(path), path);
  if (older && t.is_null(tokenizer)) {
    t.set(reward + ".plain_text", true, {tokenizer}, "the policy's own text is scored");
    t.note_given({length}, "only where input_tokenizer is given");
  } else if (older && !t.is_null(length)) {
    t.set(reward + ".max_length", t.integer(length), {length});
    t.set(reward + ".truncation", "right", {length}, "as verl cuts");
  }
  t.note_given(
      {"reward_model.reward_manager", "reward_model.reward_kwargs", "reward_manager.name", "reward.reward_manager.name",
       "reward.reward_kwargs", "data.reward_fn_key", kBuffer[0], kBuffer[1], kBuffer[2], kBuffer[3]},
      "the reward model's score is the reward");
  return true;
}

}  // namespace

void translate_verl_rewards(Translation& t) {
  if (set_reward_model(t)) return;
  bool has_function = false;
  for (const std::string group : {"reward.custom_reward_function.", "custom_reward_function."}) {
    const std::string path = group + "path", name = group + "name", kwargs = group + "reward_kwargs";
    if (t.is_null(path) || has_function) continue;
    has_function = true;
    const std::string reward = t.add_reward("python", {path});
    t.set(reward + ".path", t.text(path), {path});
    const std::string function = t.text(name);
    t.set(reward + ".function", function.empty() ? "compute_score" : function, {name});
    t.set(reward + ".style", "verl", {path});
    const Json arguments = t.table(kwargs);
    if (!arguments.empty()) t.set(reward + ".kwargs", dump_json(arguments), {kwargs});
  }
  set_overlong(t, "reward_model.reward_manager", "reward_model.reward_kwargs");
  set_overlong_buffer(t);
  if (t.is_given("reward_manager.name")) {
    set_overlong(t, "reward_manager.name", "reward_model.reward_kwargs");
  } else {
    set_overlong(t, "reward.reward_manager.name", "reward.reward_kwargs");
  }
  if (has_function) return t.note_given({"data.reward_fn_key"}, "a reward names the columns that it reads");
  const std::string reward = t.add_reward("default_compute_score", {"reward.custom_reward_function.path"});
  if (t.is_given("data.reward_fn_key"))
    t.set(reward + ".data_source", t.text("data.reward_fn_key"), {"data.reward_fn_key"});
}

}  // namespace mortise
