// The translators of the frameworks: what their tables call kCompute. Private to this room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "import/translation.h"

namespace mortise {

// Processes that share a batch. `is_said`: by the script's launcher or --processes.
struct Processes {
  int64_t count = 1;
  bool is_said = false;

  [[nodiscard]] std::string text() const { return std::to_string(count) + (count == 1 ? " process" : " processes"); }
};

void translate_trl(Translation& t, const Processes& processes);
void translate_trl_rewards(Translation& t);
void prepare_verl(Translation& t);  // before the rules are applied
void translate_verl(Translation& t);
void translate_verl_objective(Translation& t);
// Reads the files of tools and interactions that the settings name.
void translate_verl_tools(Env& env, Translation& t);
void translate_verl_rewards(Translation& t);
void translate_swift(Translation& t, const Processes& processes);
void translate_swift_rewards(Translation& t);
// Parameters that ms-swift freezes. `trains_all`: it trains no adapter.
void set_frozen(Translation& t, bool trains_all);
// Its second learning rate of an adapter.
void set_lora_plus(Translation& t, bool trains_adapter);
// The setting of ms-swift that bounds a completion.
std::string_view swift_length_name(const Translation& t);

// --- shared by the two that are built on transformers.Trainer (hf_run.cpp, hf_schedule.cpp) ---

// The batch arithmetic of GRPO trainers that count completions per process, as their __post_init__ does it.
struct HfBatches {
  double updates_per_step = 1;  // on average
  int64_t micro_steps = 1;      // in an update, of all processes
  int64_t num_joined = 1;       // generation batches of the framework in an update
  bool carries_rows = false;    // an update may hold parts of two generation batches, or of two passes over one
  bool is_known = false;        // false: a problem was reported

  // The steps that have so many updates. Nothing: no number of whole steps has them.
  [[nodiscard]] std::optional<int64_t> whole_steps(int64_t updates) const;
  // The fewest steps that have them, on average.
  [[nodiscard]] int64_t fewest_steps(double updates) const;
};
// Whether the framework normalizes rewards or advantages over a whole generation batch.
using NormalizesBatches = bool (*)(Translation& t);
// How its rows come to the updates: in their order (ms-swift), or dealt out at random (TRL).
enum class DealtRows { kInOrder, kAtRandom };
HfBatches translate_hf_batches(Translation& t, const Processes& processes, NormalizesBatches normalizes_batches,
                               DealtRows order);
// For a loss_type whose divisor is the tokens of a generation batch: warns if an update has rows of several batches.
void warn_of_own_divisors(Translation& t, const HfBatches& batches);
// Length of the run, learning-rate schedule, betas, clipping. `learning_rate`: the framework's, which a floor is a share of.
void translate_hf_schedule(Translation& t, const HfBatches& batches, double learning_rate);
// optim and optim_args.
// "reward" is "eval_reward" there.
inline std::string metric_of_validation(const std::string& metric) {
  return metric.starts_with("eval_") ? metric : "eval_" + metric;
}
void translate_hf_optimizer(Translation& t);
void translate_swift_chord(Translation& t, const HfBatches& batches);  // supervised rows in each update
void translate_swift_optimizer(Translation& t);                        // with its own setting `optimizer`
// Whether verl trains it by Megatron, whose optimizer has other settings.
bool uses_megatron(Translation& t, const std::string& part);
void translate_verl_schedule(Translation& t, const std::string& part);   // "actor" or "critic"
void translate_verl_optimizer(Translation& t, const std::string& part);  // the same
// Checkpoints, validation, logging; validation samples as training does. `validates_as_it_saves`: where eval_strategy
// or eval_steps is not given, the settings of saving count (ms-swift with validation rows).
void translate_hf_files(Translation& t, const HfBatches& batches, bool validates_as_it_saves);
// vanilla, gspo or luspo with clip edges and delta, as the importance-sampling level asks.
void translate_clipped_loss(Translation& t, const std::string& loss_type, const std::string& level);
// Where metrics go, and the names that trackers show. Before the rules are applied.
void prepare_trackers(Translation& t, bool is_verl);
// sync_ref_model: the reference that follows the policy. After the KL has been set.
void translate_reference(Translation& t, const HfBatches& batches);

// --- servers (servers.cpp) ---

// The addresses of --servers, which must look like some.
Result<void> check_servers(const std::vector<std::string>& urls);
// Before the rules are applied: with servers, what the file says of its engine belongs on their command lines.
void prepare_servers(Translation& t, std::string_view framework);
// use_vllm, vllm_mode, vllm_server_*: server mode, or any mode with --servers, becomes the rollout backend vllm. False:
// no servers.
bool translate_servers(Translation& t);
// TRL's and ms-swift's vllm_tensor_parallel_size: ranks that sample together, if the trainer samples. After the above,
// and after trainer.mode.
void translate_hf_groups(Translation& t, const Processes& processes);
// A setting by which the sampler gives memory back while the run trains. Frameworks whose sampler is a process of its own do
// so by default, so that only a setting of the file counts. Call it when rollout.name and trainer.mode are set.
void set_sleep(Translation& t, std::string_view name);
void set_hf_sleep(Translation& t, std::string_view name);  // TRL's and ms-swift's, which count with use_vllm
// verl's rollout.name with --servers; without them nothing.
void translate_verl_servers(Translation& t);

// Is it a file or folder of rows on this machine, not a data set's name on a hub? The name alone decides.
bool is_local_data(std::string_view name);

// --- rewards (rewards.cpp); each gives the table's place ---

// A Python reward "pkg.module.function" as our reward `python`.
std::string add_python_reward(Translation& t, const std::string& path, std::string_view name);
// A sequence classifier with one label as our reward `reward_model`.
std::string add_reward_model(Translation& t, const std::string& folder, std::string_view name);

// The file names no reward: a table for each of its weights, to be filled in.
void ask_for_rewards(Translation& t, std::string_view hint);
// reward_weights, as many as rewards or none; nothing if their number is wrong, which is a problem. `of`: what was
// counted, "reward_funcs".
std::optional<std::vector<double>> reward_weights(Translation& t, size_t num_rewards, std::string_view of);
// The weight of the reward at that index; `table` may be empty: there is no such reward.
void set_reward_weight(Translation& t, const std::string& table, const std::vector<double>& weights, size_t place);

// The names of an adapter's settings in a framework. Empty: it has none.
struct LoraNames {
  std::string_view rank, alpha, dropout, modules, rslora;
  std::string_view dora = {}, init = {}, bias = {}, saved = {};  // saved: modules_to_save
  std::string_view parameters = {};                              // target_parameters

  [[nodiscard]] std::vector<std::string_view> all() const;
};
// An adapter is requested. `modules`: what the framework adapts if its setting is null.
void translate_lora(Translation& t, const LoraNames& names, const Json& modules);

// The remark for a length reward whose limit is below the longest completion.
inline constexpr std::string_view kNoFloor =
    "completions may be longer than the limit of this reward: beyond it the punishment there grows on, here it stays";

// "No cap", as parameters of plugins read it.
inline constexpr const char* kNoCap = "inf";

}  // namespace mortise
