// [actor.optim] and [critic.optim]: the optimizer and the learning-rate schedule.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys/model.h"
#include "config/keys/schedule.h"
#include "foundation/base/choice.h"
#include "foundation/formats/json.h"

namespace mortise {

enum class OptimizerName { kAdamW, kAdamW8Bit, kAdafactor, kLion, kMuon, kSgd };
constexpr auto choice_names(OptimizerName) {
  return std::array<std::string_view, 6>{"adamw", "adamw_8bit", "adafactor", "lion", "muon", "sgd"};
}
// Whether some parameters are stepped by AdamW's formula.
constexpr bool uses_adamw(OptimizerName name) {
  return name == OptimizerName::kAdamW || name == OptimizerName::kAdamW8Bit || name == OptimizerName::kMuon;
}

// How Muon adjusts the learning rate to the shape of a matrix.
enum class MuonLr { kOriginal, kMatchRmsAdamW };
constexpr auto choice_names(MuonLr) { return std::array<std::string_view, 2>{"original", "match_rms_adamw"}; }

// Where numbers are that a run needs for a short time only.
enum class Offloading { kNone, kFile };
constexpr auto choice_names(Offloading) { return std::array<std::string_view, 2>{"none", "file"}; }

// The same of an optimizer. kWhileSampling: on a GPU, but in the host's memory between the updates of two steps.
enum class StateOffloading { kNone, kFile, kWhileSampling };
constexpr auto choice_names(StateOffloading) {
  return std::array<std::string_view, 3>{"none", "file", "while_sampling"};
}

struct OptimConfig {
  OptimizerName optimizer = OptimizerName::kAdamW;
  double lr = 1e-6;
  double weight_decay = 0.01;                // not for parameters named *bias* or *norm*, unless decay_all_parameters
  bool decay_all_parameters = false;         // as in verl
  std::vector<double> betas = {0.9, 0.999};  // exactly two
  double eps = 1e-8;
  bool master_weights = true;                         // float32 weights next to bfloat16 ones (model.dtype)
  StateOffloading offload = StateOffloading::kNone;   // where the state is, and with files the masters
  std::optional<double> momentum{};                   // sgd, muon; null = 0 for sgd, 0.95 for muon
  std::optional<bool> nesterov{};                     // sgd, muon; null = false for sgd, true for muon
  double dampening = 0.0;                             // sgd
  int64_t ns_steps = 5;                               // muon
  MuonLr adjust_lr_fn = MuonLr::kOriginal;            // muon
  int64_t min_8bit_size = 4096;                       // adamw_8bit: smaller parameters have float32 moments
  bool quantize_embeddings = false;                   // adamw_8bit: embeddings too
  bool scale_parameter = false;                       // adafactor, as the six below
  bool relative_step = false;                         // step sizes from the update count instead of lr
  bool warmup_init = false;                           // with relative_step
  double clip_threshold = 1.0;                        // bound of a step's root mean square
  double decay_rate = -0.8;                           // how fast the second moment forgets
  std::vector<double> adafactor_eps = {1e-30, 1e-3};  // exactly two
  std::optional<double> adafactor_beta1{};            // null = no first moment
  LrSchedule lr_scheduler_type = LrSchedule::kConstant;
  int64_t lr_warmup_steps = -1;                  // in schedule_unit; negative = use lr_warmup_steps_ratio
  double lr_warmup_steps_ratio = 0.0;            // share of the schedule, used if lr_warmup_steps < 0
  std::optional<double> lr_warmup_init_ratio{};  // share of lr that the warm-up begins with
  LrWarmup lr_warmup_style = LrWarmup::kLinear;
  int64_t lr_decay_steps = -1;                         // the schedule with its warm-up; -1 = as long as the run
  double min_lr_ratio = 0.0;                           // floor of the decay as a share of lr
  double num_cycles = 0.5;                             // cosine: 0.5 = once from lr down to the floor
  double power = 1.0;                                  // polynomial
  int64_t timescale = -1;                              // inverse_sqrt; -1 = the warm-up's length
  int64_t lr_wsd_decay_steps = -1;                     // warmup_stable_decay; -1 = a tenth of the schedule
  LrDecay lr_wsd_decay_style = LrDecay::kCosine;       // warmup_stable_decay
  std::optional<double> lr_wsd_stable_ratio{};         // the same as a share of what the warm-up leaves
  ScheduleUnit schedule_unit = ScheduleUnit::kUpdate;  // what the schedule counts (verl: step)
  bool schedule_from_one = false;                      // the first unit is number 1
  LrMetricConfig lr_metric{};                          // reduce_lr_on_plateau, greedy
  Json groups = Json::object();  // parameters with settings of their own, by name (optim_groups.h)
  bool operator==(const OptimConfig&) const = default;
};

#ifdef MORTISE_CONFIG_RECORDS  // read by fields.cpp alone, so that a new text recompiles one file

// The rules "without effect": keys of one optimizer.
template <class Optim>
struct OptimizerRules {
  Optim optim;
  std::string table;
  Uses when;

  [[nodiscard]] auto why() const {
    return [optim = optim, table = table](const auto& k) {
      return table + ".optimizer is " + std::string(choice_name(optim(k.config).optimizer));
    };
  }
  // Without effect for every optimizer but these two.
  [[nodiscard]] auto unless(OptimizerName one, OptimizerName other) const {
    return [optim = optim, one, other](const auto& k) {
      const OptimizerName name = optim(k.config).optimizer;
      return name != one && name != other;
    };
  }
  [[nodiscard]] auto unless(OptimizerName one) const { return unless(one, one); }
};

template <class Keys, class Optim>
void describe_optimizer(Keys& keys, const OptimizerRules<Optim>& rules, const std::string& verl_lr) {
  const auto has_relative_step = [optim = rules.optim](const auto& k) {
    return optim(k.config).optimizer == OptimizerName::kAdafactor && optim(k.config).relative_step;
  };
  keys.compared(
      "optimizer", &OptimConfig::optimizer,
      "What steps the weights. adamw: two moments for each weight. adamw_8bit: the same with moments of 8 bits, as in "
      "bitsandbytes. adafactor: a second moment per row and column. lion: one moment, and steps of one size. muon: "
      "orthogonal steps for the matrices of the layers, and adamw for all else. sgd: with momentum or without.");
  keys.compared("lr", &OptimConfig::lr, "Learning rate at the top of the schedule.")
      .at_least(0)
      .as_in_verl(verl_lr)
      .trl("learning_rate", "1e-06")
      .no_effect(rules.when, has_relative_step, rules.table + ".relative_step is true");
  keys.compared("weight_decay", &OptimConfig::weight_decay,
                "Decoupled weight decay; with sgd a part of the gradient. Parameters with bias or norm in their name "
                "get none, as in TRL; see decay_all_parameters.")
      .at_least(0)
      .as_in_verl("0.01")
      .transformers("weight_decay", "0.0")
      .swift("weight_decay", "0.1");
  keys.compared("decay_all_parameters", &OptimConfig::decay_all_parameters,
                "Weight decay for biases and norms too, as in verl. false: the rule of transformers and TRL.")
      .no_effect(
          rules.when, [optim = rules.optim](const auto& k) { return optim(k.config).weight_decay == 0.0; },
          rules.table + ".weight_decay is 0");
  const auto has_no_betas = [optim = rules.optim](const auto& k) {
    const OptimizerName name = optim(k.config).optimizer;
    return !uses_adamw(name) && name != OptimizerName::kLion;
  };
  keys.compared(
          "betas", &OptimConfig::betas,
          "Decay rates of the two moments; with lion of the mix that a step takes and of the moment. Lion's paper "
          "has [0.9, 0.99].")
      .at_least(0)
      .below(1)
      .items(2)
      .as_in_verl("[0.9, 0.999]")
      .trl("adam_beta1, adam_beta2")
      .no_effect(rules.when, has_no_betas, rules.why());
  keys.compared("eps", &OptimConfig::eps, "Added to the square root of the second moment of adamw.")
      .above(0)
      .transformers("adam_epsilon", "1e-08")
      .no_effect(
          rules.when, [optim = rules.optim](const auto& k) { return !uses_adamw(optim(k.config).optimizer); },
          rules.why());
}

template <class Keys, class Optim>
void describe_master_weights(Keys& keys, const OptimizerRules<Optim>& rules) {
  keys.compared("master_weights", &OptimConfig::master_weights,
                "With model.dtype = bfloat16: keep float32 master weights of the layers' matrices, from which the "
                "bfloat16 ones are rounded. false: the matrices exist in bfloat16 only, which saves 4 bytes per "
                "weight. Each update then rounds them up or down at random, so that steps too small for bfloat16 "
                "count on average.")
      .no_effect(
          rules.when,
          [is_critic = rules.table == "critic.optim"](const auto& k) {
            const ModelSection& model = k.config.model;
            const bool trains_adapter = is_critic ? k.config.critic.model.trains_adapter() : model.trains_adapter();
            return model.dtype != ModelDtype::kBfloat16 || trains_adapter;
          },
          [](const auto& k) -> std::string {
            return k.config.model.dtype == ModelDtype::kBfloat16 ? "an adapter is trained, in float32"
                                                                 : "model.dtype is not bfloat16";
          });
}

template <class Keys, class Optim>
void describe_offload(Keys& keys, const OptimizerRules<Optim>& rules) {
  const auto rests = [optim = rules.optim](const auto& k) {
    return optim(k.config).offload == StateOffloading::kWhileSampling;
  };
  keys.free(
          "offload", &OptimConfig::offload,
          "Where the optimizer's state is, and the master weights of a bfloat16 model. none: in memory. file: in files "
          "without names in trainer.offload_dir, from which an update reads one parameter after the other. On a GPU the "
          "master weights stay in its memory if ranks share steps (ranks.zero_stage) or layers. while_sampling: on a "
          "GPU both go to the host's memory after the updates of each step, and come back for the next ones. With "
          "rollout.sleep_while_training, keys and values then have their room. The numbers are the same.")
      .no_effect(
          kInTrain, [rests](const auto& k) { return rests(k) && !may_be_gpu(k.config.model.device); },
          "while_sampling moves numbers of a GPU, and model.device is the CPU")
      .no_effect(
          kInTrain,
          [rests](const auto& k) {
            return rests(k) && may_be_gpu(k.config.model.device) && !k.config.rollout.sleep_while_training;
          },
          "keys and values stay on the GPU during updates, which need the state too, so while_sampling gives no room: set "
          "rollout.sleep_while_training = true as well")
      .no_effect(kInSft, rests, "sft does not sample completions to learn from, and while_sampling waits for that");
}

template <class Keys, class Optim>
void describe_momentum_and_8bit(Keys& keys, const OptimizerRules<Optim>& rules) {
  const auto no_momentum = rules.unless(OptimizerName::kSgd, OptimizerName::kMuon);
  keys.compared("momentum", &OptimConfig::momentum, "Decay rate of the momentum of sgd and muon. null: 0 and 0.95.")
      .at_least(0)
      .below(1)
      .no_effect(rules.when, no_momentum, rules.why());
  keys.compared("nesterov", &OptimConfig::nesterov,
                "Nesterov's form of the momentum. null: false for sgd, true for muon. sgd needs a momentum for it.")
      .no_effect(rules.when, no_momentum, rules.why());
  keys.compared("dampening", &OptimConfig::dampening,
                "The gradient counts 1 - dampening times in sgd's momentum, from the second update on.")
      .at_least(0)
      .at_most(1)
      .no_effect(rules.when, rules.unless(OptimizerName::kSgd), rules.why());
  keys.compared("ns_steps", &OptimConfig::ns_steps, "Steps of the Newton-Schulz iteration of muon.")
      .at_least(1)
      .at_most(99)
      .no_effect(rules.when, rules.unless(OptimizerName::kMuon), rules.why());
  keys.compared("adjust_lr_fn", &OptimConfig::adjust_lr_fn,
                "Factor of muon's learning rate for a matrix of A rows and B columns. original: sqrt(max(1, A/B)). "
                "match_rms_adamw: 0.2 sqrt(max(A, B)), with which the learning rate and weight decay of adamw fit.")
      .no_effect(rules.when, rules.unless(OptimizerName::kMuon), rules.why());
  keys.compared("min_8bit_size", &OptimConfig::min_8bit_size,
                "Parameters with fewer numbers have moments in full with adamw_8bit.")
      .at_least(0)
      .no_effect(rules.when, rules.unless(OptimizerName::kAdamW8Bit), rules.why());
  keys.compared("quantize_embeddings", &OptimConfig::quantize_embeddings,
                "Moments of 8 bits for embeddings too, as bitsandbytes has them by itself. false: in full, as "
                "transformers' Trainer sets it. The head counts as one if it is tied to them.")
      .no_effect(rules.when, rules.unless(OptimizerName::kAdamW8Bit), rules.why());
}

// As in transformers.Adafactor, with the values that its Trainer sets.
template <class Keys, class Optim>
void describe_adafactor(Keys& keys, const OptimizerRules<Optim>& rules) {
  const auto other = rules.unless(OptimizerName::kAdafactor);
  keys.compared("scale_parameter", &OptimConfig::scale_parameter,
                "Multiply adafactor's learning rate by the root mean square of the parameter.")
      .no_effect(rules.when, other, rules.why());
  keys.compared("relative_step", &OptimConfig::relative_step,
                "Learning rate min(0.01, 1/sqrt(update)) for adafactor, instead of lr and its schedule.")
      .no_effect(rules.when, other, rules.why());
  keys.compared("warmup_init", &OptimConfig::warmup_init,
                "With relative_step: 1e-6 times the update's number instead of 0.01.")
      .no_effect(rules.when, other, rules.why())
      .no_effect(
          rules.when, [optim = rules.optim](const auto& k) { return !optim(k.config).relative_step; },
          rules.table + ".relative_step is false");
  keys.compared("clip_threshold", &OptimConfig::clip_threshold,
                "Largest root mean square of adafactor's step, before the learning rate.")
      .above(0)
      .no_effect(rules.when, other, rules.why());
  keys.compared("decay_rate", &OptimConfig::decay_rate,
                "Exponent of adafactor's second moment: at update t the new gradient counts t^decay_rate.")
      .at_most(0)
      .no_effect(rules.when, other, rules.why());
  keys.compared("adafactor_eps", &OptimConfig::adafactor_eps,
                "Two numbers: what adafactor adds to the squared gradient, and the least root mean square of a "
                "parameter for scale_parameter.")
      .above(0)
      .items(2)
      .no_effect(rules.when, other, rules.why());
  keys.compared("adafactor_beta1", &OptimConfig::adafactor_beta1,
                "Decay rate of a first moment of adafactor's steps. null: it has none.")
      .at_least(0)
      .below(1)
      .no_effect(rules.when, other, rules.why());
}

template <class Keys>
void describe_groups(Keys& keys, const std::string& table) {
  keys.compared(
      "groups", &OptimConfig::groups,
      "Parameters with settings of their own, a table for each group: [" + table +
          ".groups.embeddings] match = \"embed_tokens|lm_head\", freeze = true. match is a regular expression that is"
          " looked for in the parameters' Hugging Face names; the first that matches counts. A group may set lr or "
          "lr_scale (a factor of lr), weight_decay, optimizer (adamw or muon, where optimizer is muon) or freeze. "
          "With match alone it keeps its parameters out of the groups behind it.");
}

// `optim`: the table's struct in a config. `when`: the commands that read it. `verl_lr`: verl's default, as JSON.
template <class Catalog, class Optim>
void describe_optim_section(Catalog& catalog, const std::string& table, Optim optim, Uses when,
                            const std::string& verl_lr) {
  auto keys = catalog.table(table, "The optimizer and the learning-rate schedule.", optim);
  if ((when & kInSft) == 0) keys.unread_by(kInSft);
  const OptimizerRules<Optim> rules{optim, table, when};
  describe_optimizer(keys, rules, verl_lr);
  describe_master_weights(keys, rules);
  describe_offload(keys, rules);
  describe_momentum_and_8bit(keys, rules);
  describe_adafactor(keys, rules);
  const ScheduleRules<Optim> schedule{optim, table};
  describe_schedule<OptimConfig>(keys, schedule, when);
  describe_groups(keys, table);
  auto metric = catalog.table(table + ".lr_metric", "How reduce_lr_on_plateau and greedy follow validations.",
                              [optim](auto& run) -> LrMetricConfig& { return optim(run).lr_metric; });
  if ((when & kInSft) == 0) metric.unread_by(kInSft);
  metric.no_effect(when, schedule.unless(LrSchedule::kReduceOnPlateau, LrSchedule::kGreedy), schedule.why());
  describe_lr_metric(metric, schedule, when);
}

#endif  // MORTISE_CONFIG_RECORDS

}  // namespace mortise
