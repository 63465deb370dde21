/* Calls of an advantage estimator in an author's test: one outcome per row. See host.h. */
#ifndef MORTISE_TESTING_ADVANTAGE_H_
#define MORTISE_TESTING_ADVANTAGE_H_

#include "loss.h"

/* Rows of `length` tokens each; the outcome of a row is at its last token; group_index says which rows belong to
 * one prompt. A NaN outcome means that no reward applied to the row. advantages and returns: [num_rows * length]. */
static inline int32_t mortise_test_advantages(mortise_test_plugin* plugin, int64_t num_rows, int64_t length,
                                              const int64_t* group_index, const float* outcomes, float* advantages,
                                              float* returns) {
  const int64_t n = num_rows * length;
  int64_t* index = (int64_t*)calloc((size_t)(2 * num_rows + 2), sizeof(int64_t)); /* row_offsets, row_id */
  float* rewards = (float*)calloc((size_t)n + 1, sizeof(float));
  uint8_t* mask = (uint8_t*)calloc((size_t)(n + num_rows + 1), 1); /* response_mask, row_valid */
  if (index == NULL || rewards == NULL || mask == NULL) mortise_test_die("no memory", "");
  for (int64_t i = 0; i < num_rows; ++i) {
    index[i + 1] = (i + 1) * length;
    index[num_rows + 1 + i] = i;
    mask[n + i] = !isnan(outcomes[i]);
    if (length > 0 && !isnan(outcomes[i])) rewards[(i + 1) * length - 1] = outcomes[i];
  }
  memset(mask, 1, (size_t)n);
  const mortise_layout layout = mortise_test_layout(num_rows, index, index + num_rows + 1, group_index);
  mortise_test_view v[5];
  mortise_advantage_estimator_in in;
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.layout = &layout;
  in.token_level_rewards = mortise_test_f32(&v[0], rewards, n);
  in.response_mask = mortise_test_u8(&v[1], mask, n);
  in.row_valid = mortise_test_u8(&v[2], mask + n, num_rows);
  in.step = 1;
  for (int64_t t = 0; t < n; ++t) advantages[t] = returns[t] = 0.0F;
  mortise_advantage_estimator_out out;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  out.advantages = mortise_test_f32(&v[3], advantages, n);
  out.returns = mortise_test_f32(&v[4], returns, n);
  const mortise_advantage_estimator_vtable* vtable = (const mortise_advantage_estimator_vtable*)plugin->vtable;
  const int32_t status = vtable->compute(mortise_test_self(plugin), plugin->call, &in, &out);
  mortise_test_end_call(plugin);
  free(index);
  free(rewards);
  free(mask);
  return status;
}

#endif /* MORTISE_TESTING_ADVANTAGE_H_ */
