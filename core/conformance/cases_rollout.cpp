// Rollout cases: every requested sample comes once, complete, with the version of the weights that made it.
#include "conformance/guarded_memory.h"

#include <fmt/core.h>
#include "conformance/rollout_drive.h"
#include "foundation/base/text.h"
#include "mortise/kinds/rollout_backend.h"
#include "plugin/host/abi_struct.h"

namespace mortise::check {
namespace {

using Vtable = mortise_rollout_backend_vtable;

Vtable slots_of(const Subject& subject) { return read_abi_struct(&subject.vtable<Vtable>()); }

Result<> delivers(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const DriveResult result = TRY(drive_ok(instance));
  const size_t asked = prompts_of(subject).size() * static_cast<size_t>(subject.request().num_samples);
  if (result.sequences.size() == asked) return {};
  return broken(fmt::format("{} completions were requested, but {} came", asked, result.sequences.size()));
}

Result<> lengths(Subject& subject) {
  for (const int64_t longest : {16, 4}) {
    const Instance instance = TRY(subject.create(make_host()));
    DriveOptions options;
    options.max_new_tokens = longest;
    TRY(drive_ok(instance, options));  // the ledger knows the longest
  }
  return {};
}

Result<> weight_version(Subject& subject) {
  for (const int64_t version : {1, 12}) {
    const Instance instance = TRY(subject.create(make_host()));
    DriveOptions options;
    options.version = version;
    const DriveResult result = TRY(drive_ok(instance, options));
    for (const GivenSequence& sequence : result.sequences) {
      if (sequence.weight_version != version)
        return broken(fmt::format("set_version({}) was called, and a sequence says version {}", version,
                                  sequence.weight_version));
    }
  }
  return {};
}

Result<> back_pressure(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  DriveOptions options;
  options.take_at_once = 1;
  TRY(drive_ok(instance, options));
  return {};
}

Result<> rollout_abort(Subject& subject) {
  if (slots_of(subject).abort == nullptr) return not_applicable("it has no abort");
  const Instance instance = TRY(subject.create(make_host()));
  DriveOptions options;
  options.abort = true;
  TRY(drive_ok(instance, options));
  const DriveResult after = TRY(drive(instance));  // and it works on
  if (!after.refused.empty()) return not_applicable(fmt::format("it takes its prompts once ({})", after.refused));
  return {};
}

Result<> rollout_repeatable(Subject& subject) {
  const mortise_host* host = make_host();
  const Instance one = TRY(subject.create(host)), other = TRY(subject.create(host));
  const DriveResult a = TRY(drive_ok(one)), b = TRY(drive_ok(other));
  if (a.sequences.size() != b.sequences.size()) return broken("the same requests give another number of completions");
  for (size_t i = 0; i < a.sequences.size(); ++i) {
    if (a.sequences[i].ids != b.sequences[i].ids)
      return broken(fmt::format("the same seed, step and row give other ids for sample {} of request {}",
                                a.sequences[i].sample_index, a.sequences[i].request_id));
  }
  return {};
}

Result<> sleep_wake(Subject& subject) {
  const Vtable slots = slots_of(subject);
  if (slots.sleep == nullptr || slots.wake == nullptr) return not_applicable("it has no sleep and wake");
  for (const int32_t level : {1, 2}) {
    const Instance instance = TRY(subject.create(make_host()));
    const auto sleep = catchable(slots.sleep);
    const auto wake = catchable(slots.wake);
    TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return sleep(instance.self(), c, level); }), "sleep"));
    TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return wake(instance.self(), c); }), "wake"));
    TRY(drive_ok(instance));
  }
  return {};
}

Result<> requests_copied(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TRY(drive_ok(instance));  // the memory of requests is unmapped when submit returns
  return {};
}

Result<> nothing_asked(Subject& subject) {
  const Vtable slots = slots_of(subject);
  const Instance instance = TRY(subject.create(make_host()));
  const auto submit = catchable(slots.submit);
  const auto set_version = catchable(slots.set_version);
  TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return set_version(instance.self(), c, 1); }), "set_version"));
  uint64_t accepted = 0;
  TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return submit(instance.self(), c, nullptr, 0, &accepted); }),
                "submit of no requests"));
  if (accepted != 0) return broken(fmt::format("took {} of no requests", accepted));
  auto sink = make_abi_struct<mortise_rollout_sink>();
  uint64_t calls = 0, outstanding = 1;
  sink.context = &calls;
  sink.sequence = [](void* context, const mortise_rollout_sequence*) noexcept -> int32_t {
    ++*static_cast<uint64_t*>(context);
    return 0;
  };
  const auto poll = catchable(slots.poll);
  TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return poll(instance.self(), c, &sink, 0, &outstanding); }),
                "poll without requests"));
  if (calls != 0) return broken("delivers a sequence that nobody requested");
  if (outstanding != 0)
    return broken(fmt::format("says that {} are outstanding, but nothing was requested", outstanding));
  return {};
}

Result<> weights(Subject& subject) {
  const Vtable slots = slots_of(subject);
  if (slots.begin_update == nullptr) return not_applicable("it holds no weights");
  const Instance instance = TRY(subject.create(make_host()));
  const auto begin = catchable(slots.begin_update);
  const auto update = catchable(slots.update_weight);
  const auto end = catchable(slots.end_update);
  TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return begin(instance.self(), c, 4); }), "begin_update"));
  {
    GuardedMemory data("a weight", 6 * sizeof(float));
    data.make_read_only();
    int64_t shape[] = {2, 3}, strides[] = {3, 1}, offset[] = {0, 0};
    const mortise_tensor tensor = {data.data(), MORTISE_CPU, 0, 2, MORTISE_FLOAT, 32, 1, shape, strides, 0};
    constexpr std::string_view kName = "model.embed_tokens.weight";
    const SlotCall call = subject.run(0, [&](mortise_call* c) {
      return update(instance.self(), c, {kName.data(), kName.size()}, &tensor, shape, offset);
    });
    TRY(judge(call, "update_weight"));
    if (call.code != MORTISE_OK)
      return not_applicable(fmt::format("it does not accept the weights of the check ({})", call.text));
  }
  TRY(demand_ok(subject.run(0, [&](mortise_call* c) { return end(instance.self(), c); }), "end_update"));
  TRY(drive_ok(instance));
  return {};
}

constexpr Case kRolloutCases[] = {
    {"rollout.delivers", "R41", kRollout, "it delivers every sample of every request once", delivers},
    {"rollout.lengths", "R41", kRollout, "no completion is longer than requested", lengths},
    {"rollout.weight_version", "R41", kRollout, "sequences have the version of the weights that made them",
     weight_version},
    {"rollout.back_pressure", "R41", kRollout, "after a sink says stop, the next polls deliver the rest",
     back_pressure},
    {"rollout.abort", "R41", kRollout, "aborted requests deliver what they have, and nothing is outstanding",
     rollout_abort},
    {"rollout.repeatable", "R24", kRollout, "the same seed, step and row give the same ids", rollout_repeatable},
    {"rollout.sleep_wake", "R41", kRollout, "it works after sleep and wake", sleep_wake},
    {"rollout.requests_copied", "R17", kRollout, "it copies requests before submit returns", requests_copied},
    {"rollout.nothing_asked", "R34", kRollout, "without requests it delivers nothing", nothing_asked},
    {"rollout.weights", "R41", kRollout, "it takes and copies weights, and continues to generate", weights},
};

}  // namespace

std::span<const Case> rollout_cases() { return kRolloutCases; }

}  // namespace mortise::check
