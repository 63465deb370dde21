// The softmax of a block of attention scores, in place, and its gradient: what attention.cpp does between its products.
// Cost: one exp per score forward and backward (two backward where scores are capped). Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace mortise {

// What row r of a block of scores sees: [max(0, r - lag), first_end + r) of `width` columns. Scores are capped first
// where cap > 0.
struct ScoreBlock {
  int64_t rows;
  int64_t width;
  int64_t first_end;
  int64_t lag;  // row r's first column is r - lag; at least `rows` without a window
  double cap;
  double sink;  // a score more, whose probability counts in the sum and is no column; -infinity: none

  int64_t begin(int64_t r) const { return r > lag ? r - lag : 0; }
  int64_t end(int64_t r) const { return first_end + r; }
};

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
