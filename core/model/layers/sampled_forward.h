// What sampling has computed of a step's tokens, for the update that reads it instead of computing it again: in an update
// with the weights that sampled, the forward pass gives the same numbers.
//
// Every token has a slot. The engine takes the slots of a prompt and of each of its samples one after the other and
// fills them while it decodes. A pass over packed rows reads its tokens' slots in place where they lie side by side,
// else copies. A token's numbers depend only on the tokens before it, bit for bit (generate/decode/forward.h), so they
// can be made again from the tokens alone. If a step chooses among more groups than it learns from, each group has the
// same number of slots, which others take when it is dropped. Memory: as bytes_per_token() says; slots that nobody
// fills take none. Thread rule: one thread, except that the engine's threads write to different slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "foundation/base/result.h"
#include "model/tensor/aligned.h"
#include "model/tensor/packing.h"
#include "model/weights/model_config.h"

namespace mortise {

// The numbers of one layer, a row for each token of a pass.
struct SampledLayer {
  at::Tensor qkv_NQ;       // q and k rotated; as the product leaves them if the model norms q and k
  at::Tensor attended_NA;  // what attention gives
  at::Tensor lse_Nh;       // log-sum-exp of the scores of each head
  at::Tensor mixed_NH;     // the residual stream behind attention
  at::Tensor gate_up_N2I;
  at::Tensor out_NH;  // the residual stream behind the MLP
};

// The same by slot, to be written: row n of each begins at n times its width.
struct SampledSlots {
  float *qkv, *attended, *lse, *mixed, *gate_up, *out;
};

class SampledForward;

// The tokens of one pass.
class SampledPass {
 public:
  SampledPass(const SampledForward& store, std::vector<int64_t> slots);
  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(slots_.size()); }
  // Valid until the store forgets the rows, where they are not copies.
  [[nodiscard]] SampledLayer layer(int64_t index) const;
  [[nodiscard]] at::Tensor last_out() const;

 private:
  [[nodiscard]] at::Tensor rows(const float* from, int64_t width) const;

  const SampledForward& store_;
  std::vector<int64_t> slots_;
  bool is_run_ = true;  // one after the other
};

class SampledForward {
 public:
  // `group_slots`: that each group takes as a whole, for keep_rows(); 0: prompts and rows take what they need.
  SampledForward(const ModelConfig& config, int64_t num_slots, int64_t group_slots = 0);
  [[nodiscard]] static int64_t bytes_per_token(const ModelConfig& config);

  // Forgets all rows. The samples of this step are kept from now on, until end().
  void begin(uint64_t seed, int64_t step);
  // After end(): the next samples of the same step are kept too.
  void go_on() { is_open_ = is_current_; }
  void end() { is_open_ = false; }
  void forget();
  // The same for a step whose samples are there: fill_sampled_forward (generate/decode/given_tokens.h) makes their rows.
  void begin_filled();
  [[nodiscard]] bool takes(uint64_t seed, int64_t step) const { return is_open_ && seed == seed_ && step == step_; }
  // Between begin and forget(): the weights are those that sampled.
  [[nodiscard]] bool is_current() const { return is_current_; }
  [[nodiscard]] bool has_row(int64_t row_id) const { return rows_.contains(row_id); }
  // Changes whenever rows are forgotten: slots of another version mean nothing.
  [[nodiscard]] int64_t version() const { return version_; }

  // The first of `count` slots in a row; nothing: the store has not so many left. If there are group_slots(), `count` is that.
  std::optional<int64_t> take(int64_t count);
  [[nodiscard]] int64_t group_slots() const { return group_slots_; }
  // Forgets the rows that are not among these, and frees the slots of groups without a row. An id may be unknown.
  // Precondition: group_slots() > 0, and no sample runs.
  void keep_rows(std::span<const int64_t> row_ids);
  // The same. From now on, row i is the one that was row_ids[i].
  void number_rows(std::span<const int64_t> row_ids);
  void set_token(int64_t slot, int64_t id) { ids_[static_cast<size_t>(slot)] = id; }
  // The slots of a row: those of its prompt, and the first one of its response.
  void put_row(int64_t row_id, std::shared_ptr<const std::vector<int64_t>> prompt, int64_t first_response);
  // The slots of the prompt of a group of which some rows were filled. Null: none was.
  std::shared_ptr<const std::vector<int64_t>>& filled_prompt(int64_t group) { return filled_prompts_[group]; }
  [[nodiscard]] const SampledSlots& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  [[nodiscard]] int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }

  // The packed tokens of rows with these ids. An error if a row is not here, or has other tokens.
  Result<std::shared_ptr<const SampledPass>> pass(const PackedBatch& packed, std::span<const int64_t> row_ids) const;

 private:
  friend class SampledPass;
  struct Widths {
    int64_t qkv, attended, lse, hidden, gate_up;
    explicit Widths(const ModelConfig& config);
    [[nodiscard]] int64_t sum() const { return qkv + attended + lse + 2 * hidden + gate_up; }
  };
  struct Row {
    std::shared_ptr<const std::vector<int64_t>> prompt;
    int64_t first_response = 0;
  };

  Widths widths_;
  int64_t num_slots_, group_slots_;
  FloatBuffer numbers_;
  std::vector<SampledSlots> layers_;
  std::vector<int64_t> ids_;
  int64_t num_taken_ = 0, version_ = 0;
  std::vector<int64_t> free_groups_;  // the first slots of groups below num_taken_, the smallest last
  std::map<int64_t, Row> rows_;
  std::map<int64_t, std::shared_ptr<const std::vector<int64_t>>> filled_prompts_;
  bool is_open_ = false, is_current_ = false;
  uint64_t seed_ = 0;
  int64_t step_ = 0;
};

}  // namespace mortise
