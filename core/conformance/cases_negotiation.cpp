// Negotiation cases: hosts older and newer than the plugin's, and all that may be missing.
#include "conformance/reward_call.h"

#include <fmt/core.h>
#include "conformance/token_batch.h"
#include "conformance/workload.h"
#include "foundation/base/text.h"

namespace mortise::check {
namespace {

constexpr size_t kTail = 256;

// create and the work on a host that lacks something: refusing with a status and a text is fine, dying is not.
Result<> work_or_refuse(const Subject& subject, const HostShape& shape) {
  const mortise_host* host = make_host(shape);
  SlotCall made;
  auto instance = subject.create(host, &made);
  if (!instance.ok()) {
    TRY(judge(made, "create"));
    return {};
  }
  auto done = do_work(*instance);
  if (done.ok() || is_not_applicable(done.error())) return {};
  // A failure with status and text is an answer too, except one that judge() refuses.
  if (done.error().what.find(" failed: ") != std::string::npos) return {};
  return std::move(done).error();
}

Result<> older_host(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  return {};
}

Result<> older_structs(Subject& subject) {
  TRY(live_once(subject));
  return {};
}

Result<> newer_host(Subject& subject) {
  const auto usual = TRY(live_once(subject));
  HostShape shape;
  shape.tail_bytes = kTail;
  const Instance instance = TRY(subject.create(make_host(shape)));
  const auto newer = TRY(do_work(instance));
  return demand_same(usual, newer, "on a newer host the results differ");
}

Result<> newer_structs(Subject& subject) {
  const auto usual = TRY(live_once(subject));
  WorkShape shape;
  shape.tail_bytes = kTail;
  const Instance instance = TRY(subject.create(make_host()));
  const auto newer = TRY(do_work(instance, shape));
  return demand_same(usual, newer, "with inputs of a newer host the results differ");
}

Result<> optional_services(Subject& subject) {
  HostShape shape;
  shape.optional = false;
  return work_or_refuse(subject, shape);
}

Result<> no_extensions(Subject& subject) {
  HostShape shape;
  shape.extensions = false;
  return work_or_refuse(subject, shape);
}

Result<> no_scratch(Subject& subject) {
  HostShape shape;
  shape.memory = false;
  return work_or_refuse(subject, shape);
}

Result<> no_params(Subject& subject) {
  if (subject.info().params.empty()) return not_applicable("it declares no parameters");
  HostShape shape;
  shape.params = false;
  return work_or_refuse(subject, shape);
}

Result<> declared_params(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TRY(do_work(instance));
  if (host_log().undeclared.empty()) return {};
  return broken("it asks for a parameter that it did not declare so: " + host_log().undeclared.front());
}

Result<> text_params(Subject& subject) {
  bool has_text = false;
  for (const ParamInfo& param : subject.info().params) has_text = has_text || param.type == ParamType::kText;
  if (!has_text) return not_applicable("it declares no text parameters");
  TRY(live_once(subject));  // the host's texts end at an unreadable page
  return {};
}

Result<> unknown_extension(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  for (const char* id : {"nobody.knows/1", "mortise.state/999", "", "mortise.generate/1/"}) {
    if (instance.extension(id) != nullptr)
      return broken(fmt::format("get_extension({}) gives a table, though there is no such extension", quote(id)));
  }
  return {};
}

Result<> optional_outputs(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  if (subject.kind() == kReward) {
    const RewardBatch rows = usual_rows(subject);
    RewardShape bare;
    bare.row_value = bare.token_rewards = false;
    const RewardResult a = TRY(reward_ok(instance, rows, bare)), b = TRY(reward_ok(instance, rows));
    return demand_same(a.rewards, b.rewards, "rewards differ with what else the host takes");
  }
  TokenCall value_only;
  value_only.gradient = false;
  const TokenBatch batch = usual_batch();
  const TokenResult a = TRY(tokens_ok(instance, batch)), b = TRY(tokens_ok(instance, batch, value_only));
  return compare(instance, batch, a, b, 1e-6, "without a gradient asked for");
}

Result<> required_inputs(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TRY(tokens_ok(instance, usual_batch()));
  return {};
}

Result<> all_inputs(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TokenCall everything;
  everything.optional_inputs = true;
  everything.entropy_gradient = subject.kind() == kPolicyLoss;
  TRY(tokens_ok(instance, usual_batch(), everything));
  return {};
}

constexpr Case kNegotiationCases[] = {
    {"negotiation.older_host", "R3", kEvery, "it reads no slot behind the end of the host's table", older_host},
    {"negotiation.newer_host", "R3", kEvery, "it ignores slots that it does not know", newer_host},
    {"negotiation.older_structs", "R3", kEvery, "it reads nothing behind struct_size of its inputs", older_structs},
    {"negotiation.newer_structs", "R3", kEvery, "it ignores fields that it does not know", newer_structs},
    {"negotiation.optional_services", "R30", kEvery, "it tests optional services for null before use",
     optional_services},
    {"negotiation.no_extensions", "R9", kEvery, "it works, or fails with a text, if the host has no extensions",
     no_extensions},
    {"negotiation.no_scratch", "R30", kEvery, "it handles null from alloc", no_scratch},
    {"negotiation.unknown_extension", "R9", kEvery, "get_extension gives null for ids that it does not know",
     unknown_extension},
    {"negotiation.declared_params", "R31", kEvery, "it reads the parameters that it declared, with their type",
     declared_params},
    {"negotiation.no_params", "R18", kEvery, "create without its parameters fails with a status and a text", no_params},
    {"negotiation.text_params", "R7", kEvery, "it reads text parameters by their size", text_params},
    {"negotiation.optional_outputs", "R30", kLosses | kReward, "outputs may be null, and the others do not change",
     optional_outputs},
    {"negotiation.required_inputs", "R30", kTokens, "it needs no more inputs than it requires", required_inputs},
    {"negotiation.all_inputs", "R30", kTokens, "it ignores inputs that it did not ask for", all_inputs},
};

}  // namespace

std::span<const Case> negotiation_cases() { return kNegotiationCases; }

}  // namespace mortise::check
