// `mortise plugin eval` for each kind: reads the inputs, makes the plugin, calls it, writes the outputs.
#include "plugin_eval.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine_parts.h"
#include "eval_columns.h"
#include "eval_tensors.h"
#include "foundation/base/text.h"
#include "foundation/batch/token_weight.h"
#include "foundation/metrics/registry.h"
#include "plugin/host/kinds/advantage_estimator.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "plugin/host/params.h"
#include "plugin/pack/tier.h"
#include "plugin/worker/isolated.h"

namespace mortise {
namespace {

// The aggregation gives the weights of tokens, and an estimator of the KL masks nothing without a mask.
using LossWeight = Computed<column::Weight>;
using MaskMayLack = Lacking<column::ResponseMask>;

constexpr std::string_view kAggregationKeys[] = {"loss_agg_mode", "loss_agg_rows", "loss_scale_factor",
                                                 "loss_scale_by_rows"};

bool is_aggregation_key(std::string_view key) {
  return std::find(std::begin(kAggregationKeys), std::end(kAggregationKeys), key) != std::end(kAggregationKeys);
}

Json metrics_json(const MetricSet& metrics) {
  Json out = Json::object();
  for (const MetricValue& metric : metrics.values()) out[metric.name] = metric.value;
  return out;
}

Error bad_setting(const std::string& key, std::string what) {
  return {ErrorKind::kConfig, std::move(what), "--set " + key, "`mortise plugin eval --help`"};
}

// The aggregation of losses. By default the mode that the loss declares, and verl's normaliser.
Result<TokenWeightOptions> aggregation(const PluginInfo& info, const PluginEval& eval, int64_t width) {
  TokenWeightOptions options;
  options.mode = TRY(parse_loss_agg_mode(default_loss_agg_mode(info)));
  options.loss_scale_factor = static_cast<double>(width);
  options.loss_scale_by_rows = false;
  for (const auto& [key, text] : eval.settings) {
    if (key == "loss_agg_mode") {
      options.mode = TRY(parse_loss_agg_mode(text));
    } else if (key == "loss_agg_rows") {
      options.rows = TRY(parse_loss_agg_rows(text));
    } else if (key == "loss_scale_factor" && text != "null" && text != "none") {
      const auto factor = parse_f64(text);
      if (!factor || *factor <= 0) return bad_setting(key, "must be a number above 0, is " + quote(text));
      options.loss_scale_factor = *factor;
    } else if (key == "loss_scale_by_rows") {
      if (text != "true" && text != "false") return bad_setting(key, "must be true or false, is " + quote(text));
      options.loss_scale_by_rows = text == "true";
    }
  }
  return options;
}

Result<std::vector<float>> loss_weights(const PluginInfo& info, const PluginEval& eval, const EvalTensors& in,
                                        std::span<const uint8_t> mask, std::span<const float> is_weights) {
  const TokenWeightOptions options = TRY(aggregation(info, eval, in.num_columns()));
  if (options.mode == LossAggMode::kPromptMean) TRY(in.need_groups("loss_agg_mode prompt-mean"));
  if (info.coupling == Coupling::kGroup) TRY(in.need_groups("policy_loss " + info.name));
  const Layout layout = in.layout();
  std::vector<float> weight(in.num_tokens());
  const UpdateCounts counts = count_update(layout.row_offsets, mask, layout.group_index);
  TRY(token_weights(options, counts, layout.row_offsets, mask, layout.group_index, weight));
  if (!info.consumes_stage(column::RolloutIsWeights::name)) {
    for (size_t t = 0; t < is_weights.size(); ++t) weight[t] *= is_weights[t];
  }
  return weight;
}

}  // namespace

Result<Json> plugin_params(const PluginInfo& info, const PluginEval& eval, bool (*is_engine_key)(std::string_view)) {
  Json params = Json::object();
  for (const auto& [key, text] : eval.settings) {
    const ParamInfo* param = info.find_param(key);
    if (param == nullptr) {
      if (!is_engine_key(key)) params[key] = text;
      continue;
    }
    auto value = parse_param_text(*param, text);
    if (!value.ok()) {
      value.error().where = "--set " + key;
      return std::move(value).error();
    }
    params[key] = *std::move(value);
  }
  return params;
}

namespace {

RunKey run_key(const PluginEval& eval) {
  RunKey key;
  key.seed = eval.seed;
  key.call_timeout_ms = eval.timeout_ms;
  return key;
}

Result<Json> eval_policy_loss(PluginRegistry& registry, const PluginEval& eval) {
  const PluginRef ref = TRY(registry.find("policy_loss", eval.name));
  const Json params = TRY(plugin_params(*ref.plugin, eval, is_aggregation_key));
  PolicyLoss loss = TRY(PolicyLoss::create(registry, eval.name, params, run_key(eval), isolated(eval.isolation)));
  EvalTensors in = TRY(EvalTensors::open(eval.inputs, column::LogProb::name));
  auto columns = TRY(read_columns<mortise_policy_loss_in>(in, LossWeight(), Lacking<>()));
  TRY(in.all_used());
  auto& is_weights = columns.get<column::RolloutIsWeights>();
  const auto& mask = columns.get<column::ResponseMask>();
  const auto& weight = columns.get<column::Weight>() = TRY(loss_weights(loss.info(), eval, in, mask, is_weights));
  if (!loss.info().consumes_stage(column::RolloutIsWeights::name)) is_weights.clear();

  StepView input;
  input.layout = in.layout();
  input.step = input.update_index = eval.step;
  columns.show(input);
  std::vector<float> token_loss(in.num_tokens()), grad(in.num_tokens()),
      grad_entropy(columns.get<column::Entropy>().size());
  MetricSet metrics;
  TRY(loss.compute(input, {token_loss, grad, grad_entropy}, &metrics));

  double total = 0;
  for (size_t t = 0; t < token_loss.size(); ++t)
    total += static_cast<double>(weight[t]) * static_cast<double>(token_loss[t]);
  const float scalar[] = {static_cast<float>(total)};
  const std::vector<int64_t> shape = {in.num_rows(), in.num_columns()};
  std::vector<TensorView> out = {view_of<float>("loss", scalar), view_of<float>("grad_log_prob", grad, shape)};
  if (!grad_entropy.empty()) out.push_back(view_of<float>("grad_entropy", grad_entropy, shape));
  TRY(write_eval_outputs(eval.outputs, out));
  return metrics_json(metrics);
}

Result<Json> eval_kl_estimator(PluginRegistry& registry, const PluginEval& eval) {
  const PluginRef ref = TRY(registry.find("kl_estimator", kl_base_name(eval.name)));
  const Json params = TRY(plugin_params(*ref.plugin, eval, is_no_engine_key));
  KlEstimator estimator =
      TRY(KlEstimator::create(registry, eval.name, params, run_key(eval), isolated(eval.isolation)));
  EvalTensors in = TRY(EvalTensors::open(eval.inputs, column::LogProb::name));
  auto columns = TRY(read_columns<mortise_kl_estimator_in>(in, LossWeight(), MaskMayLack()));
  TRY(in.all_used());
  columns.get<column::Weight>().assign(in.num_tokens(), 1.0F);  // the gradient is that of the sum
  std::vector<float> kl(in.num_tokens()), grad(in.num_tokens());
  MetricSet metrics;
  StepView input;
  input.layout = in.layout();
  input.step = eval.step;
  columns.show(input);
  TRY(estimator.compute(input, {kl, grad}, &metrics));
  const std::vector<int64_t> shape = {in.num_rows(), in.num_columns()};
  const TensorView out[] = {view_of<float>("kl", kl, shape), view_of<float>("grad_log_prob", grad, shape)};
  TRY(write_eval_outputs(eval.outputs, out));
  return metrics_json(metrics);
}

Result<Json> eval_advantage_estimator(PluginRegistry& registry, const PluginEval& eval) {
  const PluginRef ref = TRY(registry.find("advantage_estimator", eval.name));
  const Json params = TRY(plugin_params(*ref.plugin, eval, is_no_engine_key));
  AdvantageEstimator estimator =
      TRY(AdvantageEstimator::create(registry, eval.name, params, run_key(eval), isolated(eval.isolation)));
  EvalTensors in = TRY(EvalTensors::open(eval.inputs, column::TokenLevelRewards::name));
  auto columns = TRY(read_columns<mortise_advantage_estimator_in>(in, Computed<>(), Lacking<>()));
  const auto rewards = TRY(in.optional_matrix("rewards"));
  auto reward_weights = TRY(in.optional_vector("reward_weights"));
  if (reward_weights.empty()) reward_weights.assign(static_cast<size_t>(rewards.num_columns), 1.0F);
  if (static_cast<int64_t>(reward_weights.size()) != rewards.num_columns) {
    return Error{ErrorKind::kData,
                 fmt::format("'in.reward_weights' has {} elements, 'in.rewards' has {} columns", reward_weights.size(),
                             rewards.num_columns),
                 eval.inputs.string(), "give a weight for every column"};
  }
  TRY(in.all_used());
  if ((ref.plugin->flags & MORTISE_FLAG_COMPARES_GROUP) != 0)
    TRY(in.need_groups("advantage_estimator " + ref.plugin->name));
  std::vector<float> advantages(in.num_tokens()), returns(in.num_tokens());
  MetricSet metrics;
  AdvantageInput input{{}, rewards.values, reward_weights};
  input.columns.layout = in.layout();
  input.columns.step = eval.step;
  columns.show(input.columns);
  TRY(estimator.compute(input, {advantages, returns}, &metrics));
  const std::vector<int64_t> shape = {in.num_rows(), in.num_columns()};
  const TensorView out[] = {view_of<float>("advantages", advantages, shape), view_of<float>("returns", returns, shape)};
  TRY(write_eval_outputs(eval.outputs, out));
  return metrics_json(metrics);
}

struct EvalOfKind {
  std::string_view kind;
  Result<Json> (*run)(PluginRegistry&, const PluginEval&);
  const char* help;
  std::string (*columns)(bool optional) = nullptr;  // fills {in} and {optional} of the help
};
template <class In, class C, class L>
std::string names_of(bool optional) {
  return column_names<In>(optional, C(), L());
}
constexpr EvalOfKind kEvals[] = {
    {"policy_loss", eval_policy_loss,
     R"(  policy_loss          in: {in}
                       optional: {optional}, group_index (B,) I64
                       out: loss, grad_log_prob (and grad_entropy if entropy is given)
                       --set loss_agg_mode=token-mean|token-sum|seq-mean-token-mean|seq-mean-token-sum|
                       seq-mean-token-sum-norm|prompt-mean, loss_agg_rows=nonempty|all, loss_scale_factor=X (default T),
                       loss_scale_by_rows=true|false (default false). Default mode: the loss's own, else
                       seq-mean-token-mean for losses coupled by row, token-mean for the others.
                       Parameters that you do not set have the defaults of the plugin's table, which are verl's. A
                       run uses the paper's value (published_clip_ratio_low of gspo). Here, pass it with --set.
)",
     names_of<mortise_policy_loss_in, LossWeight, Lacking<>>},
    {"kl_estimator", eval_kl_estimator,
     R"(  kl_estimator         in: {in}
                       optional: {optional}
                       out: kl, grad_log_prob = d sum(kl) / d log_prob. NAME+ = value of NAME, gradient of k2
)",
     names_of<mortise_kl_estimator_in, LossWeight, MaskMayLack>},
    {"advantage_estimator", eval_advantage_estimator,
     R"(  advantage_estimator  in: {in}
                       optional: {optional},
                       group_index, rewards (B,K), reward_weights (K,)
                       out: advantages, returns
)",
     names_of<mortise_advantage_estimator_in, Computed<>, Lacking<>>},
    {"reward", eval_reward,
     R"(  reward               JSONL rows {"prompt","completion", columns...} -> {"reward": number|null}; optional
                       prompt_token_ids, completion_token_ids, finish_reason, group_index; a row that failed has "error".
                       It runs in workers as in a run: see --isolation
)"}};

// A pack may be linked with libtorch, and a reward in this process may score with a model.
bool needs_libtorch(const PluginRegistry& registry, const PluginEval& eval) {
  const auto ref = registry.find(eval.kind, eval.kind == "kl_estimator" ? kl_base_name(eval.name) : eval.name);
  if (!ref.ok()) return false;
  return ref->pack->tier == kTorchLocked || (ref->plugin->flags & MORTISE_FLAG_NEEDS_ENGINE) != 0 ||
         (eval.kind == "reward" && eval.isolation.mode == Isolation::kNone);
}

}  // namespace

Result<Json> eval_plugin(PluginRegistry& registry, const PluginEval& eval) {
  const auto* const found = std::ranges::find(kEvals, eval.kind, &EvalOfKind::kind);
  if (found != std::end(kEvals)) {
    if (needs_libtorch(registry, eval)) TRY(need_libtorch());
    return found->run(registry, eval);
  }
  return Error{ErrorKind::kConfig, fmt::format("a {} has no tensors to be evaluated on", eval.kind), "mortise plugin",
               "`mortise plugin check` tries every kind; `mortise generate` samples"};
}

std::string plugin_eval_help() {
  std::string help = R"(
Inputs and outputs are safetensors files. Tensors of rows are (B,T), or (B,) for one value a row; `in.X` is read,
`expected.X` is ignored, X is written. Metrics of the plugin go to standard output as {"metrics":{...}}.

)";
  for (const EvalOfKind& one : kEvals) {
    if (one.columns == nullptr)
      help += one.help;
    else
      help += fmt::format(fmt::runtime(one.help), fmt::arg("in", one.columns(false)),
                          fmt::arg("optional", one.columns(true)));
  }
  return help;
}

}  // namespace mortise
