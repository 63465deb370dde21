// Passes that give each running sample one more token, as graphs: layers, head and draws start by one call of the host.
//
// There is a graph for each class of sizes: rows (padded to the class), splits of attention, whether rows have edits, and
// the likeliest tokens that a row may want.
// The first pass of a class is computed as usual, the second is captured. Token ids, positions, tables of pages and what draws
// need lie in buffers that stay, and are written before each pass. Padding rows write to the cache's own page for them.
// All graphs go when memory that they use moves: keys and values, rotations, buffers, weights and their bfloat16 copies. An
// update that writes weights where they are keeps them.
// Memory: the graphs share what the largest of them needs (decode_graph_bytes()), also while the run trains.
// Thread rule: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "generate/device/device_cache.h"
#include "generate/device/device_sampler.h"
#include "generate/device/step_graphs.h"

namespace mortise {

// The largest pass of decoding.
struct DecodePassSize {
  int64_t rows = 0;
  int64_t longest = 0;      // tokens of the longest sample, with its prompt
  bool has_edits = false;   // penalties or barred tokens
  bool is_rounded = false;  // the layers multiply bfloat16 matrices
};

// Bytes that the graphs of all classes keep on the device, without those of the CUDA driver: what is alive at the same time
// in the largest pass that is a graph. 0 for models without graphs. As runs sample, which list no likeliest tokens.
double decode_graph_bytes(const ModelConfig& config, const DecodePassSize& size);

class GraphedDecode {
 public:
  GraphedDecode(const Model& model, PagedDeviceCache& cache, const DeviceSampler& sampler,
                std::unique_ptr<StepGraphs> graphs)
      : model_(model), cache_(cache), sampler_(sampler), graphs_(std::move(graphs)) {}

  // Whether graphs compute passes of so many rows of this model: its layers must not need the host. is_rounded: they multiply
  // bfloat16 matrices.
  [[nodiscard]] static bool serves(const ModelConfig& config, int64_t num_rows, bool is_rounded);
  // Whether they compute this one.
  [[nodiscard]] static bool serves(const Model& model, const DevicePass& pass, const DrawInputs& inputs);
  // Adds a token to each of the pass's slots, and starts its draw. positions: of the rows.
  [[nodiscard]] StartedDraws run(const DevicePass& pass, const at::Tensor& ids_N, std::span<const int64_t> positions,
                                 const DrawInputs& inputs);
  void forget() { graphs_by_size_.clear(); }

 private:
  static constexpr int32_t kMostTop = 64;  // beyond it, listing tokens takes longer than the host needs to start a pass
  struct Size {
    int64_t rows = 0, splits = 0;
    bool has_edits = false;
    int32_t num_top = 0;
    auto operator<=>(const Size&) const = default;
  };
  struct Captured {
    std::unique_ptr<StepGraph> graph = {};  // null: one pass was computed as usual
    DrawnRows drawn = {};
  };
  void notice_moved_memory(int64_t num_rows, int64_t num_pages);
  [[nodiscard]] std::vector<const void*> places_of_weights() const;
  void fill(const Size& size, const at::Tensor& table_NP, const at::Tensor& ids_N, std::span<const int64_t> positions,
            const DrawInputs& inputs) const;
  [[nodiscard]] DrawnRows compute(const Size& size) const;

  const Model& model_;
  PagedDeviceCache& cache_;
  const DeviceSampler& sampler_;
  std::unique_ptr<StepGraphs> graphs_;
  std::map<Size, Captured> graphs_by_size_;
  uint64_t layout_ = 0;                                           // the cache's
  std::vector<const void*> weights_ = {};                         // where they are
  at::Tensor ids_, positions_, table_, draws_, edits_, num_top_;  // buffers, [rows] and more
};

}  // namespace mortise
