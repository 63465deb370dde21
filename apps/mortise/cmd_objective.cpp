// mortise objective eval: the actor's whole objective (or the critic's) as configured, on tensors of a file.
#include <fmt/core.h>
#include <boost/program_options.hpp>
#include <cmath>

#include "command_line.h"
#include "commands.h"
#include "config/check.h"
#include "config/load.h"
#include "eval_columns.h"
#include "eval_tensors.h"
#include "foundation/base/text.h"
#include "learn/objective/actor_objective.h"
#include "learn/objective/value_objective.h"
#include "train/run/run_parts.h"
#include "unknown_word.h"

namespace mortise {

namespace {

namespace po = boost::program_options;

struct ObjectiveCommand {
  LoadedConfig config;
  Path inputs, outputs;
};

// The sum as float32. It may overflow although no token's part does.
Result<float> loss_of(double sum, const Path& inputs) {
  const auto loss = static_cast<float>(sum);
  if (std::isfinite(loss)) return loss;
  if (std::isnan(sum)) {
    return Error{ErrorKind::kNumerics, "the loss is not a number (nan)", inputs.string(),
                 "look for log-probs that are infinite"};
  }
  return Error{ErrorKind::kNumerics, fmt::format("the loss is {}, too large for float32", format_f64(sum)),
               inputs.string(), "look for advantages, values or returns of great size"};
}

std::vector<TensorView> padded_outputs(const float& loss, const std::string& grad_name, const std::vector<float>& grad,
                                       const EvalTensors& in) {
  TensorView scalar{"loss", DType::kF32, {}, std::as_bytes(std::span(&loss, 1))};
  return {scalar, view_of<float>(grad_name, grad, {in.num_rows(), in.num_columns()})};
}

Result<> eval_critic(const ObjectiveCommand& command, MetricSet& metrics) {
  EvalTensors in = TRY(EvalTensors::open(command.inputs, "vpreds"));
  const auto vpreds = TRY(in.tokens("vpreds"));
  const auto values = TRY(in.tokens(column::Values::name));
  const auto returns = TRY(in.tokens(column::Returns::name));
  const auto mask = TRY(in.mask(column::ResponseMask::name, true));
  TRY(in.all_used());
  const std::pair<std::string_view, std::span<const float>> finite[] = {
      {"vpreds", vpreds}, {column::Values::name, values}, {column::Returns::name, returns}};
  for (const auto& [name, numbers] : finite)
    TRY(in.check_values(name, numbers, mask, EvalTensors::Infinities::kRefused));
  const RunConfig& config = command.config.config;
  TokenWeightOptions options;
  options.mode = config.critic.loss_agg_mode;
  if (options.mode == LossAggMode::kPromptMean) TRY(in.need_groups("loss_agg_mode prompt-mean"));
  options.rows = config.actor.loss_agg_rows;
  options.loss_scale_factor = config.actor.loss_scale_factor.value_or(static_cast<double>(in.num_columns()));
  options.loss_scale_by_rows = config.actor.loss_scale_by_rows;
  const Layout layout = in.layout();
  std::vector<float> weight(in.num_tokens()), grad(in.num_tokens());
  const UpdateCounts counts = count_update(layout.row_offsets, mask, layout.group_index);
  TRY(token_weights(options, counts, layout.row_offsets, mask, layout.group_index, weight));
  StepView view;
  view.layout = layout;
  view.set<column::Values>(values).set<column::Returns>(returns);
  view.set<column::ResponseMask>(mask).set<column::Weight>(weight);
  const double value_loss = value_objective(vpreds, view, config.critic.cliprange_value, grad, metrics);
  metrics.add_mean("critic/vf_loss", value_loss, 1.0);
  const float loss = TRY(loss_of(value_loss, command.inputs));
  return write_eval_outputs(command.outputs, padded_outputs(loss, "grad_vpreds", grad, in));
}

// Those of a policy loss. The aggregation gives the weights of tokens.
using ActorColumns = EvalColumns<mortise_policy_loss_in>;
using ActorComputed = Computed<column::Weight>;
using ActorLacking = Lacking<column::OldLogProb>;

Result<ActorColumns> read_actor_columns(EvalTensors& in) {
  ActorColumns out = TRY(read_columns<mortise_policy_loss_in>(in, ActorComputed(), ActorLacking()));
  TRY(in.all_used());
  // Masks and corrections would hide NaN. Clamps handle infinite log-probs.
  const std::vector<uint8_t>& mask = out.get<column::ResponseMask>();
  const auto check = [&]<class C>(const EvalColumn<C>& column) -> Result<> {
    using Infinities = EvalTensors::Infinities;
    const bool is_log_prob = C::name.ends_with(column::LogProb::name);
    if constexpr (std::is_same_v<typename C::Value, float>)
      TRY(in.check_values(C::name, column.values, mask, is_log_prob ? Infinities::kAllowed : Infinities::kRefused));
    return {};
  };
  TRY(out.visit(check));
  auto& old_log_prob = out.get<column::OldLogProb>();
  if (old_log_prob.empty()) old_log_prob = out.get<column::LogProb>();  // one update over the batch: the ratio is 1
  return out;
}

// Empty if the term has no aggregation of its own.
Result<std::vector<float>> weights_of(const std::optional<TokenWeightOptions>& aggregation, const Layout& layout,
                                      std::span<const uint8_t> mask) {
  std::vector<float> weight(aggregation ? mask.size() : 0);
  if (!aggregation) return weight;
  const UpdateCounts counts = count_update(layout.row_offsets, mask, layout.group_index);
  TRY(token_weights(*aggregation, counts, layout.row_offsets, mask, layout.group_index, weight));
  return weight;
}

Result<> check_groups(const ActorObjective& objective, const EvalTensors& in) {
  const std::pair<std::string_view, std::optional<TokenWeightOptions>> terms[] = {
      {"loss_agg_mode", objective.aggregation()},
      {"kl_agg_mode", objective.kl_aggregation()},
      {"entropy_agg_mode", objective.entropy_aggregation()}};
  for (const auto& [key, aggregation] : terms) {
    if (aggregation && aggregation->mode == LossAggMode::kPromptMean)
      TRY(in.need_groups(fmt::format("{} prompt-mean", key)));
  }
  return {};
}

Result<> eval_actor(const ObjectiveCommand& command, MetricSet& metrics) {
  const RunConfig& config = command.config.config;
  PluginRegistry registry = TRY(open_registry(command.config));
  constexpr std::string_view kKinds[] = {"policy_loss", "kl_estimator"};
  TRY(check_plugins(registry, command.config, kKinds));
  RunKey key;
  key.seed = static_cast<uint64_t>(config.trainer.seed);
  ActorObjective objective = TRY(ActorObjective::create(registry, command.config, key));
  if (objective.uses_full_kl())
    return Error{ErrorKind::kConfig,
                 "'actor.kl_loss_type' is full, but a file of log-probs does not hold the whole vocabulary",
                 command.config.where("actor.kl_loss_type"),
                 "use an estimator here; `mortise train` computes the KL over the whole vocabulary"};
  EvalTensors in = TRY(EvalTensors::open(command.inputs, column::LogProb::name));
  ActorColumns columns = TRY(read_actor_columns(in));
  auto& mask = columns.get<column::ResponseMask>();
  auto& old_log_prob = columns.get<column::OldLogProb>();
  const auto& rollout_log_prob = columns.get<column::RolloutLogProb>();
  TRY(check_groups(objective, in));
  if (objective.policy_loss().coupling() == Coupling::kGroup)
    TRY(in.need_groups("policy_loss " + config.actor.policy_loss.loss_mode));

  const Layout layout = in.layout();
  const RolloutCorrection& correction = objective.correction();
  if ((correction.is_active() || correction.is_bypass()) && rollout_log_prob.empty())
    return Error{ErrorKind::kData,
                 fmt::format("the input '{}' is missing, and algorithm.rollout_correction needs it",
                             column::RolloutLogProb::name),
                 command.inputs.string(), "add it, or remove the table"};
  if (correction.is_bypass()) {
    old_log_prob = rollout_log_prob;
  } else if (correction.is_active()) {
    CorrectedBatch corrected = correction.apply({layout.row_offsets, mask, old_log_prob, rollout_log_prob}, &metrics);
    mask = std::move(corrected.mask);
    if (auto& weights = columns.get<column::RolloutIsWeights>(); weights.empty())
      weights = std::move(corrected.weights);
  }
  std::vector<float> grad(in.num_tokens()), grad_entropy(columns.get<column::Entropy>().size());
  columns.get<column::Weight>() = TRY(weights_of(objective.aggregation(), layout, mask));
  const std::vector<float> kl_weight = TRY(weights_of(objective.kl_aggregation(), layout, mask)),
                           entropy_weight = TRY(weights_of(objective.entropy_aggregation(), layout, mask));
  StepView input;
  input.layout = layout;
  columns.show(input);
  input.set<column::KlWeight>(kl_weight).set<column::EntropyWeight>(entropy_weight);
  auto evaluated = objective.evaluate(input, {grad, grad_entropy}, &metrics);
  if (!evaluated.ok() && evaluated.error().where.empty()) evaluated.error().where = command.inputs.string();
  const ObjectiveSums sums = TRY(std::move(evaluated));
  const auto tokens = static_cast<double>(sums.num_tokens);
  metrics.add_mean("actor/pg_loss", sums.pg_loss, 1.0);
  if (objective.uses_kl_loss()) {
    metrics.add_mean("actor/kl_loss", sums.kl_loss, 1.0);
    metrics.add("kl", sums.kl, tokens);
  }
  if (!grad_entropy.empty()) metrics.add("entropy", sums.entropy, tokens);
  const float loss = TRY(loss_of(sums.loss, command.inputs));
  std::vector<TensorView> outputs = padded_outputs(loss, "grad_log_prob", grad, in);
  if (!grad_entropy.empty())
    outputs.push_back(view_of<float>("grad_entropy", grad_entropy, {in.num_rows(), in.num_columns()}));
  return write_eval_outputs(command.outputs, outputs);
}

Result<int> run_objective(Arguments args, const po::options_description& options) {
  const std::vector<std::string> commands = {"eval"};
  const bool is_word = !args.empty() && !args[0].starts_with('-');
  if (is_word && args[0] != "eval") return unknown_word("command", args[0], commands, "mortise objective");
  const po::variables_map values = TRY(parse_words(args, options, "mortise objective"));
  const std::vector<std::string> words = words_of(values);
  if (words.empty()) return missing_command(commands, "mortise objective");
  if (words[0] != "eval") return unknown_word("command", words[0], commands, "mortise objective");
  TRY(check_distinct({"--inputs", values["inputs"].as<std::string>()},
                     {"--outputs", values["outputs"].as<std::string>()}, "mortise objective"));
  const std::vector<std::string> overrides(words.begin() + 1, words.end());
  const std::string file = values.count("config") != 0 ? values["config"].as<std::string>() : "";
  TRY(check_distinct({"--config", file}, {"--outputs", values["outputs"].as<std::string>()}, "mortise objective"));
  ObjectiveCommand command{TRY(load_config(default_env(), file, overrides)), values["inputs"].as<std::string>(),
                           values["outputs"].as<std::string>()};
  for (const std::string& note : command.config.notes) std::cerr << note << "\n";
  for (const Error& warning : TRY(check_config(command.config, ConfigUse::kObjective)))
    std::cerr << "warning: " << warning.to_string() << "\n";
  MetricSet metrics;
  TRY(values.count("critic") != 0 ? eval_critic(command, metrics) : eval_actor(command, metrics));
  Json out = Json::object();
  for (const MetricValue& metric : metrics.values()) out[metric.name] = metric.value;
  std::cout << dump_json(Json{{"metrics", out}}) << "\n";
  return 0;
}

}  // namespace

int cmd_objective(Arguments args) {
  po::options_description options("options", kHelpWidth);
  options.add_options()("help,h", "this text")("config", po::value<std::string>(),
                                               "TOML file; reads its tables algorithm, actor, critic and plugins")(
      "inputs", po::value<std::string>()->required(), "safetensors with tensors in.NAME, (B,T) or (B,)")(
      "outputs", po::value<std::string>()->required(), "safetensors to write: loss, grad_log_prob (grad_vpreds)")(
      "critic", "compute the value loss of the critic instead");
  if (wants_help(args)) {
    std::cout
        << "usage: mortise objective eval --config C.toml [key=value ...] --inputs F --outputs G [--critic]\n\n"
           "Computes policy loss, KL term and entropy bonus of a config on given rows, with the gradient by log_prob.\n"
           "Prints the metrics as JSON.\n\n"
           "Inputs:         "
        << column_names<mortise_policy_loss_in>(false, ActorComputed(), ActorLacking())
        << "\noptional:       " << column_names<mortise_policy_loss_in>(true, ActorComputed(), ActorLacking())
        << "\n                group_index; rollout_is_weights replaces the weights of the rollout correction\n"
           "with --critic:  vpreds, values, returns, response_mask\n\n"
        << options;
    return 0;
  }
  auto code = run_objective(args, options);
  return code.ok() ? *code : fail(code.error());
}

}  // namespace mortise
