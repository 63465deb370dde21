// Estimators of KL and of advantages: right ones in plain ABI, and three that forget something about their groups.
#include <cmath>

#include "plugins.h"

namespace broken {
namespace {

using In = mortise_advantage_estimator_in;
using Out = mortise_advantage_estimator_out;

struct Group {
  double sum = 0, squares = 0, count = 0;
};

double outcome(const Instance& instance, const In* in, int64_t row) {
  const float* rewards = data<float>(instance, in->token_level_rewards);
  double sum = 0;
  for (int64_t t = in->layout->row_offsets[row]; t < in->layout->row_offsets[row + 1]; ++t) sum += double(rewards[t]);
  return sum;
}

bool counts(const Instance& instance, const In* in, int64_t row) {
  return in->row_valid == nullptr || data<uint8_t>(instance, in->row_valid)[row] != 0 ||
         instance.is("advantage_invalid_rows");
}

double advantage(const Instance& instance, const In* in, int64_t row) {
  Group group;
  for (int64_t other = 0; other < in->layout->num_rows; ++other) {
    if (in->layout->group_index[other] != in->layout->group_index[row] || !counts(instance, in, other)) continue;
    const double reward = outcome(instance, in, other);
    group.sum += reward;
    group.squares += reward * reward;
    group.count += 1;
  }
  const double mean = group.count > 0 ? group.sum / group.count : 0;
  const double centred = outcome(instance, in, row) - mean;
  if (instance.is("advantage_single_row_groups")) return centred / (group.count - 1);
  const double variance = group.squares / group.count - mean * mean;
  if (instance.is("advantage_equal_rewards")) return centred / std::sqrt(variance);
  return centred;
}

int32_t compute(void* self, mortise_call*, const In* in, Out* out) noexcept {
  const Instance& instance = of(self);
  const uint8_t* mask = data<uint8_t>(instance, in->response_mask);
  for (int64_t row = 0; row < in->layout->num_rows; ++row) {
    if (!counts(instance, in, row)) continue;
    const auto value = float(instance.scale * advantage(instance, in, row));
    for (int64_t t = in->layout->row_offsets[row]; t < in->layout->row_offsets[row + 1]; ++t) {
      if (mask[t] == 0) continue;
      data<float>(instance, out->advantages)[t] = value;
      data<float>(instance, out->returns)[t] = value;
    }
  }
  return MORTISE_OK;
}

int32_t compute_kl(void* self, mortise_call*, const mortise_kl_estimator_in* in,
                   mortise_kl_estimator_out* out) noexcept {
  const Instance& instance = of(self);
  const uint8_t* mask = data<uint8_t>(instance, in->response_mask);
  for (int64_t t = 0; t < in->layout->num_tokens; ++t) {
    if (mask[t] == 0) continue;
    const float distance = data<float>(instance, in->log_prob)[t] - data<float>(instance, in->ref_log_prob)[t];
    data<float>(instance, out->kl)[t] = 0.5F * distance * distance;
    if (out->grad_log_prob != nullptr)
      data<float>(instance, out->grad_log_prob)[t] = data<float>(instance, in->weight)[t] * distance;
  }
  return MORTISE_OK;
}

}  // namespace
}  // namespace broken

#define ADVANTAGE(name) BROKEN_PLUGIN(advantage_estimator, ADVANTAGE_ESTIMATOR, name, 0, broken::compute)
ADVANTAGE(fine_advantage)
ADVANTAGE(advantage_equal_rewards)
ADVANTAGE(advantage_single_row_groups)
ADVANTAGE(advantage_invalid_rows)
BROKEN_PLUGIN(kl_estimator, KL_ESTIMATOR, fine_kl, 0, broken::compute_kl)
