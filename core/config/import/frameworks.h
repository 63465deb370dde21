// The translators of the frameworks: what their tables call kCompute. Private to this room.
#pragma once

#include <string>
#include <string_view>

#include "config/import/translation.h"

namespace mortise {

void translate_trl(Translation& t, int64_t num_processes);
void translate_verl(Translation& t);
void translate_swift(Translation& t, int64_t num_processes);

// --- shared by the two that are built on transformers.Trainer (hf_run.cpp) ---

// The batch arithmetic of GRPO trainers that count completions per process, as their __post_init__ does it.
struct HfBatches {
  int64_t updates_per_step = 1;
  bool is_known = false;  // false: a problem was told
};
// `default_accumulation`: gradient_accumulation_steps where it is null.
HfBatches translate_hf_batches(Translation& t, int64_t num_processes);
// Length of the run, learning-rate schedule, optimizer.
void translate_hf_schedule(Translation& t, const HfBatches& batches);
// Checkpoints, validation, logging. `samples`: validation samples as training does (TRL and swift both).
void translate_hf_files(Translation& t, const HfBatches& batches);
// vanilla, gspo or luspo with clip edges and delta, as the importance-sampling level asks.
void translate_clipped_loss(Translation& t, const std::string& loss_type, const std::string& level);
// sync_ref_model: the reference that follows the policy.
void translate_reference(Translation& t, const HfBatches& batches);
// A Python reward "pkg.module.function" as our reward `python`; the table's place.
std::string add_python_reward(Translation& t, const std::string& path, std::string_view name);

// The names of an adapter's settings in a framework; an empty name is one that it does not have.
struct LoraNames {
  std::string_view asked;  // the setting that asks for an adapter: told where there is none yet
  std::string_view rank, alpha, dropout, modules;
};
// An adapter is asked for. `modules`: what the framework adapts where its setting is null.
void translate_lora(Translation& t, const LoraNames& names, const Json& modules);

// A number that stands for "no cap" where a parameter must be finite.
inline constexpr double kNoCap = 1e300;

}  // namespace mortise
