// A rollout backend for the simulation of tests/unit/plugin: it samples nothing. The prompt holds the completions, one
// behind the other with kBetween after each. When and how they come is a function of `seed`: in any order, late, cut
// short, behind a restart that loses all work under way; or the backend fails, or breaks its contract.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <mortise/cpp/mortise.hpp>

namespace {

constexpr std::int64_t kBetween = 999;
constexpr std::int64_t kNoToken = 1'000'000;

struct Work {
  std::int64_t request_id = 0, sample_index = 0;
  std::int32_t finish_reason = MORTISE_FINISH_STOP;
  std::int64_t turns_left = 0;
  std::vector<std::int64_t> ids;
};

class Sim : public mortise::RolloutBackend {
 public:
  static constexpr const char* summary = "completions that stand in the prompt, whenever a seed says";

  std::int64_t seed = param("seed", 0, "of everything that happens").at_least(0);
  std::int64_t capacity = param("capacity", 8, "requests under way at once").at_least(1);
  std::int64_t slowest = param("slowest", 3, "turns that a completion takes at most").at_least(0);
  double cut = param("cut", 0.0, "chance of a completion that ends early").range(0, 1);
  double restart = param("restart", 0.0, "chance a turn that all work under way is lost and begun again").range(0, 1);
  double failure = param("failure", 0.0, "chance a turn of an error").range(0, 1);
  std::string lie = param("lie", "", "twice, forgets, unknown or foreign: breaks the contract so, once");

  void setup(mortise::Call) override { random_.seed(std::uint64_t(seed)); }
  void set_version(std::int64_t version, mortise::Call) override { version_ = version; }

  std::uint64_t submit(mortise::Span<const mortise_rollout_request* const> requests, mortise::Call) override {
    if (turns_down_ > 0) return 0;
    std::uint64_t taken = 0;
    for (const mortise_rollout_request* request : requests) {
      if (std::int64_t(num_open_requests()) >= capacity) break;
      take(*request);
      ++taken;
    }
    return taken;
  }

  std::uint64_t poll(const mortise_rollout_sink& sink, std::int64_t, mortise::Call) override {
    if (chance(failure)) mortise::fail(MORTISE_UNAVAILABLE, "the server does not answer");
    if (turns_down_ > 0) {
      --turns_down_;
      return work_.size();
    }
    if (chance(restart)) {
      turns_down_ = uniform(1, 5);
      for (Work& one : work_) one.turns_left = uniform(0, slowest);
      return work_.size();
    }
    for (Work& one : work_) one.turns_left = std::max<std::int64_t>(0, one.turns_left - 1);
    std::shuffle(work_.begin(), work_.end(), random_);
    if (lie == "forgets" && work_.size() > 1) {
      work_.clear();
      return 0;
    }
    deliver(sink);
    return work_.size();
  }

  void abort(std::int64_t request_id, mortise::Call) override {
    for (Work& one : work_) {
      if (request_id == -1 || one.request_id == request_id) {
        one.finish_reason = MORTISE_FINISH_ABORT;
        one.turns_left = 0;
      }
    }
    turns_down_ = 0;
  }

 private:
  std::int64_t uniform(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool chance(double p) { return std::uniform_real_distribution<double>()(random_) < p; }

  std::size_t num_open_requests() const {
    std::vector<std::int64_t> ids;
    for (const Work& one : work_) ids.push_back(one.request_id);
    std::sort(ids.begin(), ids.end());
    return std::size_t(std::unique(ids.begin(), ids.end()) - ids.begin());
  }

  void take(const mortise_rollout_request& request) {
    Work one;
    one.request_id = request.request_id;
    for (std::int64_t i = 0; i < request.num_prompt_ids; ++i) {
      if (request.prompt_ids[i] != kBetween) {
        one.ids.push_back(request.prompt_ids[i]);
        continue;
      }
      one.turns_left = uniform(0, slowest);
      one.finish_reason = MORTISE_FINISH_STOP;
      if (chance(cut)) {
        one.ids.resize(std::size_t(uniform(1, std::int64_t(one.ids.size()))));
        one.finish_reason = chance(0.5) ? MORTISE_FINISH_LENGTH : MORTISE_FINISH_ABORT;
      }
      work_.push_back(one);
      ++one.sample_index;
      one.ids.clear();
    }
  }

  void deliver(const mortise_rollout_sink& sink) {
    for (std::size_t i = 0; i < work_.size();) {
      if (work_[i].turns_left > 0 || chance(0.3)) {
        ++i;
        continue;
      }
      Work one = work_[i];
      work_.erase(work_.begin() + std::ptrdiff_t(i));
      if (lie == "unknown") one.request_id += 1'000;
      if (lie == "foreign") one.ids.assign(1, kNoToken);
      bool stop = give(sink, one);
      if (lie == "twice") stop = give(sink, one);
      if (stop) return;
    }
  }

  bool give(const mortise_rollout_sink& sink, const Work& one) const {
    mortise_rollout_sequence out{};
    out.struct_size = sizeof out;
    out.finish_reason = one.finish_reason;
    out.request_id = one.request_id;
    out.sample_index = one.sample_index;
    out.weight_version = version_;
    out.num_ids = std::int64_t(one.ids.size());
    out.ids = one.ids.data();
    return sink.sequence(sink.context, &out) != 0;
  }

  std::mt19937_64 random_;
  std::int64_t version_ = 0;
  std::int64_t turns_down_ = 0;
  std::vector<Work> work_;
};

}  // namespace

MORTISE_PACK(MORTISE_ROLLOUT_BACKEND("sim", Sim))
