// RunConfig: every setting of a run, as plain structs whose member names are the keys of the TOML file.
//
// `cfg.actor.policy_loss.loss_mode` is the key `actor.policy_loss.loss_mode`. keys/<section>.h holds the struct of a
// section and, below it, the record of each of its keys: text, range, what a resume does, when it has no effect, the
// names in other frameworks. A new key is a member and a record there, and the code that reads it. The initialisers are
// the only defaults. Names and meanings are verl's; its prefix `actor_rollout_ref.` is accepted as an alias. Words: a
// step is one batch of prompts sampled, scored and learnt from; an update is one optimizer step. `rows` are sampled
// completions, `prompts` are data rows. std::optional = nullable key ("null" in TOML and in overrides). An enum is a
// choice of names. Json = a table passed on to a plugin, always an object. Relative paths are relative to the working
// directory, except `base`, which is relative to the file that names it. Durations are std::chrono::milliseconds ("10s"
// in TOML). Thread rule: plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/keys/actor.h"
#include "config/keys/algorithm.h"
#include "config/keys/critic.h"
#include "config/keys/data.h"
#include "config/keys/model.h"
#include "config/keys/plugins.h"
#include "config/keys/ranks.h"
#include "config/keys/ref.h"
#include "config/keys/reward.h"
#include "config/keys/rollout.h"
#include "config/keys/sft.h"
#include "config/keys/sft_mix.h"
#include "config/keys/teacher.h"
#include "config/keys/trainer.h"

namespace mortise {

struct RunConfig {
  ModelSection model;
  DataConfig data;
  AlgorithmConfig algorithm;
  ActorConfig actor;
  RefConfig ref;
  TeacherConfig teacher;
  SftMixConfig sft_mix;
  RolloutConfig rollout;
  std::vector<RewardConfig> reward;
  TrainerConfig trainer;
  CriticConfig critic;
  SftConfig sft;
  PluginsConfig plugins;
  RanksConfig ranks;
  std::optional<std::string> preset;  // named set of keys that lies under all explicit ones
  bool operator==(const RunConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

template <class Catalog>
void describe_run(Catalog& catalog) {
  auto top = catalog.table("", "", [](auto& run) -> RunConfig& { return run; });
  top.free(
      "preset", &RunConfig::preset,
      "A named group of keys. In a file it lies over the files of `base` and under the file's other keys; on the "
      "command line (preset=gspo) it lies over all files and under the other overrides. The run tells which keys it "
      "replaces and which override it. `mortise config explain preset` lists the names.");
  describe_model_section(catalog);
  describe_data_section(catalog);
  describe_algorithm_section(catalog);
  describe_actor_section(catalog);
  describe_ref_section(catalog);
  describe_teacher_section(catalog);
  describe_sft_mix_section(catalog);
  describe_critic_section(catalog);
  describe_rollout_section(catalog);
  describe_reward_section(catalog);
  describe_trainer_section(catalog);
  describe_sft_section(catalog);
  describe_plugins_section(catalog);
  describe_ranks_section(catalog);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
