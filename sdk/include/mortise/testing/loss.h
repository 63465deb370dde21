/* Calls of a policy loss or a KL estimator in an author's test, and the check of their gradient. See host.h. */
#ifndef MORTISE_TESTING_LOSS_H_
#define MORTISE_TESTING_LOSS_H_

#include "host.h"

/* Flat tensors of [N] tokens, N = row_offsets[num_rows]; row i is tokens row_offsets[i] .. row_offsets[i+1]. Rows
 * belong to one group. weight null: 1 for each token. A KL estimator needs log_prob, ref_log_prob, and perhaps
 * old_log_prob; a policy loss needs log_prob, old_log_prob, advantages, and the inputs that it requires. */
typedef struct mortise_test_tokens {
  int64_t num_rows;
  const int64_t* row_offsets;
  const float* log_prob;
  const float* old_log_prob;
  const float* advantages;
  const uint8_t* response_mask;
  const float* weight;
  const float* ref_log_prob;
  const float* entropy;
} mortise_test_tokens;

static inline int64_t mortise_test_num_tokens(const mortise_test_tokens* in) { return in->row_offsets[in->num_rows]; }

static inline mortise_layout mortise_test_layout(int64_t num_rows, const int64_t* row_offsets, const int64_t* row_id,
                                                 const int64_t* group_index) {
  mortise_layout layout;
  memset(&layout, 0, sizeof layout);
  layout.struct_size = sizeof layout;
  layout.num_rows = num_rows;
  layout.num_tokens = row_offsets[num_rows];
  layout.row_offsets = row_offsets;
  layout.row_id = row_id;
  layout.group_index = group_index;
  return layout;
}

static inline int32_t mortise_test_call_policy_loss(mortise_test_plugin* plugin, const mortise_test_tokens* tokens,
                                                    const mortise_layout* layout, const float* weight, float* loss,
                                                    float* grad) {
  const int64_t n = layout->num_tokens;
  mortise_test_view v[9];
  mortise_policy_loss_in in;
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.layout = layout;
  in.log_prob = mortise_test_f32(&v[0], tokens->log_prob, n);
  in.old_log_prob = mortise_test_f32(&v[1], tokens->old_log_prob, n);
  in.advantages = mortise_test_f32(&v[2], tokens->advantages, n);
  in.response_mask = mortise_test_u8(&v[3], tokens->response_mask, n);
  in.weight = mortise_test_f32(&v[4], weight, n);
  in.ref_log_prob = mortise_test_f32(&v[5], tokens->ref_log_prob, n);
  in.entropy = mortise_test_f32(&v[6], tokens->entropy, n);
  in.step = in.update_index = 1;
  mortise_policy_loss_out out;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  out.loss = mortise_test_f32(&v[7], loss, n);
  out.grad_log_prob = mortise_test_f32(&v[8], grad, n);
  return ((const mortise_policy_loss_vtable*)plugin->vtable)
      ->compute(mortise_test_self(plugin), plugin->call, &in, &out);
}

static inline int32_t mortise_test_call_kl(mortise_test_plugin* plugin, const mortise_test_tokens* tokens,
                                           const mortise_layout* layout, const float* weight, float* kl, float* grad) {
  const int64_t n = layout->num_tokens;
  mortise_test_view v[7];
  mortise_kl_estimator_in in;
  memset(&in, 0, sizeof in);
  in.struct_size = sizeof in;
  in.layout = layout;
  in.log_prob = mortise_test_f32(&v[0], tokens->log_prob, n);
  in.ref_log_prob = mortise_test_f32(&v[1], tokens->ref_log_prob, n);
  in.response_mask = mortise_test_u8(&v[2], tokens->response_mask, n);
  in.weight = mortise_test_f32(&v[3], weight, n);
  in.old_log_prob = mortise_test_f32(&v[4], tokens->old_log_prob, n);
  mortise_kl_estimator_out out;
  memset(&out, 0, sizeof out);
  out.struct_size = sizeof out;
  out.kl = mortise_test_f32(&v[5], kl, n);
  out.grad_log_prob = mortise_test_f32(&v[6], grad, n);
  return ((const mortise_kl_estimator_vtable*)plugin->vtable)
      ->compute(mortise_test_self(plugin), plugin->call, &in, &out);
}

/* One call, by the plugin's kind. loss[N] and grad[N] are zeroed first; grad may be null: value only. As in a run,
 * outputs of masked tokens are set to 0 afterwards. */
static inline int32_t mortise_test_loss(mortise_test_plugin* plugin, const mortise_test_tokens* tokens, float* loss,
                                        float* grad) {
  const int64_t n = mortise_test_num_tokens(tokens), rows = tokens->num_rows;
  int64_t* index = (int64_t*)calloc((size_t)(2 * rows + 1), sizeof(int64_t));
  float* ones = (float*)malloc((size_t)(n + 1) * sizeof(float));
  if (index == NULL || ones == NULL) mortise_test_die("no memory", "");
  for (int64_t i = 0; i < rows; ++i) index[i] = i;
  for (int64_t t = 0; t < n; ++t) ones[t] = 1.0F;
  const mortise_layout layout = mortise_test_layout(rows, tokens->row_offsets, index, index + rows);
  for (int64_t t = 0; t < n; ++t) loss[t] = 0.0F;
  for (int64_t t = 0; grad != NULL && t < n; ++t) grad[t] = 0.0F;
  const float* weight = tokens->weight != NULL ? tokens->weight : ones;
  const int is_kl = strcmp(plugin->descriptor->kind, MORTISE_KIND_KL_ESTIMATOR) == 0;
  const int32_t status = is_kl ? mortise_test_call_kl(plugin, tokens, &layout, weight, loss, grad)
                               : mortise_test_call_policy_loss(plugin, tokens, &layout, weight, loss, grad);
  mortise_test_end_call(plugin);
  for (int64_t t = 0; t < n; ++t) {
    if (tokens->response_mask[t] != 0) continue;
    loss[t] = 0.0F;
    if (grad != NULL) grad[t] = 0.0F;
  }
  free(index);
  free(ones);
  return status;
}

/* sum over tokens of weight * loss */
static inline double mortise_test_total(const mortise_test_tokens* tokens, const float* loss) {
  double total = 0;
  for (int64_t t = 0; t < mortise_test_num_tokens(tokens); ++t) {
    total += (tokens->weight != NULL ? (double)tokens->weight[t] : 1.0) * (double)loss[t];
  }
  return total;
}

/* The largest |gradient - central difference| over the tokens, relative to 1 + |difference|; infinite if a call
 * fails. Keep the inputs away from kinks of the loss by more than 0.004; a right gradient is then below about 0.01
 * (losses are floats). */
static inline double mortise_test_gradient_error(mortise_test_plugin* plugin, const mortise_test_tokens* tokens) {
  const float step = 0.00390625F; /* 2^-8: exact in float */
  const int64_t n = mortise_test_num_tokens(tokens);
  float* buffer = (float*)calloc((size_t)(3 * n + 1), sizeof(float));
  if (buffer == NULL) mortise_test_die("no memory", "");
  float *log_prob = buffer, *loss = buffer + n, *grad = buffer + 2 * n;
  mortise_test_tokens moved = *tokens;
  double worst = mortise_test_loss(plugin, tokens, loss, grad) == MORTISE_OK ? 0.0 : (double)INFINITY;
  moved.log_prob = log_prob;
  for (int64_t t = 0; t < n; ++t) {
    double total[2];
    for (int side = 0; side < 2; ++side) {
      memcpy(log_prob, tokens->log_prob, (size_t)n * sizeof(float));
      log_prob[t] += side == 0 ? -step : step;
      if (mortise_test_loss(plugin, &moved, loss, NULL) != MORTISE_OK) worst = (double)INFINITY;
      total[side] = mortise_test_total(tokens, loss);
    }
    const double slope = (total[1] - total[0]) / (2.0 * (double)step);
    const double error = fabs((double)grad[t] - slope) / (1.0 + fabs(slope));
    if (!(error <= worst)) worst = error;
  }
  free(buffer);
  return worst;
}

#endif /* MORTISE_TESTING_LOSS_H_ */
