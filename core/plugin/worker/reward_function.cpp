// Makes a reward in this process or in workers.
#include "plugin/worker/reward_function.h"

#include "foundation/base/text.h"
#include "parse/url.h"
#include "plugin/worker/local_reward.h"
#include "plugin/worker/reward_pool.h"

namespace mortise {
namespace {

// A config that a run has written lacks the logins of its URLs.
Result<> refuse_redacted(const PluginRef& ref, const nlohmann::ordered_json& params) {
  for (const auto& [key, value] : params.items()) {
    if (!value.is_string() || !parse::is_redacted(value.get_ref<const std::string&>())) continue;
    return Error{ErrorKind::kConfig, quote(key) + " is a URL whose login a run removed when it wrote its config",
                 ref.label(), "give the URL again, or the name of an environment variable that holds it: env:NAME"};
  }
  return {};
}

}  // namespace

Result<RewardOutput> RewardFunction::score(const ScoreRequest& request, const RewardBatch& rows, MetricSet* metrics) {
  TRY(begin(request));
  TRY(add(rows));
  return finish(metrics);
}

Result<std::unique_ptr<RewardFunction>> make_reward_function(PluginRegistry& registry, std::string_view name,
                                                             const nlohmann::ordered_json& params, const RunKey& key,
                                                             const IsolationOptions& options) {
  const PluginRef ref = TRY(registry.find(MORTISE_KIND_REWARD, name));
  TRY(refuse_redacted(ref, params));
  if (auto place = TRY(place_plugin(ref, params, options))) {
    InstanceIdentity identity = TRY(PluginInstance::identify(ref, params, key));
    return RewardPool::start(ref, std::move(identity), key, place->limits, place->pool);
  }
  return make_local_reward(TRY(Reward::create(registry, name, params, key)));
}

}  // namespace mortise
