// Adapters: the same settings under three names.
#include <fmt/core.h>

#include "foundation/base/text.h"
#include "import/frameworks.h"

namespace mortise {

namespace {

// PEFT's init_lora_weights, as text or as true.
void set_init(Translation& t, std::string_view name) {
  const Json value = t.value(name);
  if (value.is_null() || value == true || value == "true" || value == "True") return;
  const std::string text = value.is_string() ? value.get<std::string>() : dump_json(value);
  if (text == "gaussian" || text == "pissa" || text == "olora") {
    t.set("model.init_lora_weights", text, {name});
  } else if (text.starts_with("pissa_niter_")) {
    t.set("model.init_lora_weights", "pissa", {name}, "the exact singular values; PEFT approximates them");
  } else {
    t.problem(name, fmt::format("{} = {} is not supported", name, quote(text)), "use true, gaussian, pissa or olora");
  }
}

}  // namespace

std::vector<std::string_view> LoraNames::all() const {
  std::vector<std::string_view> out;
  for (const std::string_view name : {rank, alpha, dropout, modules, rslora, dora, init, bias, saved, parameters}) {
    if (!name.empty()) out.push_back(name);
  }
  return out;
}

void translate_lora(Translation& t, const LoraNames& names, const Json& modules) {
  t.set("model.lora_rank", t.integer(names.rank), {names.rank});
  t.set("model.lora_alpha", t.number(names.alpha), {names.alpha});
  t.set("model.target_modules", t.is_null(names.modules) ? modules : Json(t.texts(names.modules)), {names.modules});
  if (!names.rslora.empty() && t.flag(names.rslora)) t.set("model.use_rslora", true, {names.rslora});
  if (!names.dora.empty() && t.flag(names.dora)) t.set("model.use_dora", true, {names.dora});
  if (!names.dropout.empty() && !t.is_null(names.dropout))
    t.set("model.lora_dropout", t.number(names.dropout), {names.dropout});
  if (!names.init.empty()) set_init(t, names.init);
  if (!names.bias.empty() && t.text(names.bias) != "none") t.set("model.lora_bias", t.text(names.bias), {names.bias});
  if (!names.saved.empty() && !t.texts(names.saved).empty())
    t.set("model.modules_to_save", t.texts(names.saved), {names.saved});
  if (!names.parameters.empty() && !t.is_null(names.parameters) && !t.texts(names.parameters).empty())
    t.set("model.target_parameters", t.texts(names.parameters), {names.parameters});
}

}  // namespace mortise
