// Calls the slots of a rollout backend, and checks each sequence before the sink gets it.
#include "plugin/host/kinds/rollout_backend.h"

#include <fmt/core.h>

#include <deque>

#include "mortise/kinds/rollout_backend.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/rollout_ledger.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {
namespace {

using Vtable = mortise_rollout_backend_vtable;

// Sampling options in the ABI's layout, with what they point to.
struct CSampling {
  mortise_sampling options = make_abi_struct<mortise_sampling>();
  std::vector<mortise_text> stop_strings;
  std::vector<int64_t> bad_word_lengths;
  std::vector<int64_t> bad_word_ids;
};

void fill(const Sampling& sampling, CSampling& to) {
  mortise_sampling& out = to.options;
  out.ignore_eos = sampling.ignore_eos ? 1 : 0;
  out.max_new_tokens = sampling.max_new_tokens;
  out.min_new_tokens = sampling.min_new_tokens;
  out.temperature = sampling.temperature;
  out.top_p = sampling.top_p;
  out.min_p = sampling.min_p;
  out.top_k = sampling.top_k;
  out.num_stop_ids = sampling.stop_ids.size();
  out.stop_ids = sampling.stop_ids.data();
  out.typical_p = sampling.typical_p;
  out.repetition_penalty = sampling.repetition_penalty;
  out.presence_penalty = sampling.presence_penalty;
  out.frequency_penalty = sampling.frequency_penalty;
  for (const std::string& text : sampling.stop_strings) to.stop_strings.push_back({text.data(), text.size()});
  for (const std::vector<int64_t>& word : sampling.bad_words) {
    to.bad_word_lengths.push_back(static_cast<int64_t>(word.size()));
    to.bad_word_ids.insert(to.bad_word_ids.end(), word.begin(), word.end());
  }
  out.num_stop_strings = to.stop_strings.size();
  out.stop_strings = to.stop_strings.data();
  out.num_bad_words = to.bad_word_lengths.size();
  out.bad_word_lengths = to.bad_word_lengths.data();
  out.bad_word_ids = to.bad_word_ids.data();
}

struct SinkContext {
  RolloutLedger* ledger;
  const RolloutSink* sink;
  std::string fault;
};

int32_t take_sequence(void* context, const mortise_rollout_sequence* given) noexcept {
  auto& state = *static_cast<SinkContext*>(context);
  if (!state.fault.empty()) return 1;
  try {
    const auto in = read_abi_struct(given);
    const auto size = static_cast<size_t>(in.num_ids < 0 || in.ids == nullptr ? 0 : in.num_ids);
    RolloutSequence sequence{
        in.request_id, in.sample_index, in.finish_reason, in.weight_version, {in.ids, size}, {}, {}, {}};
    if (in.log_prob != nullptr) sequence.log_prob = {in.log_prob, size};
    if (in.filtered_log_prob != nullptr) sequence.filtered_log_prob = {in.filtered_log_prob, size};
    if (in.experts != nullptr) sequence.experts = {in.experts, static_cast<size_t>(in.num_experts)};
    state.fault = state.ledger->take(sequence, in.num_ids != 0 && size == 0);
    if (!state.fault.empty()) return 1;
    return (*state.sink)(sequence) ? 0 : 1;
  } catch (const std::exception& e) {
    state.fault = std::string("could not be taken from: ") + e.what();
    return 1;
  }
}

}  // namespace

struct RolloutBackend::Ledger {
  RolloutLedger owed;
  int64_t step = 0;  // step of the last request: what an error of a later poll is about
};

RolloutBackend::RolloutBackend(PluginInstance instance, std::unique_ptr<Ledger> ledger)
    : instance_(std::move(instance)), ledger_(std::move(ledger)) {}
RolloutBackend::RolloutBackend(RolloutBackend&&) noexcept = default;
RolloutBackend& RolloutBackend::operator=(RolloutBackend&&) noexcept = default;
RolloutBackend::~RolloutBackend() = default;

Result<RolloutBackend> RolloutBackend::create(PluginRegistry& registry, std::string_view name,
                                              const nlohmann::ordered_json& params, const RunKey& key) {
  RolloutBackend made(TRY(PluginInstance::create(registry, MORTISE_KIND_ROLLOUT_BACKEND, name, params, key)),
                      std::make_unique<Ledger>());
  const auto vtable = vtable_of<Vtable>(made.instance_);
  TRY(check_slots(made.instance_, {{"set_version", vtable.set_version != nullptr},
                                   {"submit", vtable.submit != nullptr},
                                   {"poll", vtable.poll != nullptr}}));
  const int num_weight_slots =
      (vtable.begin_update != nullptr) + (vtable.update_weight != nullptr) + (vtable.end_update != nullptr);
  if (num_weight_slots != 0 && num_weight_slots != 3) {
    return made.instance_.error("create", 0, "its vtable has only part of begin_update, update_weight, end_update",
                                "offer all three or none");
  }
  return made;
}

Result<void> RolloutBackend::set_version(int64_t version) {
  const auto slot = catchable(vtable_of<Vtable>(instance_).set_version);
  TRY(instance_.call("set_version", 0, nullptr, {},
                     [&](mortise_call* call) { return slot(instance_.self(), call, version); }));
  return {};
}

bool RolloutBackend::holds_weights() const { return vtable_of<Vtable>(instance_).update_weight != nullptr; }

Result<void> RolloutBackend::begin_update(int64_t version) {
  const auto slot = catchable(vtable_of<Vtable>(instance_).begin_update);
  if (slot == nullptr) return instance_.error("begin_update", 0, "holds no weights", "ask holds_weights() first");
  TRY(instance_.call("begin_update", 0, nullptr, {},
                     [&](mortise_call* call) { return slot(instance_.self(), call, version); }));
  return {};
}

Result<void> RolloutBackend::update_weight(const WeightShard& shard) {
  const auto slot = catchable(vtable_of<Vtable>(instance_).update_weight);
  if (slot == nullptr) return instance_.error("update_weight", 0, "holds no weights", "ask holds_weights() first");
  TensorArgs args;
  const mortise_tensor* tensor = args.input(shard.data, shard.shape);
  TRY(instance_.call("update_weight", 0, nullptr, {}, [&](mortise_call* call) {
    return slot(instance_.self(), call, {shard.name.data(), shard.name.size()}, tensor, shard.global_shape.data(),
                shard.offset.data());
  }));
  return {};
}

Result<void> RolloutBackend::end_update() {
  const auto slot = catchable(vtable_of<Vtable>(instance_).end_update);
  if (slot == nullptr) return instance_.error("end_update", 0, "holds no weights", "ask holds_weights() first");
  TRY(instance_.call("end_update", 0, nullptr, {}, [&](mortise_call* call) { return slot(instance_.self(), call); }));
  return {};
}

Result<size_t> RolloutBackend::submit(std::span<const RolloutRequest> requests) {
  std::deque<CSampling> samplings;  // a deque, so that pointers remain valid
  std::deque<mortise_rollout_request> structs;
  std::vector<const mortise_rollout_request*> pointers;
  for (const RolloutRequest& request : requests) {
    auto& out = structs.emplace_back(make_abi_struct<mortise_rollout_request>());
    out.request_id = request.request_id;
    out.prompt_ids = request.prompt_ids.data();
    out.num_prompt_ids = static_cast<int64_t>(request.prompt_ids.size());
    out.num_samples = request.num_samples;
    out.first_row_id = request.first_row_id;
    out.seed = request.seed;
    out.step = request.step;
    CSampling& sampling = samplings.emplace_back();
    fill(*request.sampling, sampling);
    out.sampling = &sampling.options;
    pointers.push_back(&out);
  }
  const int64_t step = requests.empty() ? ledger_->step : requests.front().step;
  ledger_->step = step;
  uint64_t accepted = 0;
  const auto slot = catchable(vtable_of<Vtable>(instance_).submit);
  TRY(instance_.call("submit", step, nullptr, {}, [&](mortise_call* call) {
    return slot(instance_.self(), call, pointers.data(), pointers.size(), &accepted);
  }));
  if (accepted > requests.size()) {
    return instance_.error("submit", step,
                           fmt::format("says that it took {} of {} requests", accepted, requests.size()),
                           "tell the pack's author");
  }
  for (const RolloutRequest& request : requests.first(accepted)) {
    if (!ledger_->owed.add(request)) {
      return instance_.error(
          "submit", step, fmt::format("was given request {} while one of this id is outstanding", request.request_id),
          "this is a bug of the engine");
    }
  }
  return static_cast<size_t>(accepted);
}

Result<uint64_t> RolloutBackend::poll(int64_t timeout_ms, const RolloutSink& sink, MetricSet* metrics) {
  SinkContext context{&ledger_->owed, &sink, {}};
  auto c_sink = make_abi_struct<mortise_rollout_sink>();
  c_sink.context = &context;
  c_sink.sequence = take_sequence;
  uint64_t outstanding = 0;
  const auto slot = catchable(vtable_of<Vtable>(instance_).poll);
  int32_t status = MORTISE_OK;
  auto called = instance_.call("poll", ledger_->step, metrics, {}, [&](mortise_call* call) {
    return status = slot(instance_.self(), call, &c_sink, timeout_ms * 1'000'000, &outstanding);
  });
  if (!called.ok() && status == MORTISE_DATA_LOSS) called.error().kind = ErrorKind::kNumerics;
  TRY(std::move(called));
  if (!context.fault.empty()) return instance_.error("poll", ledger_->step, context.fault, "tell the pack's author");
  if (outstanding == 0 && ledger_->owed.num_owed() > 0) {
    return instance_.error(
        "poll", ledger_->step,
        fmt::format("says that nothing is outstanding, but {} was not handed over", ledger_->owed.first_owed()),
        "tell the pack's author");
  }
  return outstanding;
}

Result<void> RolloutBackend::abort(int64_t request_id) {
  const auto slot = catchable(vtable_of<Vtable>(instance_).abort);
  if (slot == nullptr) return {};
  TRY(instance_.call("abort", ledger_->step, nullptr, {},
                     [&](mortise_call* call) { return slot(instance_.self(), call, request_id); }));
  return {};
}

Result<void> RolloutBackend::sleep(int level) {
  const auto slot = catchable(vtable_of<Vtable>(instance_).sleep);
  if (slot == nullptr) return {};
  TRY(instance_.call("sleep", 0, nullptr, {}, [&](mortise_call* call) { return slot(instance_.self(), call, level); }));
  return {};
}

Result<void> RolloutBackend::wake() {
  const auto slot = catchable(vtable_of<Vtable>(instance_).wake);
  if (slot == nullptr) return {};
  TRY(instance_.call("wake", 0, nullptr, {}, [&](mortise_call* call) { return slot(instance_.self(), call); }));
  return {};
}

}  // namespace mortise
