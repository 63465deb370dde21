// Whether the first update of a step reads what sampling has computed of its rows (model/layers/sampled_forward.h). The
// configuration, the model and its adapter alone decide, so that a resume decides alike. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "model/weights/model_config.h"

namespace mortise {

// Tokens of a step, at most: each prompt once, and what rows decode. A row's last token is not decoded. With
// algorithm.filter_groups: of the groups that a step learns and those of a generation batch.
[[nodiscard]] int64_t sampled_tokens(const RunConfig& config);
// With algorithm.filter_groups the tokens of each group, at most; else 0. For SampledForward.
[[nodiscard]] int64_t sampled_group_tokens(const RunConfig& config);

// Bytes of what is kept of them.
[[nodiscard]] double sampled_bytes(const RunConfig& config, const ModelConfig& model);

// What the configuration does not say.
struct RunFacts {
  int num_ranks = 1;
  bool by_operators = false;  // the model is on a GPU
  double lora_dropout = 0.0;  // the dropout of the adapter that is trained
};

// Why it does not, as the end of a sentence that begins with "because"; nothing: it does.
[[nodiscard]] std::optional<std::string> why_not_reused(const RunConfig& config, const ModelConfig& model,
                                                        const RunFacts& facts);
// The line of `--dry-run` about it.
[[nodiscard]] std::string reuse_line(const std::optional<std::string>& why_not);

}  // namespace mortise
