// See sampling_rules.h.
#include "config/sampling_rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "config/batch_plan.h"
#include "config/val_sets.h"
#include "foundation/base/choice.h"
#include "foundation/base/text.h"
#include "foundation/batch/sampling.h"

namespace mortise {
namespace {

class SamplingRules : ConfigRules {
 public:
  SamplingRules(const LoadedConfig& loaded, ConfigUse use, ConfigFindings& found)
      : ConfigRules(loaded, found), use_(use) {}

  void check() {
    const RolloutConfig& rollout = config_.rollout;
    if (rollout.min_new_tokens > response_length(config_)) {
      error("rollout.min_new_tokens",
            fmt::format("'rollout.min_new_tokens' ({}) is more than the longest completion ({})",
                        rollout.min_new_tokens, response_length(config_)),
            "lower it");
    }
    check_temperature("rollout.temperature", rollout.temperature);
    const bool decodes_other = rollout.dtype == DecodeDtype::kFloat32 && config_.model.dtype == ModelDtype::kBfloat16;
    if (rollout.dtype != DecodeDtype::kAuto && (config_.model.dtype == ModelDtype::kFloat64 || decodes_other)) {
      error(
          "rollout.dtype",
          fmt::format("'rollout.dtype' is {}, but model.dtype is {}. Only a float32 model can sample in another format "
                      "(bfloat16)",
                      choice_name(rollout.dtype), choice_name(config_.model.dtype)),
          "remove one of the two");
    }
    check_kernels();
    if (rollout.ignore_eos && !rollout.stop.empty()) {
      error("rollout.stop", "'rollout.stop' ends completions, but 'rollout.ignore_eos' keeps them from ending",
            "remove one of them");
    }
    if (rollout.structured_outputs_regex && rollout.ignore_eos) {
      error("rollout.structured_outputs_regex",
            "'rollout.structured_outputs_regex' ends completions, but 'rollout.ignore_eos' keeps them from ending",
            "remove one of them");
    }
    if (rollout.structured_outputs_regex == "")
      error("rollout.structured_outputs_regex", "'rollout.structured_outputs_regex' is empty", "remove it");
    for (const std::string_view key : {"rollout.stop", "rollout.bad_words"}) {
      const auto& texts = key == "rollout.stop" ? rollout.stop : rollout.bad_words;
      if (std::find(texts.begin(), texts.end(), "") != texts.end())
        error(key, fmt::format("'{}' contains an empty text", key), "remove it");
    }
    if (samples_alone(use_)) {
      if (rollout.n > 1 && rollout.temperature == 0) {
        warn("rollout.n",
             "greedy completions of one prompt are all the same, but rollout.n asks for " + std::to_string(rollout.n),
             "set rollout.temperature above 0");
      }
      return;
    }
    check_validation();
  }

  void check_validation() {
    auto sets = val_sets(loaded_);
    if (!sets.ok()) return found_.problems.push_back(std::move(sets).error());
    for (const ValSet& set : *sets)
      check_sampling_of_set(set.name.empty() ? "rollout.val_kwargs" : "data.val_sets." + set.name, set.kwargs);
  }

 private:
  // The plain path computes in the model's own numbers, the fast one in float32 alone.
  void check_kernels() {
    const RolloutConfig& rollout = config_.rollout;
    if (rollout.kernels == DecodeKernels::kPlain && rollout.dtype == DecodeDtype::kBfloat16) {
      error("rollout.kernels", "'rollout.kernels' is plain, but the plain path has no bfloat16 matrices",
            "remove rollout.dtype");
    }
    if (rollout.kernels != DecodeKernels::kAuto && rollout.kernels != DecodeKernels::kPlain &&
        config_.model.dtype == ModelDtype::kFloat64) {
      error("rollout.kernels",
            fmt::format("'rollout.kernels' is {}, and model.dtype is {}: the fast path computes in float32",
                        choice_name(rollout.kernels), choice_name(config_.model.dtype)),
            "remove rollout.kernels, or set it to plain");
    }
  }

  // Below this, the divided logits overflow float32.
  void check_temperature(std::string_view key, double temperature) {
    if (temperature == 0 || temperature >= kLeastTemperature) return;
    error(key, fmt::format("'{}' is {}, and logits divided by it overflow", key, format_f64(temperature)),
          "use 0 for greedy, or at least 1e-6");
  }

  void check_sampling_of_set(const std::string& table, const ValKwargs& validation) {
    check_temperature(table + ".temperature", validation.temperature);
    const bool samples = validation.do_sample && validation.temperature > 0;
    if (validation.do_sample && !samples) {
      warn(table + ".do_sample",
           fmt::format("{0}.do_sample is true, but {0}.temperature is 0: validation is greedy", table),
           fmt::format("set {}.temperature=1.0, or remove do_sample", table));
    } else if (validation.n > 1 && !samples) {
      warn(table + ".n",
           fmt::format("validation asks for {} completions of each prompt, but greedy ones are all the same",
                       validation.n),
           fmt::format("set {0}.do_sample=true and {0}.temperature", table));
    }
    for (const int64_t k : validation.pass_k) {
      if (k <= validation.n) continue;
      error(table + ".pass_k",
            fmt::format("pass@{} needs {} completions of each prompt, but {}.n is {}", k, k, table, validation.n),
            fmt::format("set {}.n={} or more", table, k));
    }
  }

  ConfigUse use_;
};

}  // namespace

void check_sampling_rules(const LoadedConfig& loaded, ConfigUse use, ConfigFindings& found) {
  SamplingRules(loaded, use, found).check();
}

void check_validation_sampling(const LoadedConfig& loaded, ConfigFindings& found) {
  SamplingRules(loaded, ConfigUse::kSft, found).check_validation();
}

}  // namespace mortise
