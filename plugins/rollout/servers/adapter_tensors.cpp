// See adapter_tensors.h.
#include "adapter_tensors.h"

#include <mortise/cpp/plugin.hpp>

#include "json_answer.h"

namespace mortise {

void AdapterTensors::add(std::string_view name, const std::int64_t* shape) {
  const std::size_t end = name.find(".lora_A.weight");
  if (end == std::string_view::npos) return;
  const std::size_t dot = name.rfind('.', end - 1);
  modules_.emplace(name.substr(dot + 1, end - dot - 1));
  is_uneven_ = is_uneven_ || (rank_ != 0 && rank_ != shape[0]);
  rank_ = shape[0];
}

std::string AdapterTensors::config() const {
  if (is_uneven_) {
    fail(
        MORTISE_INVALID_ARGUMENT,
        "rollout servers load only adapters whose matrices have the same rank, and this one has several ranks. Remove rank_pattern, or set "
        "rollout.send_adapter to false");
  }
  const AnswerJson config = {{"peft_type", "LORA"},        {"task_type", "CAUSAL_LM"},     {"r", rank_},
                             {"lora_alpha", rank_},        {"lora_dropout", 0.0},          {"bias", "none"},
                             {"inference_mode", true},     {"fan_in_fan_out", false},      {"target_modules", modules_},
                             {"modules_to_save", nullptr}, {"base_model_name_or_path", ""}};
  return json_line(config) + "\n";
}

}  // namespace mortise
