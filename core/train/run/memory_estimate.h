// How much memory a run needs, part by part, for `--dry-run`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "config/load.h"
#include "learn/update/micro_batches.h"
#include "model/adapters/trained_lora.h"
#include "model/weights/model_config.h"

namespace mortise {

// Bytes.
struct MemoryEstimate {
  double weights = 0, gradients = 0, moments = 0, reference = 0, activations = 0, rollout = 0, kv_cache = 0;
  double head = 0, critic = 0, reward_models = 0, teacher = 0;
  double attention = 0;    // what threads need for attention in training, on the CPU
  double graphs = 0;       // what decode graphs keep on a GPU
  double expert_pass = 0;  // on a GPU: what the experts of a layer need while a full pass samples
  double files = 0;        // in files in place of memory (offload)
  // What of `moments`, of `weights` (masters) and of `critic` is in the host's memory while a run on a GPU samples.
  double resting = 0, resting_masters = 0, resting_critic = 0, resting_critic_masters = 0;
  double program = 130 << 20;  // the program, its libraries and what they keep
  double sampled = 0;          // what sampling keeps for updates (rollout.reuse_forward_mib)
  double experts = 0;          // that the tokens of a step took (actor.router_replay.mode)
  double rows = 0;             // completions of the steps that are there at a time, and their numbers per token
  double gathered = 0;         // ranks.zero_stage = 3: parts of other ranks during updates
  // While a model is stepped, when there are no activations: copies of parameters (whole ones of split layers, bfloat16
  // numbers in float32), and the piece of its state that is read from files.
  double stepped = 0;
  double whole = 0;  // ... and all weights during rollouts, when there are no gradients and activations; of a split
                     // model too, with the gradients that stay
  // The part that a save of split layers has whole, with the gradients that stay. Ranks that only spread weights (stage 3)
  // gather a part in saves too, but more in rollouts.
  double saved = 0;
  double started = 0;  // ... and what is read at once while ranks start that share the weights
  [[nodiscard]] double total() const {
    const double update = gradients + std::max(activations + head + attention + gathered, stepped);
    return program + weights + moments + reference + rollout + kv_cache + critic + reward_models + teacher + experts +
           rows + graphs + sampled + std::max({update, std::max(whole, gradients) + expert_pass, saved, started});
  }
};

// The most tokens of a recorded row: of `mortise sft`, or of sft_mix.
int64_t recorded_length(const RunConfig& config);

// How the weights of a model are there (model.dtype).
enum class WeightCopies { kMasters, kNoMasters };  // without masters: the layers' matrices in bfloat16 alone
double weight_bytes(const ModelConfig& model, ModelDtype dtype, WeightCopies copies);
// The same for a model that `optim` steps.
double trained_weight_bytes(const ModelConfig& model, ModelDtype dtype, const OptimConfig& optim);

// The part of embedding or head, or of a rank's rows of both, that passes read at once. No rows: all of it.
struct VocabularyWindow {
  int64_t rows = 0;
  double bytes = 0;
};

// The units in which ranks.zero_stage = 3 spreads a model, in bytes.
struct UnitBytes {
  double all = 0, layer = 0, layers = 0;  // bytes of matrices: all of them, the largest layer, all layers
  double ends = 0;                        // embedding and head
  double largest_end = 0;
  double matrix = 0;  // the largest matrix of a layer
  double whole = 0;   // what every rank keeps: norms, biases, routers
  VocabularyWindow window;
};

// What reading an adapter's folder needs next to the matrix that gets its sum.
struct MergeSize {
  double matrices = 0;    // as large as that one, of float64
  bool has_head = false;  // a head gets a sum too
};

// What an optimizer steps of a model, or of its adapter: all but what optim.groups freezes.
struct TrainedSize {
  double numbers = 0;            // that are trained
  double moments = 0;            // bytes of the optimizer's state
  double largest_moments = 0;    // the same of the parameter that has most
  double largest_numbers = 0;    // those of the largest parameter
  double largest_of_layers = 0;  // the same of a layer
  int64_t lowest_backward = 1;   // model.h
  UnitBytes units;               // bytes of the model's trained matrices; of an adapter, only embedding and head
  double of_vocabulary = 0;      // numbers of embedding and head that an adapter trains as a whole
  double of_layers = 0;          // the same of the layers' matrices
  MergeSize merge;               // if model.path is an adapter's folder
  bool is_from_base = false;     // an adapter that starts from the base's numbers (PiSSA, OLoRA; a new one with DoRA)
  bool reads_base = false;       // passes read the base of what an adapter changes, as DoRA's do
  bool is_adapter = false;       // these are numbers of an adapter
  bool is_on_device = false;     // the code of a device computes
  bool has_kernels = false;      // ... with the kernels of core/cuda
  // Ranks that share the layers have embedding and head whole then.
  [[nodiscard]] bool keeps_vocabulary() const { return of_vocabulary > 0 || is_on_device; }
};
// Bytes that a rank needs while it reads a part of a model that ranks share, without what a start computes from the part.
// `element`: the bytes of one number.
double read_part_bytes(const UnitBytes& units, const MergeSize& merge, double element);
// `lora`: of the adapter that is trained, if there is one. `table`: "actor.optim" or "critic.optim".
Result<TrainedSize> trained_size(const ModelConfig& model, const std::optional<LoraSize>& lora,
                                 const LoadedConfig& loaded, const std::string& table);

// `by_operators`: the run has the code of a device.
MemoryEstimate estimate_memory(const ModelConfig& model, const std::optional<LoraSize>& lora,
                               const TrainedSize& trained, const RunConfig& config, bool by_operators);

// MemoryEstimate::rows: rows that all have the most tokens.
double bytes_of_rows(const RunConfig& config);

// Bytes that decode graphs keep on a GPU.
double graph_bytes(const ModelConfig& model, const RunConfig& config);
// What the kernels of a mixture of experts need at the same time in a pass of rollout.max_num_batched_tokens tokens, or in their
// largest one if libtorch's operators compute such a pass.
double expert_pass_bytes(const ModelConfig& model, const RunConfig& config);

// Bytes of a critic.
struct CriticBytes {
  double weights = 0, gradients = 0, moments = 0;
  double saved_weights = 0;    // in a checkpoint
  double largest_moments = 0;  // those of the parameter that has most
  double masters = 0;          // the part of `weights` that has bfloat16 copies
  double activations = 0;      // in its largest pass on a rank
  double matrices = 0;         // the part of `weights` that ranks.zero_stage = 3 spreads
  double merged = 0;           // ... and the part that exists for the layers in use only
  double started = 0;          // what is read at once while ranks start that spread it
  bool has_lora = false;
  UnitBytes units = {};
  TrainedSize trained = {};
};
// CriticBytes::activations. `cut` and `rows_per_update` are those of the critic.
double critic_activation_bytes(const ModelConfig& critic, const TrainedSize& trained, const RunConfig& config,
                               const MicroBatchOptions& cut, int64_t rows_per_update);

UnitBytes unit_bytes(const ModelConfig& model, double element);
// The pass that finds the tokens that filters keep has the whole head and a window, but no gradients or activations:
// MemoryEstimate::whole is larger.
VocabularyWindow vocabulary_window(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config);
// The same of a critic, which has all rows on every rank.
VocabularyWindow critic_window(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config);
// Bytes of all ranks for these units: with bfloat16 copies of the layers, and their masters if there are any.
double spread_bytes(const UnitBytes& units, ModelDtype dtype, bool has_masters);
// Numbers of the model that a rank does not have if `num_ranks` share its layers. `keeps_vocabulary`: it has all of embedding and
// head.
struct NumbersOfOthers {
  double layers = 0;
  double ends = 0;  // embedding and head
  [[nodiscard]] double all() const { return layers + ends; }
};
[[nodiscard]] NumbersOfOthers numbers_of_others(const ModelConfig& model, int64_t num_ranks,
                                                bool keeps_vocabulary = false);

// Whole heads that a pass gathers because it filters distributions, if ranks share the vocabulary
// (model/head/shared_vocabulary.h).
struct GatheredHeads {
  double at_once = 0;  // in memory, with the gradient of one
  double sent = 0;     // gathered in a pass of an update, one after another
};
[[nodiscard]] GatheredHeads gathered_heads(const RunConfig& config, const TrainedSize& trained);

// Takes off what the ranks share (ranks.zero_stage, actor.tensor_model_parallel_size), and adds what deterministic sums of
// gradients need. `trained`: of the policy.
void share_memory(const ModelConfig& model, const UnitBytes& units, const TrainedSize& trained, const RunConfig& config,
                  bool has_lora, int num_ranks, const CriticBytes& critic, MemoryEstimate& memory);

// Bytes of the masters of the matrices that have bfloat16 copies.
double master_bytes(const ModelConfig& model, ModelDtype dtype);

// Takes off what lies in files: *.offload. After share_memory().
void offload_memory(const ModelConfig& model, const TrainedSize& trained, const RunConfig& config, bool has_lora,
                    int num_ranks, const CriticBytes& critic, MemoryEstimate& memory);

}  // namespace mortise
