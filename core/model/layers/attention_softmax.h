// The softmax of a block of attention scores, in place, and its gradient: what attention.cpp does between its products.
// float32 without a cap goes to the kernels of attention_kernels.h. Cost: one exp per score forward and backward (two
// backward where scores are capped). Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "model/layers/attention_kernels.h"

namespace mortise {

// Scores [rows, width] become probabilities, 0 where a row does not look; lse[r * lse_stride] gets log sum exp.
void attention_softmax_(float* scores, const ScoreBlock& block, float* lse, int64_t lse_stride);
void attention_softmax_(double* scores, const ScoreBlock& block, double* lse, int64_t lse_stride);

// Scores become probabilities again, and dp [rows, width] (gradients of the probabilities) those of the scores.
// dot[r * lse_stride] gets the sum of p dp of a row; null: it is not wanted.
void attention_softmax_grad_(float* scores, float* dp, const ScoreBlock& block, const float* lse, float* dot,
                             int64_t lse_stride);
void attention_softmax_grad_(double* scores, double* dp, const ScoreBlock& block, const double* lse, double* dot,
                             int64_t lse_stride);

}  // namespace mortise
