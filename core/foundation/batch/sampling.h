// How a completion is sampled: the one list of options with their neutral values, from the config to the sampler.
//
// Order, as in transformers: repetition, frequency and presence penalties, bars (bad words, end ids, what a pattern does
// not allow), temperature, top_k, top_p, min_p, typical_p. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mortise {

// Beyond these float32 holds no distribution: logits over the temperature, or behind penalties, overflow or are all the
// same.
inline constexpr double kLeastTemperature = 1e-6;  // except 0, greedy
inline constexpr double kMostTemperature = 1e6;
inline constexpr double kLeastPenalty = 1e-6;  // least repetition penalty, a factor
inline constexpr double kMostPenalty = 1e6;    // largest penalty of all three, either way

struct Sampling {
  int64_t max_new_tokens = 16;
  int64_t min_new_tokens = 0;
  double temperature = 1.0;         // 0: greedy
  int64_t top_k = 0;                // <= 0: off
  double top_p = 1.0;               // 1: off
  double min_p = 0.0;               // 0: off
  double typical_p = 1.0;           // 1: off
  double repetition_penalty = 1.0;  // for tokens in prompt or completion: logit / p where positive, * p where negative
  double presence_penalty = 0.0;    // off the logit of tokens in the completion
  double frequency_penalty = 0.0;   // the same, times how often they came
  bool ignore_eos = false;
  std::vector<int64_t> stop_ids{};                // a completion ends with the first of these
  std::vector<std::string> stop_strings{};        // ... or with the token that completes one of these in its text
  std::vector<std::vector<int64_t>> bad_words{};  // runs of ids that never come
  std::string regex{};                            // the completion's text matches it (text/guide); empty: any text

  [[nodiscard]] bool greedy() const { return temperature == 0.0; }
  [[nodiscard]] bool filters() const {
    return !greedy() && (top_k > 0 || top_p < 1.0 || min_p > 0.0 || typical_p < 1.0);
  }
  [[nodiscard]] bool penalises() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
  [[nodiscard]] bool bars() const { return ignore_eos || min_new_tokens > 0 || !bad_words.empty(); }
  [[nodiscard]] bool is_guided() const { return !regex.empty(); }
  // Is a token drawn from anything but the model's distribution at temperature?
  [[nodiscard]] bool changes_distribution() const {
    return !greedy() && (filters() || penalises() || bars() || is_guided());
  }
  // What logits are multiplied with before exp; 1 when greedy.
  [[nodiscard]] float inverse_temperature() const { return greedy() ? 1.0F : static_cast<float>(1.0 / temperature); }
  // The end ids that may not come as token number `position` of the completion.
  [[nodiscard]] std::span<const int64_t> barred_ends(int64_t position) const {
    if (ignore_eos || position < min_new_tokens) return stop_ids;
    return {};
  }
};

}  // namespace mortise
