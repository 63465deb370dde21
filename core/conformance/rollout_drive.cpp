// Submits requests, polls until all samples are there, and checks each sequence.
#include "conformance/rollout_drive.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "conformance/guarded_memory.h"
#include "mortise/kinds/rollout_backend.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/rollout_ledger.h"

namespace mortise::check {
namespace {

using Vtable = mortise_rollout_backend_vtable;
constexpr int64_t kPollNs = 20'000'000;
constexpr int kMaxIdlePolls = 200;  // without a sequence: four seconds at most

struct SequenceSink {
  RolloutLedger* ledger;
  std::vector<GivenSequence>* sequences;
  size_t left;  // before it says stop
  std::string fault;
};

int32_t take(void* context, const mortise_rollout_sequence* given) noexcept {
  auto& sink = *static_cast<SequenceSink*>(context);
  if (sink.left == 0 && sink.fault.empty()) sink.fault = "handed over a sequence after the sink had said stop";
  const auto in = read_abi_struct(given);
  const auto size = static_cast<size_t>(in.num_ids < 0 || in.ids == nullptr ? 0 : in.num_ids);
  RolloutSequence sequence{in.request_id, in.sample_index, in.finish_reason, in.weight_version, {in.ids, size}, {}, {}};
  if (in.log_prob != nullptr) sequence.log_prob = {in.log_prob, size};
  if (in.filtered_log_prob != nullptr) sequence.filtered_log_prob = {in.filtered_log_prob, size};
  const std::string fault = sink.ledger->take(sequence, in.num_ids != 0 && size == 0);
  if (sink.fault.empty()) sink.fault = fault;
  GivenSequence& out = sink.sequences->emplace_back();
  out.request_id = in.request_id;
  out.sample_index = in.sample_index;
  out.weight_version = in.weight_version;
  out.finish_reason = in.finish_reason;
  out.ids.assign(sequence.ids.begin(), sequence.ids.end());
  out.log_prob.assign(sequence.log_prob.begin(), sequence.log_prob.end());
  if (sink.left > 0) --sink.left;
  return sink.left == 0 ? 1 : 0;
}

class Driver {
 public:
  Driver(const Instance& instance, const DriveOptions& options)
      : instance_(instance),
        options_(options),
        vtable_(read_abi_struct(&instance.subject().vtable<Vtable>())),
        prompts_(prompts_of(instance.subject())) {}

  Result<DriveResult> run() {
    const auto set_version = catchable(vtable_.set_version);
    TRY(demand_ok(call([&](mortise_call* c) { return set_version(instance_.self(), c, options_.version); }),
                  "set_version"));
    DriveResult result;
    TRY(submit_all(result));
    if (!result.refused.empty()) return result;
    if (options_.abort && vtable_.abort != nullptr) {
      const auto abort = catchable(vtable_.abort);
      TRY(demand_ok(call([&](mortise_call* c) { return abort(instance_.self(), c, -1); }), "abort"));
    }
    TRY(poll_all(result));
    std::sort(result.sequences.begin(), result.sequences.end(), [](const GivenSequence& a, const GivenSequence& b) {
      return std::pair(a.request_id, a.sample_index) < std::pair(b.request_id, b.sample_index);
    });
    return result;
  }

 private:
  SlotCall call(const std::function<int32_t(mortise_call*)>& slot) { return instance_.subject().run(0, slot); }

  template <class T>
  T* make(std::deque<GuardedMemory>& memory, const char* name) {
    GuardedMemory& one = memory.emplace_back(name, sizeof(T) + options_.tail_bytes, alignof(T));
    std::memset(one.data(), 0x5D, one.size());
    *one.as<T>() = T{};
    one.as<T>()->struct_size = static_cast<uint32_t>(one.size());
    return one.as<T>();
  }

  // One submit of requests from `first` on; the memory of the requests ends with it.
  SlotCall submit(size_t first, uint64_t* accepted) {
    std::deque<GuardedMemory> memory;
    std::vector<const mortise_rollout_request*> requests;
    for (size_t i = first; i < prompts_.size(); ++i) {
      auto* sampling = make<mortise_sampling>(memory, "the sampling struct");
      sampling->max_new_tokens = options_.max_new_tokens;
      sampling->temperature = 1.0;
      sampling->top_p = 1.0;
      auto* request = make<mortise_rollout_request>(memory, "the request's struct");
      GuardedMemory& ids = memory.emplace_back("prompt_ids", prompts_[i].size() * sizeof(int64_t), 8);
      std::memcpy(ids.data(), prompts_[i].data(), ids.size());
      request->request_id = 500 + static_cast<int64_t>(i);
      request->prompt_ids = ids.as<int64_t>();
      request->num_prompt_ids = static_cast<int64_t>(prompts_[i].size());
      request->num_samples = instance_.subject().request().num_samples;
      request->first_row_id = static_cast<int64_t>(i) * request->num_samples;
      request->seed = options_.seed;
      request->step = 3;
      request->sampling = sampling;
      requests.push_back(request);
    }
    for (GuardedMemory& one : memory) one.make_read_only();
    const auto slot = catchable(vtable_.submit);
    return call([&](mortise_call* c) { return slot(instance_.self(), c, requests.data(), requests.size(), accepted); });
  }

  Result<> submit_all(DriveResult& result) {
    size_t taken = 0;
    for (int idle = 0; taken < prompts_.size();) {
      uint64_t accepted = 0;
      const SlotCall done = submit(taken, &accepted);
      TRY(judge(done, "submit"));
      if (done.code != MORTISE_OK) {
        if (taken > 0) return broken("submit failed after it took requests before: " + done.text);
        result.refused = done.text;
        return {};
      }
      if (accepted > prompts_.size() - taken)
        return broken(fmt::format("submit says that it took {} of {} requests", accepted, prompts_.size() - taken));
      for (uint64_t i = 0; i < accepted; ++i, ++taken) own(taken);
      idle = accepted > 0 ? 0 : idle + 1;
      if (idle > kMaxIdlePolls) return broken("submit takes no more requests, however often it is polled");
      if (taken < prompts_.size()) TRY(poll_once(result));
    }
    return {};
  }

  void own(size_t prompt) {
    Sampling sampling;
    sampling.max_new_tokens = options_.max_new_tokens;
    RolloutRequest request;
    request.request_id = 500 + static_cast<int64_t>(prompt);
    request.num_samples = instance_.subject().request().num_samples;
    request.sampling = &sampling;
    ledger_.add(request);
  }

  Result<uint64_t> poll_once(DriveResult& result) {
    SequenceSink sink{&ledger_, &result.sequences, options_.take_at_once, {}};
    std::deque<GuardedMemory> memory;
    auto* c_sink = make<mortise_rollout_sink>(memory, "the sink's struct");
    c_sink->context = &sink;
    c_sink->sequence = take;
    uint64_t outstanding = 0;
    const auto slot = catchable(vtable_.poll);
    const SlotCall done =
        call([&](mortise_call* c) { return slot(instance_.self(), c, c_sink, kPollNs, &outstanding); });
    TRY(demand_ok(done, "poll"));
    result.metrics.insert(result.metrics.end(), done.metrics.begin(), done.metrics.end());
    if (!sink.fault.empty()) return broken("poll " + sink.fault);
    return outstanding;
  }

  Result<> poll_all(DriveResult& result) {
    for (int idle = 0; ledger_.num_owed() > 0;) {
      const size_t before = result.sequences.size();
      const uint64_t outstanding = TRY(poll_once(result));
      if (outstanding == 0 && ledger_.num_owed() > 0)
        return broken(
            fmt::format("poll says that nothing is outstanding, but {} was not handed over", ledger_.first_owed()));
      idle = result.sequences.size() > before ? 0 : idle + 1;
      if (idle > kMaxIdlePolls) return broken(ledger_.first_owed() + " never comes, however often it is polled");
    }
    return {};
  }

  const Instance& instance_;
  const DriveOptions& options_;
  Vtable vtable_;
  std::vector<std::vector<int64_t>> prompts_;
  RolloutLedger ledger_;
};

}  // namespace

std::vector<std::vector<int64_t>> prompts_of(const Subject& subject) {
  if (!subject.request().prompts.empty()) return subject.request().prompts;
  return {{5, 6, 7}, {8, 9, 10, 11}, {12}};
}

Result<DriveResult> drive(const Instance& instance, const DriveOptions& options) {
  return Driver(instance, options).run();
}

Result<DriveResult> drive_ok(const Instance& instance, const DriveOptions& options) {
  DriveResult result = TRY(drive(instance, options));
  if (!result.refused.empty())
    return not_applicable(
        fmt::format("it does not accept the prompts of the check ({}); give its own with --prompts", result.refused));
  return result;
}

}  // namespace mortise::check
