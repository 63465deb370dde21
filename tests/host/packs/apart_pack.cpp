// Losses and estimators for the tests of workers: they fail once, keep state, log, look at their process, or write where
// they must not. Plugins of other faults are in tests/host/hostile_packs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mortise/cpp/batch_kl.hpp>
#include <mortise/cpp/mortise.hpp>

#include "stray.h"

namespace {

// What the plugins of this pack do besides their work, at the steps from `at_step` on.
struct Misdeed {
  std::string what;
  std::int64_t at_step = 1;
  std::string once;  // a file: only if it can be removed

  void commit(const mortise::Call& call) const {
    if (!once.empty() && ::unlink(once.c_str()) != 0) return;
    if (what == "crash") std::raise(SIGSEGV);
    if (what == "exit") ::_exit(3);
    if (what == "fail") mortise::fail(MORTISE_INVALID_ARGUMENT, "no");
    if (what == "log") call.log(MORTISE_LOG_WARN, "a line from the worker");
    if (what == "spin") {
      for (volatile unsigned i = 0; true;) i = i + 1;
    }
    mortise::test::misuse_connection(what);
    if (what == "polite") {
      while (!call.cancelled()) ::usleep(1000);
      mortise::fail(MORTISE_CANCELLED, "gave up in time");
    }
  }
};

template <class Base>
struct Misbehaving : Base {
  Misdeed misdeed{this->param("what", "", "misdeed"), this->param("at_step", std::int64_t(1), "behaves before"),
                  this->param("once", "", "a file")};
};

// -A * log_prob.
struct Plain : Misbehaving<mortise::BatchLoss> {
  static constexpr const char* summary = "a plain loss";
  void compute(const mortise::LossBatch& batch, mortise::Call call) const {
    if (batch.update_index >= misdeed.at_step) misdeed.commit(call);
    for (std::int64_t t = 0; t < batch.num_tokens(); ++t)
      batch.put(t, -double(batch.advantages[t]) * double(batch.log_prob[t]), -double(batch.weight[t]));
    if (misdeed.what == "write inputs") const_cast<float*>(batch.log_prob)[0] = 7;
    if (misdeed.what == "write past" && batch.num_tokens() > 0) batch.loss[batch.num_tokens()] = 7;
  }
};

// Its loss is the number of calls so far, which is its state.
struct Counter : Misbehaving<mortise::BatchLoss> {
  static constexpr const char* summary = "counts its calls";
  void compute(const mortise::LossBatch& batch, mortise::Call call) const {
    ++num_calls;
    if (batch.update_index >= misdeed.at_step) misdeed.commit(call);
    for (std::int64_t t = 0; t < batch.num_tokens(); ++t) batch.put(t, double(num_calls), 0);
  }
  std::string save_state() const { return std::to_string(num_calls); }
  void load_state(std::string_view bytes) {
    if (bytes.empty() || bytes.size() > 18) mortise::fail(MORTISE_DATA_LOSS, "not a count");
    num_calls = std::stoll(std::string(bytes));
  }
  const void* extension(const char* id) override { return mortise::state_extension<Counter>(id); }
  mutable std::int64_t num_calls = 0;
};

// Token t gets the answer to question t about its process.
struct Probe : mortise::BatchLoss {
  static constexpr const char* summary = "looks at its process";
  std::string path = param("path", "/tmp/mortise-probe", "file to write");
  void compute(const mortise::LossBatch& batch, mortise::Call call) const {
    std::atomic<int> alone{0};
    call.parallel_for(8, 1, [&](std::int64_t, std::int64_t) { ++alone; });
    const double answers[] = {double(::getpid()), is_open(::socket(AF_INET, SOCK_STREAM, 0)),
                              is_open(::open(path.c_str(), O_WRONLY | O_CREAT, 0600)), double(num_descriptors()),
                              double(alone)};
    for (std::int64_t t = 0; t < batch.num_tokens(); ++t) batch.put(t, t < 5 ? answers[t] : 0, 0);
  }
  static double is_open(int fd) { return fd >= 0 && ::close(fd) == 0 ? 1 : 0; }
  static int num_descriptors() {
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  }
};

struct Kl : Misbehaving<mortise::KlEstimator> {
  static constexpr std::int32_t coupling = MORTISE_COUPLING_TOKEN;
  static constexpr const char* summary = "the log ratio";
  void compute(const mortise::KlBatch& batch, mortise::Call call) const {
    misdeed.commit(call);
    for (std::int64_t t = 0; t < batch.num_tokens(); ++t)
      batch.put(t, double(batch.log_prob[t]) - double(batch.ref_log_prob[t]), double(batch.weight[t]));
  }
};

struct Advantage : Misbehaving<mortise::AdvantageEstimator> {
  static constexpr const char* summary = "the token rewards";
  void compute(mortise::AdvantageBatch& batch, mortise::Call call) override {
    misdeed.commit(call);
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      const auto rewards = batch.token_rewards(row);
      std::copy(rewards.begin(), rewards.end(), batch.advantages(row).begin());
      std::copy(rewards.begin(), rewards.end(), batch.returns(row).begin());
    }
  }
};

MORTISE_BATCH_LOSS("apart", Plain)
MORTISE_BATCH_LOSS("counter", Counter)
MORTISE_BATCH_LOSS("probe", Probe)
MORTISE_BATCH_KL("apart", Kl)
MORTISE_ADVANTAGE_ESTIMATOR("apart", Advantage)

}  // namespace

MORTISE_PACK()
