// The optimizers of other frameworks: transformers' names (TRL, ms-swift), ms-swift's own, and verl's classes.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "foundation/base/text.h"
#include "import/frameworks.h"
#include "import/reasons.h"

namespace mortise {

namespace {

constexpr std::string_view kTheyAre = "there are adamw, adamw_8bit, adafactor, lion, muon and sgd";

struct NamedOptimizer {
  std::string_view theirs, ours;
};

// Paged optimizers have the same numbers.
constexpr NamedOptimizer kHfOptimizers[] = {
    {"adamw_torch", "adamw"},       {"adamw_torch_fused", "adamw"},
    {"adamw_hf", "adamw"},          {"adamw", "adamw"},
    {"adamw_torch_xla", "adamw"},   {"adamw_torch_npu_fused", "adamw"},
    {"adamw_apex_fused", "adamw"},  {"paged_adamw", "adamw"},
    {"paged_adamw_32bit", "adamw"}, {"adamw_bnb_8bit", "adamw_8bit"},
    {"adamw_8bit", "adamw_8bit"},   {"paged_adamw_8bit", "adamw_8bit"},
    {"adafactor", "adafactor"},     {"lion_32bit", "lion"},
    {"paged_lion_32bit", "lion"},   {"sgd", "sgd"},
};

// A setting of an optimizer by its name there. True if it is one of `known`.
bool set_argument(Translation& t, const std::string& table, std::string_view from, const std::string& name,
                  const Json& value, std::initializer_list<std::string_view> known) {
  if (std::ranges::find(known, name) == known.end()) return false;
  t.set(table + name, value, {from});
  return true;
}

// "a=1,b=true", as transformers reads it. Numbers and true or false.
Json read_argument(std::string_view text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size())
    return std::floor(number) == number && std::abs(number) < 1e6 ? Json(static_cast<int64_t>(number)) : Json(number);
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower == "true" || lower == "yes";
}

void set_hf_arguments(Translation& t, std::initializer_list<std::string_view> known) {
  const std::string_view from = "optim_args";
  std::string text = t.text(from);
  std::erase(text, ' ');
  for (const std::string_view pair : split(text, ',')) {
    const size_t equals = pair.find('=');
    const std::string name(pair.substr(0, equals));
    if (equals == std::string_view::npos ||
        !set_argument(t, "actor.optim.", from, name, read_argument(pair.substr(equals + 1)), known))
      t.problem(from, fmt::format("optim_args: {} is not supported", quote(pair)), "");
  }
}

// verl gives the weight decay to every parameter.
void set_decay_of_all(Translation& t, const std::string& table, std::string_view name, std::string_view whose) {
  if (t.number(name) > 0)
    t.set(table + "decay_all_parameters", true, {name}, fmt::format("{} also decays biases and norms", whose));
}

// Settings of Megatron's optimizer that say where its state is and when it is computed.
constexpr std::string_view kMegatronMemory[] = {"optimizer_offload_fraction",
                                                "overlap_cpu_optimizer_d2h_h2d",
                                                "use_precision_aware_optimizer",
                                                "optimizer_cpu_offload",
                                                "use_distributed_optimizer",
                                                "overlap_param_gather",
                                                "use_torch_optimizer_for_cpu_offload",
                                                "pin_cpu_grads",
                                                "pin_cpu_params"};

// verl's override_optimizer_config.
void set_verl_arguments(Translation& t, const std::string& table, const std::string& optimizer) {
  const std::string from = table + "override_optimizer_config";
  if (t.is_null(from)) return;
  const Json arguments = t.table(from);
  for (const auto& [name, value] : arguments.items()) {
    if (std::ranges::find(kMegatronMemory, name) != std::end(kMegatronMemory)) {
      t.note(from, reasons::kMemory);
      continue;
    }
    const bool is_known =
        optimizer == "sgd"          ? set_argument(t, table, from, name, value, {"momentum", "dampening", "nesterov"})
        : optimizer == "lion"       ? set_argument(t, table, from, name, value, {"betas"})
        : optimizer == "adamw_8bit" ? set_argument(t, table, from, name, value, {"betas", "eps", "min_8bit_size"})
                                    : set_argument(t, table, from, name, value, {"betas", "eps"});
    if (!is_known)
      t.problem(from, fmt::format("{}: {} is not supported", from, quote(name)), "remove it, if it keeps its default");
  }
}

}  // namespace

void translate_hf_optimizer(Translation& t) {
  const std::string name = t.text("optim");
  const auto* const found = std::ranges::find(kHfOptimizers, name, &NamedOptimizer::theirs);
  if (found == std::end(kHfOptimizers)) {
    t.problem("optim", fmt::format("optim {} is not supported", quote(name)), std::string(kTheyAre));
    return;
  }
  if (found->ours != "adamw") t.set("actor.optim.optimizer", found->ours, {"optim"});
  if (t.is_null("optim_args") || !t.is_given("optim_args")) return;
  if (found->ours == "sgd")
    set_hf_arguments(t, {"momentum", "dampening", "nesterov", "weight_decay"});
  else
    t.note("optim_args", "transformers gives them to other optimizers");
}

// Its Muon is that of Moonlight (arXiv:2502.16982).
void translate_swift_optimizer(Translation& t) {
  const bool is_lora_plus = t.text("optimizer") == "lorap" && !t.is_null("lorap_lr_ratio");
  if (t.is_null("optimizer") || is_lora_plus) {
    translate_hf_optimizer(t);
    return t.note_given({"optimizer"}, "lorap_lr_ratio decides");
  }
  if (t.text("optimizer") != "muon") {
    t.problem("optimizer", fmt::format("optimizer {} is not supported", quote(t.text("optimizer"))),
              std::string(kTheyAre));
    return;
  }
  t.set("actor.optim.optimizer", "muon", {"optimizer"});
  t.set("actor.optim.adjust_lr_fn", "match_rms_adamw", {"optimizer"});
  set_decay_of_all(t, "actor.optim.", "weight_decay", "ms-swift's muon");
  t.note_given({"optim"}, "optimizer is given");
  if (!t.is_null("optim_args") && t.is_given("optim_args")) set_hf_arguments(t, {"momentum", "nesterov", "ns_steps"});
}

// `part`: "actor" or "critic".
void translate_verl_optimizer(Translation& t, const std::string& part) {
  const std::string table = part + ".optim.", name_key = table + "optimizer", place_key = table + "optimizer_impl";
  const std::string name = t.text(name_key), place = t.text(place_key);
  std::string ours;
  if (place == "torch.optim") {
    ours = name == "AdamW" || name == "adam" ? "adamw" : name == "SGD" ? "sgd" : "";
  } else if (place == "bitsandbytes.optim") {
    ours = name == "AdamW8bit" || name == "PagedAdamW8bit" ? "adamw_8bit"
           : name == "AdamW" || name == "AdamW32bit"       ? "adamw"
           : name == "Lion" || name == "Lion32bit"         ? "lion"
                                                           : "";
  } else {
    t.problem(place_key, fmt::format("{} = {} is not supported", place_key, quote(place)),
              "use torch.optim or bitsandbytes.optim");
    return;
  }
  if (ours.empty()) {
    t.problem(name_key, fmt::format("{} = {} of {} is not supported", name_key, quote(name), place),
              "use AdamW or SGD of torch.optim, or AdamW8bit, AdamW or Lion of bitsandbytes.optim");
    return;
  }
  if (ours != "adamw") t.set(table + "optimizer", ours, {name_key, place_key});
  if (ours == "adamw_8bit") t.set(table + "quantize_embeddings", true, {name_key}, "bitsandbytes' default");
  if (ours == "lion") t.set(table + "betas", Json::array({0.9, 0.99}), {name_key}, "verl leaves the default of Lion");
  if (!uses_megatron(t, part)) set_decay_of_all(t, table, table + "weight_decay", "verl");
  set_verl_arguments(t, table, ours);
}

}  // namespace mortise
