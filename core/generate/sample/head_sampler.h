// The vocabulary head and the sampler in one: logits of a block of rows, statistics of each chunk while it is in the
// cache, one token per job.
//
// Several jobs may draw from one row (the first tokens of a group). Randomness is a function of (seed, purpose, step,
// row id, token position). Cost: 2*H*V flops and V exps per row. Memory: at most kLogitBytes of logits.
// Thread rule: run() from one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "foundation/base/rng.h"
#include "foundation/base/team.h"
#include "generate/decode/packed_weights.h"
#include "generate/sample/sampling.h"

namespace mortise {

struct SampleJob {
  int64_t row = 0;                         // which input
  const SamplingParams* params = nullptr;  // jobs of one row share the temperature
  RngKey key;                              // key.token is the position in the completion
  TokenEdits edits{};
  int64_t num_top_log_probs = 0;
  std::vector<TokenLogProb>* top = nullptr;  // gets those, where any are wanted
};

class HeadSampler {
 public:
  // softcap: cap of the logits (0: none).
  HeadSampler(int64_t hidden_size, int64_t vocab_size, double softcap, const Kernels& kernels);

  // Room for `rows` inputs; input(i) [H] is to be filled before run().
  void reserve_inputs(int64_t rows);
  [[nodiscard]] float* input(int64_t row) const { return input_.data() + row * input_stride_; }
  // Inputs [first, first + count) become the first ones.
  void move_to_front(int64_t first, int64_t count);
  // Samples every job. Jobs are in ascending order of row; every row up to the last has a job.
  void run(const PackedLinear& head, std::span<const SampleJob> jobs, std::span<SampledToken> out, Team& team);

 private:
  // Logits of some rows, and the maximum and the sum of exponentials of each chunk of them.
  struct Block {
    FloatBuffer logits;
    std::vector<float> max, sum;  // [rows][chunks]
  };
  struct Pass;  // what run() shares with the members of the team
  void reserve(Block& block, int64_t rows) const;
  void score_chunks(const Pass& pass, Block& block, int64_t first_row, int64_t rows, int64_t chunk_begin,
                    int64_t chunk_end) const;
  void sample_jobs(const Pass& pass, const Block& block, size_t first_job, size_t last_job, int64_t first_row,
                   SamplingScratch& scratch) const;
  void share_rows(const Pass& pass, Team& team);
  void share_chunks(const Pass& pass, int members, Team& team);

  const Kernels& kernels_;
  float softcap_;
  int64_t vocab_size_, padded_size_, num_chunks_;
  int64_t input_stride_, logit_stride_, block_rows_;
  FloatBuffer input_;
  std::vector<float> inverse_temperature_;  // by row
  std::vector<Block> blocks_;               // by member; the first alone where members share the chunks of a block
  std::vector<SamplingScratch> scratch_;    // by member
};

}  // namespace mortise
