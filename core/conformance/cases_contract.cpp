// Contract cases: rules for every call, whatever it computes.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>

#include "conformance/guarded_memory.h"
#include "conformance/reward_call.h"
#include "conformance/token_batch.h"
#include "conformance/workload.h"
#include "foundation/base/text.h"
#include "mortise/ext/state.h"
#include "plugin/host/abi_struct.h"

namespace mortise::check {
namespace {

const mortise_state* state_of(const Instance& instance) {
  return static_cast<const mortise_state*>(instance.extension(MORTISE_EXT_STATE));
}

Result<> create_destroy(Subject& subject) {
  const mortise_host* host = make_host();
  std::vector<Instance> alive;
  alive.reserve(3);
  for (int i = 0; i < 3; ++i) alive.push_back(TRY(subject.create(host)));
  if (const std::string thrown = alive[0].end(); !thrown.empty()) return broken(thrown);
  TRY(do_work(alive[2]));
  for (Instance& instance : alive) {
    if (const std::string thrown = instance.end(); !thrown.empty()) return broken(thrown);
  }
  return {};
}

Result<> independent(Subject& subject) {
  const auto alone = TRY(live_once(subject));
  const mortise_host* host = make_host();
  const Instance one = TRY(subject.create(host)), other = TRY(subject.create(host));
  WorkShape different;
  different.seed = 2;
  auto disturbed = do_work(other, different);
  if (!disturbed.ok() && !is_not_applicable(disturbed.error())) return std::move(disturbed).error();
  const auto together = TRY(do_work(one));
  return demand_same(alone, together, "the results differ if another instance exists");
}

Result<> repeatable(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  if (state_of(instance) != nullptr) return not_applicable("it keeps state (mortise.state/1)");
  const auto first = TRY(do_work(instance));
  for (int i = 0; i < 3; ++i) {
    const auto again = TRY(do_work(instance));
    TRY(demand_same(first, again, "the same inputs give other results"));
  }
  return {};
}

// Cells of outputs that keep their bits however the inputs change are not written. Outputs start as -0.0: zeroed, and
// yet not the zero that a plugin writes.
Result<> outputs_written(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  TokenCall how;
  how.prefill = -0.0F;
  const TokenBatch shape = usual_batch();
  const bool writes_all = (subject.info().flags & MORTISE_FLAG_WRITES_ALL) != 0;
  std::array<std::vector<bool>, 3> written;  // the third, grad_entropy, is never promised in whole
  for (uint64_t run = 0; run < 12; ++run) {
    TokenBatch batch = usual_batch(1 + run);
    if (run % 4 == 3) batch.column<column::OldLogProb>() = batch.column<column::LogProb>();
    if (run % 2 == 1) {
      for (float& advantage : batch.tokens["advantages"]) advantage = -advantage;
    }
    const TokenResult result = TRY(tokens_ok(instance, batch, how));
    for (size_t i = 0; i < result.out.size(); ++i) {
      written[i].resize(result.out[i].size());
      for (size_t t = 0; t < result.out[i].size(); ++t)
        written[i][t] = written[i][t] || std::bit_cast<uint32_t>(result.out[i][t]) != std::bit_cast<uint32_t>(-0.0F);
    }
  }
  for (size_t i = 0; i < written.size(); ++i) {
    if (std::find(written[i].begin(), written[i].end(), true) == written[i].end() && i > 0) continue;  // not offered
    for (size_t t = 0; t < written[i].size(); ++t) {
      if ((shape.mask[t] != 0 || (writes_all && i < 2)) && !written[i][t])
        return broken(fmt::format("does not write {} at {}", output_name(subject.kind(), i), place_of(shape, t)));
    }
  }
  return {};
}

Result<> inputs_untouched(Subject& subject) {
  TRY(live_once(subject));  // inputs are on read-only pages
  return {};
}

// Buffers that end in the middle of a cache line, followed by known bytes and then an unreadable page.
Result<> stays_inside(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  if (subject.kind() == kReward) {
    TRY(reward_ok(instance, usual_rows(subject)));
    return {};
  }
  constexpr int64_t kLengths[] = {7, 1, 9, 13, 5};
  for (uint64_t seed = 1; seed < 4; ++seed) TRY(tokens_ok(instance, make_batch(kLengths, 2, seed, true)));
  return {};
}

Result<> empty_batch(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  if (subject.kind() == kReward) {
    TRY(reward_ok(instance, pick(usual_rows(subject), {})));
  } else {
    TRY(tokens_ok(instance, make_batch({}, 1, 1, false)));
  }
  return {};
}

Result<> one_token(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  constexpr int64_t kOne[] = {1}, kFirst[] = {0};
  if (subject.kind() == kReward) {
    TRY(reward_ok(instance, pick(usual_rows(subject), kFirst)));
    return {};
  }
  const TokenResult result = TRY(tokens_ok(instance, make_batch(kOne, 1, 1, false)));
  for (const auto& values : result.out) {
    for (const float x : values) {
      if (!std::isfinite(x)) return broken("a batch of one token gives " + format_f64(x));
    }
  }
  return {};
}

Result<> empty_rows(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  constexpr int64_t kLengths[] = {0, 5, 0, 3, 6, 0};
  TokenBatch batch = make_batch(kLengths, 3, 1, false);
  for (size_t t = 5; t < 8; ++t) batch.mask[t] = 0;  // a row with tokens, all of them masked
  const TokenResult result = TRY(tokens_ok(instance, batch));
  for (size_t i = 0; i < result.out.size(); ++i) {
    for (size_t t = 0; t < result.out[i].size(); ++t) {
      if (batch.mask[t] != 0 && !std::isfinite(result.out[i][t]))
        return broken(fmt::format("{} is {} at {}, next to rows without tokens", output_name(subject.kind(), i),
                                  format_f64(result.out[i][t]), place_of(batch, t)));
    }
  }
  return {};
}

// A batch with holes against the same batch without its masked tokens.
Result<> mask_holes(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch holes = usual_batch(), dense = without_masked(holes);
  const TokenResult a = TRY(tokens_ok(instance, holes)), b = TRY(tokens_ok(instance, dense));
  TokenResult spread = a;
  for (size_t i = 0; i < a.out.size(); ++i) {
    size_t k = 0;
    for (size_t t = 0; t < a.out[i].size(); ++t) {
      if (holes.mask[t] != 0) spread.out[i][t] = b.out[i][k++];
    }
  }
  return compare(instance, holes, a, spread, 1e-5, "with masked tokens left out");
}

Result<> byte_offset(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  const TokenBatch batch = usual_batch();
  TokenCall shifted;
  shifted.byte_offset = 64;
  const TokenResult a = TRY(tokens_ok(instance, batch)), b = TRY(tokens_ok(instance, batch, shifted));
  return compare(instance, batch, a, b, 0, "with a byte_offset of 64");
}

Result<> large_ids(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  constexpr int64_t kFar = int64_t{1} << 40;
  if (subject.kind() == kReward) {
    RewardBatch rows = usual_rows(subject);
    const RewardResult a = TRY(reward_ok(instance, rows));
    for (int64_t& id : rows.group_index) id = kFar + id * 1000;
    for (int64_t& id : rows.row_id) id = kFar - id;
    const RewardResult b = TRY(reward_ok(instance, rows));
    return demand_same(a.rewards, b.rewards, "with large row and group ids the rewards differ");
  }
  TokenBatch batch = usual_batch();
  const TokenResult a = TRY(tokens_ok(instance, batch));
  for (int64_t& id : batch.group_index) id = kFar + id * 1000;
  for (int64_t& id : batch.row_id) id += kFar;
  const TokenResult b = TRY(tokens_ok(instance, batch));
  return compare(instance, batch, a, b, 1e-6, "with large row and group ids");
}

Result<> failures_explained(Subject& subject) {
  int num_failures = 0;
  const auto look = [&](const SlotCall& call, std::string_view slot) {
    num_failures += call.code != MORTISE_OK ? 1 : 0;
    return judge(call, slot);
  };
  HostShape without_params;
  without_params.params = false;
  SlotCall made;
  if (!subject.info().params.empty()) {
    auto refused = subject.create(make_host(without_params), &made);
    TRY(look(made, "create"));
  }
  const Instance instance = TRY(subject.create(make_host()));
  if ((subject.kind() & kTokens) != 0) {
    TokenCall elsewhere;
    elsewhere.device = subject.untaken_device();
    TRY(look(call_tokens(instance, usual_batch(), elsewhere).call, "compute"));
  } else if (subject.kind() == kReward) {
    RewardBatch rows = usual_rows(subject);
    for (DataColumn& column : rows.columns) column.type = ColumnType::kJson;  // texts that are no JSON
    TRY(look(call_reward(instance, rows).call, "score"));
    rows.columns.clear();
    rows.max_response_length = 0;
    TRY(look(call_reward(instance, rows).call, "score"));
  }
  if (num_failures == 0) return not_applicable("no input of the check makes it fail");
  return {};
}

Result<> metrics(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  std::vector<MetricRecord> records;
  if ((subject.kind() & kTokens) != 0) records = TRY(tokens_ok(instance, usual_batch())).call.metrics;
  if (subject.kind() == kReward) records = TRY(reward_ok(instance, usual_rows(subject))).call.metrics;
  if (records.empty()) return not_applicable("it reports no metrics");
  for (const MetricRecord& record : records) {
    const std::string who = "metric " + quote(record.name);
    if (record.name.empty() || record.name.find_first_of(" \n\t") != std::string::npos)
      return broken(who + " has no usable name");
    if (record.reduction < MORTISE_REDUCE_MEAN || record.reduction > MORTISE_REDUCE_MIN)
      return broken(fmt::format("{} has the unknown reduction {}", who, record.reduction));
    if (!std::isfinite(record.sum)) return broken(fmt::format("{} is {}", who, format_f64(record.sum)));
    if (record.reduction == MORTISE_REDUCE_MEAN && !(record.weight >= 0 && std::isfinite(record.weight)))
      return broken(fmt::format("{} has the weight {}", who, format_f64(record.weight)));
  }
  return {};
}

Result<> stops(Subject& subject) {
  HostShape stopping;
  stopping.cancel_ns = 1;  // long ago
  const Instance instance = TRY(subject.create(make_host()));
  (void)make_host(stopping);  // from now on
  SlotCall call;
  if ((subject.kind() & kTokens) != 0) call = call_tokens(instance, usual_batch()).call;
  if (subject.kind() == kReward) call = call_reward(instance, usual_rows(subject)).call;
  if (!call.thrown.empty()) return judge(call, "the slot");
  if (call.code == MORTISE_OK || call.code == MORTISE_CANCELLED || call.code == MORTISE_DEADLINE_EXCEEDED) return {};
  return broken(fmt::format("if the run is stopping, it returns {}; return MORTISE_CANCELLED", status_name(call.code)));
}

Result<> any_thread(Subject& subject) {
  const mortise_host* host = make_host();
  const auto here = TRY(live_once(subject));
  Instance instance = TRY(subject.create(host));
  Result<std::vector<double>> there = broken("");
  std::thread([&] { there = do_work(instance); }).join();
  std::string thrown;
  std::thread([&] { thrown = instance.end(); }).join();
  if (!thrown.empty()) return broken(thrown);
  const auto results = TRY(std::move(there));
  return demand_same(here, results, "on another thread than that of create the results differ");
}

Result<> concurrent(Subject& subject) {
  if ((subject.info().flags & MORTISE_FLAG_CONCURRENT) == 0)
    return not_applicable("it does not claim to be concurrent");
  const Instance instance = TRY(subject.create(make_host()));
  const auto alone = TRY(do_work(instance));
  std::vector<Result<>> results(4);
  std::vector<std::thread> threads;
  for (Result<>& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25 && result.ok(); ++i) {
        auto mine = do_work(instance);
        result = mine.ok() ? demand_same(alone, *mine, "with calls at the same time the results differ")
                           : Result<>(std::move(mine).error());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Result<>& result : results) TRY(std::move(result));
  return {};
}

void append(void* context, mortise_bytes bytes) noexcept {
  static_cast<std::string*>(context)->append(static_cast<const char*>(bytes.data), bytes.size);
}

Result<std::string> save(const Instance& instance, const mortise_state& state) {
  std::string bytes;
  auto sink = make_abi_struct<mortise_state_sink>();
  sink.context = &bytes;
  sink.write = append;
  const auto slot = catchable(state.save);
  TRY(demand_ok(instance.subject().run(0, [&](mortise_call* c) { return slot(instance.self(), c, &sink); }), "save"));
  return bytes;
}

SlotCall load(const Instance& instance, const mortise_state& state, std::string_view bytes) {
  GuardedMemory memory("the saved state", bytes.size(), 1);
  std::copy(bytes.begin(), bytes.end(), memory.as<char>());
  memory.make_read_only();
  const auto slot = catchable(state.load);
  return instance.subject().run(0, [&](mortise_call* c) {
    return slot(instance.self(), c, {memory.data(), memory.size()});
  });
}

// Work, save, load into a new instance: the next work is the same in both, and both save the same.
Result<> state_round_trip(Subject& subject) {
  const mortise_host* host = make_host();
  const Instance first = TRY(subject.create(host)), second = TRY(subject.create(host));
  const mortise_state* table = state_of(first);
  if (table == nullptr) return not_applicable("it keeps no state (mortise.state/1)");
  const mortise_state state = read_abi_struct(table);
  if (state.save == nullptr || state.load == nullptr) return broken("its mortise.state/1 lacks save or load");
  auto worked = do_work(first);
  if (!worked.ok() && !is_not_applicable(worked.error())) return std::move(worked).error();
  const std::string bytes = TRY(save(first, state));
  TRY(demand_ok(load(second, state, bytes), "load"));
  const std::string again = TRY(save(second, state));
  if (bytes != again) return broken("saving the loaded state gives other bytes");
  if (!worked.ok()) return {};
  WorkShape next;
  next.seed = 2;
  const auto one = TRY(do_work(first, next)), other = TRY(do_work(second, next));
  return demand_same(one, other, "after a resume the results differ");
}

Result<> state_damaged(Subject& subject) {
  const mortise_host* host = make_host();
  const Instance first = TRY(subject.create(host));
  const mortise_state* table = state_of(first);
  if (table == nullptr) return not_applicable("it keeps no state (mortise.state/1)");
  const mortise_state state = read_abi_struct(table);
  const std::string bytes = TRY(save(first, state));
  const std::string longer = fmt::format("{}{}x", bytes, bytes), noise(37, '\xFF');
  for (const std::string_view damaged :
       {std::string_view(bytes).substr(0, bytes.size() / 2), std::string_view(longer), std::string_view(noise)}) {
    if (damaged == bytes) continue;
    const Instance fresh = TRY(subject.create(host));
    const SlotCall call = load(fresh, state, damaged);
    TRY(judge(call, "load"));
    if (call.code == MORTISE_OK)
      return broken(fmt::format("load accepts {} bytes that are not a saved state", damaged.size()));
  }
  return {};
}

constexpr uint32_t kCalls = kTokens | kReward;
constexpr Case kContractCases[] = {
    {"contract.create_destroy", "R18", kEvery, "instances can be created and destroyed in any order", create_destroy},
    {"contract.independent", "R24", kEvery, "instances do not affect each other", independent},
    {"contract.repeatable", "R24", kCalls | kEnvironment, "the same inputs give the same bits", repeatable},
    {"contract.outputs_written", "R32", kTokens, "it writes the outputs of all unmasked tokens", outputs_written},
    {"contract.inputs_untouched", "R17", kEvery, "it does not change its inputs", inputs_untouched},
    {"contract.stays_inside", "R33", kCalls, "it reads and writes only inside the buffers", stays_inside},
    {"contract.empty_batch", "R34", kCalls, "it accepts a batch without rows", empty_batch},
    {"contract.one_token", "R34", kCalls, "it accepts a batch of one row", one_token},
    {"contract.empty_rows", "R34", kTokens, "it accepts rows without tokens, or with masked ones only", empty_rows},
    {"contract.mask_holes", "R22", kLosses, "masked tokens in the middle of a row change nothing", mask_holes},
    {"contract.byte_offset", "R33", kTokens, "it applies the byte_offset of a tensor", byte_offset},
    {"contract.large_ids", "R35", kCalls, "it uses row and group ids as names, not as indices", large_ids},
    {"contract.failures_explained", "R14", kCalls, "a failure has a canonical status and a text", failures_explained},
    {"contract.metrics", "R25", kCalls, "metrics have a name, a finite sum and a weight", metrics},
    {"contract.stops", "R36", kCalls, "if the run is stopping, it returns MORTISE_CANCELLED or the result", stops},
    {"contract.any_thread", "R19", kEvery, "create, call and destroy may be on different threads", any_thread},
    {"contract.concurrent", "R19", kCalls, "a plugin with MORTISE_FLAG_CONCURRENT takes calls at the same time",
     concurrent},
    {"contract.state_round_trip", "R37", kEvery, "it continues from a saved state with the same results",
     state_round_trip},
    {"contract.state_damaged", "R37", kEvery, "it refuses a damaged state with a text", state_damaged},
};

}  // namespace

std::span<const Case> contract_cases() { return kContractCases; }

}  // namespace mortise::check
