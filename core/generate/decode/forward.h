// One pass of tokens through the decoder, for prompts and single new tokens: embedding, layers with attention over the
// KV pages, final norm. The result of a row depends only on its own tokens, bit for bit, for any other rows and any
// number of threads.
//
// Cost: 2 flops per weight and row. In the last layer, rows whose output is not needed cost only their keys and values.
// 7 barriers per layer, 8 with sandwich norms, and none if small weights let each thread take its own rows through all
// layers. Ranks that share the layers (tensor parallel) exchange their terms of each row twice per layer, and every rank
// adds them in rank order. Memory: activations of max_rows rows. Thread rule: run() from one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "foundation/base/team.h"
#include "generate/decode/kv_cache.h"
#include "generate/decode/packed_weights.h"
#include "generate/kernels/kernels.h"
#include "model/layers/sampled_forward.h"
#include "model/layers/tensor_ranks.h"
#include "model/weights/model_config.h"

namespace mortise {

// One token. It attends to `prefix_length` tokens of the prompt's pages and `own_length` tokens of its own pages, of
// which it is the last.
struct PassRow {
  int64_t token = 0;
  int64_t position = 0;
  float* const* prefix_pages = nullptr;
  int64_t prefix_length = 0;
  float* const* own_pages = nullptr;
  int64_t own_length = 1;
  float* hidden = nullptr;  // [H] gets the final norm's output; null: not wanted
  // [layers with experts * experts per token] gets the experts that the token passes; null: not wanted. The last layer's
  // are not written if `hidden` is null and that layer has experts: the token does not pass them.
  uint16_t* experts = nullptr;
  int64_t slot = -1;  // where the store of the pass keeps the token's numbers; -1: nowhere
};

struct PassRange {
  int64_t begin;
  int64_t end;
};

// The rows of a pass by expert, as one member of the team sees them.
struct ExpertSort {
  std::vector<int64_t> begin;  // [E + 1] into the sorted rows
  std::vector<int64_t> row;    // rows of the pass, by sorted row
  std::vector<int64_t> place;  // the sorted row, by row and place
};

class DecodeForward {
 public:
  // `ranks`: those that share the layers, of which `config` describes this rank's part; null: the layers are whole. Passes
  // are then collectives, and after one the caller asks for ranks->status().
  DecodeForward(const ModelConfig& config, const Kernels& kernels, int64_t max_rows,
                std::shared_ptr<TensorRanks> ranks = {});

  [[nodiscard]] int64_t max_rows() const { return max_rows_; }
  // Makes the rotation tables reach that far.
  void reserve_positions(int64_t num_positions);
  // Precondition: rows.size() <= max_rows; positions below what was reserved; rows of one sequence in order.
  // `store` gets the numbers of rows with a slot, for updates of dense layers without norms behind attention or
  // MLP. Of the last layer of rows without `hidden` it gets numbers without meaning, which are finite, in place of what
  // follows their keys and values.
  void run(const PackedWeights& weights, std::span<const PassRow> rows, const KvShape& kv, Team& team,
           const SampledForward* store = nullptr);

 private:
  struct Member;  // a team member's share
  void run_member(const Member& m) const;
  void keys_and_values(const Member& m, int64_t index) const;
  void attention_and_mlp(const Member& m, int64_t index) const;
  void move_wanted_rows(const Member& m) const;
  void attention(const Member& m, int64_t index, int64_t begin, int64_t end) const;
  void rotate_and_store(const Member& m, int64_t index, int64_t begin, int64_t end) const;
  void gated_mlp(const Member& m, const PackedLayer& layer) const;
  // What the store of the pass keeps.
  template <class Place>
  void keep_rows(const Member& m, PassRange range, const FloatBuffer& from, int64_t stride, int64_t width,
                 const Place& place) const;
  void keep_gate_up(const Member& m, int64_t index, PassRange range) const;
  void keep_unwanted_rows(const Member& m, PassRange range) const;
  // Turns a panel of gate and up, with rows at `stride`, into the 16 numbers of each row that the next product takes.
  // `is_clamped`: by gpt-oss's gate.
  void gate_panel(bool is_clamped, const float* both, int64_t stride, int64_t rows, float* out,
                  int64_t out_stride) const;
  // A mixture of experts (expert_pass.cpp).
  void route(const Member& m, int64_t index, int64_t begin, int64_t end) const;
  void add_experts(const Member& m, const PackedLayer& layer) const;
  void sort_by_expert(const Member& m, int64_t num_experts) const;
  template <class Work>  // work(expert, panel) for this member's share of the panels of all experts with rows
  void share_panels(const Member& m, const PackedLayer& layer, PackedLinear PackedExpert::*matrix,
                    const Work& work) const;
  void norm_rows(const float* weight, int64_t begin, int64_t end) const;
  void round_rows(const Member& m, const FloatBuffer& buffer, int64_t stride, int64_t size) const;
  void project(const Member& m, const PackedLinear& linear, const float* x, int64_t x_stride, const float* norm) const;
  void add_to_rows(const Member& m, const FloatBuffer& what, const float* norm) const;
  // Tensor parallel: x += the sum over the ranks of terms_.
  void add_terms(const Member& m, const float* norm) const;

  ModelConfig config_;
  const Kernels& kernels_;
  int64_t max_rows_;
  int64_t hidden_stride_, qkv_stride_, attended_stride_, mlp_stride_, gate_up_stride_;
  FloatBuffer x_, normed_, qkv_, attended_, mlp_;
  FloatBuffer gate_up_;  // by panels, for passes with a store
  std::shared_ptr<TensorRanks> ranks_;
  FloatBuffer terms_;           // what this rank adds to each row, then what all do
  at::Tensor sent_, gathered_;  // terms on their way: of this rank, of all. The network may hold them after an error.
  // Buffers of layers with experts, if the model has any: K rows for each row of the pass, sorted by expert.
  int64_t router_stride_ = 0, expert_stride_ = 0;
  FloatBuffer router_, expert_x_, expert_mlp_, expert_y_;
  FloatBuffer shared_scale_;              // by row: the sigmoid of the shared expert's gate
  FloatBuffer expert_weight_;             // by row and place
  std::unique_ptr<int64_t[]> expert_of_;  // by row and place, ascending in a row
  std::vector<int64_t> expert_layer_;     // by layer: its place among those with experts
  std::vector<ExpertSort> sorts_;         // by member
  struct Rotation {
    std::vector<float> cos, sin;  // [positions][rotated dimensions / 2]
  };
  int64_t num_positions_ = 0;
  Rotation rotation_, window_rotation_;  // the second for windowed layers that have their own
  std::vector<PassRow> wanted_;          // those with `hidden`, in the current pass
  std::vector<FloatBuffer> scratch_;     // by member: scores, and a panel of gate_up
};

}  // namespace mortise
