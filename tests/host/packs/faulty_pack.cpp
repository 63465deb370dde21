// Rewards that crash, hang, leave child processes and try forbidden things, as the completion says.
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mortise/ext/state.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mortise/cpp/environment.hpp>
#include <mortise/cpp/mortise.hpp>
#include <stdexcept>
#include <thread>

#include "stray.h"

namespace {

// The process that has loaded the pack. Its forks keep the number.
const pid_t loaded_by = ::getpid();

// For a test that waits until a row has begun.
void make_mark(const std::string& path) {
  if (!path.empty()) ::close(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
}

[[noreturn]] void hang() {
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

double obey(std::string_view text, const mortise::Call& call, const std::string& mark = "") {
  const auto is = [&](std::string_view command) { return text.substr(0, command.size()) == command; };
  if (is("crash")) std::raise(SIGSEGV);
  if (is("abort")) std::abort();
  if (is("exit")) ::_exit(7);
  if (is("hang")) {
    make_mark(mark);
    hang();
  }
  if (is("killer")) {  // how many of its signals to everyone and to its fork server were refused
    double refused = 0;
    for (const pid_t target : {-1, ::getppid(), -::getpgid(::getppid())})
      refused += ::kill(target, SIGKILL) != 0 && errno == EPERM ? 1 : 0;
    return refused;
  }
  if (is("orphan")) {  // a child that holds the worker's descriptors and outlives it
    if (::fork() == 0) hang();
    std::raise(SIGKILL);
  }
  if (is("throw")) mortise::fail(MORTISE_INVALID_ARGUMENT, "cannot parse");
  if (is("polite")) {
    make_mark(mark);
    while (!call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    mortise::fail(MORTISE_CANCELLED, "gave up in time");
  }
  if (is("spin")) {
    for (volatile unsigned i = 0; true;) i = i + 1;
  }
  if (is("progress")) call.progress(0.4);
  if (is("inf")) return 1.0 / 0.0;
  if (is("none")) return mortise::not_applicable;
  if (is("log")) call.log(MORTISE_LOG_WARN, "a line from the worker");
  mortise::test::misuse_connection(text);
  if (is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(text.data() + 4)));
  return double(text.size());
}

// Row by row, with the services of the current call.
struct Faulty : mortise::BatchReward {
  static constexpr const char* summary = "does what the completion says";
  static constexpr std::int32_t granularity = MORTISE_REWARD_ROW;
  std::int64_t dies_in_create = param("dies_in_create", 0, "1: create ends the process");
  std::string mark = param("mark", "", "file that a row makes before it hangs or waits for its end");
  void setup(mortise::Call) override {
    if (dies_in_create == 1) std::abort();
    if (dies_in_create == 2) mortise::fail(MORTISE_NOT_FOUND, "no such judge");
  }
  void score(const std::vector<mortise::Row>& rows, mortise::Span<double> rewards, mortise::Call call) override {
    for (const mortise::Row& row : rows) {
      std::uint64_t random = 0;
      call.random(std::uint64_t(row.row_id()), 0, {&random, 1});
      const double reward = obey(row.completion(), call, mark);
      rewards[&row - rows.data()] = reward + double(random % 1000) / 1000;
      row.note("row_id", double(row.row_id()));
      call.metric("faulty/length", double(row.completion().size()), 1);
    }
  }
};
MORTISE_REWARD("faulty", Faulty)

// The same without services: nothing but the reward goes back.
struct Plain : mortise::Reward {
  static constexpr const char* summary = "length of the completion, or a crash or a hang; takes `work_us` for a row";
  std::int64_t work_us = param("work_us", 0, "time that a row takes").at_least(0);
  std::string work_prompt = param("work_prompt", "", "only rows whose prompt begins with this take it");
  double score(const mortise::Row& row) const {
    const bool works = row.prompt().substr(0, work_prompt.size()) == work_prompt;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(works ? work_us : 0);
    if (row.completion() == "crash") std::raise(SIGSEGV);
    if (row.completion() == "hang") hang();
    while (std::chrono::steady_clock::now() < end) {
    }
    return double(row.completion().size());
  }
};
MORTISE_REWARD("plain", Plain)

// Reward: rows of the call, which shows what the call was given.
template <std::int32_t kGranularity>
struct Whole : mortise::BatchReward {
  static constexpr const char* summary = "number of rows in the call";
  static constexpr std::int32_t granularity = kGranularity;
  void score(const std::vector<mortise::Row>& rows, mortise::Span<double> rewards, mortise::Call call) override {
    for (const mortise::Row& row : rows) {
      if (row.group_index() != rows[0].group_index() && kGranularity == MORTISE_REWARD_GROUP)
        mortise::fail(MORTISE_INTERNAL, "rows of two groups in a call");
      obey(row.completion(), call);
      rewards[&row - rows.data()] = double(rows.size());
    }
  }
};
using WholeGroup = Whole<MORTISE_REWARD_GROUP>;
using WholeBatch = Whole<MORTISE_REWARD_BATCH>;
MORTISE_REWARD("whole_group", WholeGroup)
MORTISE_REWARD("whole_batch", WholeBatch)

// The row's reward is 1. The reward of a token is a quarter of its id, or something invalid.
struct Steps : mortise::Reward {
  static constexpr const char* summary = "rewards every token";
  static constexpr std::uint32_t flags = MORTISE_FLAG_TOKEN_REWARDS | MORTISE_FLAG_CONCURRENT;
  double score(const mortise::Row& row) const {
    const auto tokens = row.token_rewards();
    for (std::int64_t t = 0; t < tokens.size(); ++t) tokens[t] = float(row.completion_ids()[t]) / 4;
    if (row.completion() == "crash") std::raise(SIGSEGV);
    if (row.completion() == "throw") mortise::fail(MORTISE_INVALID_ARGUMENT, "cannot parse");
    if (row.completion() == "nan") tokens[1] = std::numeric_limits<float>::quiet_NaN();
    if (row.completion() == "huge") tokens[1] = 1e30F;
    return row.completion() == "unset" ? mortise::not_applicable : 1;
  }
};
MORTISE_REWARD("steps", Steps)

// Waits a while for a second row that is scored at the same time.
struct Meets : mortise::Reward {
  static constexpr const char* summary = "1 where two rows are scored at once";
  static constexpr std::uint32_t flags = MORTISE_FLAG_CONCURRENT;
  static inline std::atomic<int> num_seen = 0;
  double score(const mortise::Row& row) const {
    row.note("row", double(row.row_id()));
    ++num_seen;
    for (int i = 0; i < 60'000 && num_seen < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return num_seen >= 2 ? 1 : 0;
  }
};
MORTISE_REWARD("meets", Meets)

// Fails with many words, of letters of two bytes.
struct LongWords : mortise::Reward {
  static constexpr const char* summary = "fails at `throw`, at length";
  double score(const mortise::Row& row) const {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "\xC3\xA9";
    if (row.completion() == "throw") throw std::runtime_error(text);
    return 1;
  }
};
MORTISE_REWARD("long_words", LongWords)

// Shows a test what an estimator is given.
struct Echo : mortise::AdvantageEstimator {
  static constexpr const char* summary = "the token rewards themselves";
  void compute(mortise::AdvantageBatch& batch, mortise::Call) override {
    for (std::int64_t row = 0; row < batch.num_rows(); ++row) {
      const auto rewards = batch.token_rewards(row);
      std::copy(rewards.begin(), rewards.end(), batch.advantages(row).begin());
      std::copy(rewards.begin(), rewards.end(), batch.returns(row).begin());
    }
  }
};
MORTISE_ADVANTAGE_ESTIMATOR("echo", Echo)

// The reward is the number of rows seen so far, which is also the state.
struct Counter : mortise::Reward {
  static constexpr const char* summary = "counts the rows over the whole run";
  double score(const mortise::Row& row) {
    if (row.completion() == "crash") std::raise(SIGSEGV);
    return double(++seen);
  }
  static Counter& of(void* self) { return *static_cast<mortise::detail::Self<Counter>*>(self)->second; }
  const void* extension(const char* id) override {
    static const mortise_state table = {
        sizeof(mortise_state), 0,
        [](void* self, mortise_call*, const mortise_state_sink* sink) noexcept -> std::int32_t {
          const auto& me = of(self);
          sink->write(sink->context, {&me.seen, sizeof me.seen});
          return MORTISE_OK;
        },
        [](void* self, mortise_call*, mortise_bytes bytes) noexcept -> std::int32_t {
          if (bytes.size != sizeof(std::int64_t)) return MORTISE_INVALID_ARGUMENT;
          of(self).seen = *static_cast<const std::int64_t*>(bytes.data);
          return MORTISE_OK;
        }};
    return std::strcmp(id, MORTISE_EXT_STATE) == 0 ? &table : nullptr;
  }
  std::int64_t seen = 0;
};
MORTISE_REWARD("counter", Counter)

// Reward: the calls so far, which are its state. A bad row fails its call.
struct StrictCounter : mortise::BatchReward {
  static constexpr const char* summary = "counts the calls over the whole run";
  static constexpr std::int32_t granularity = MORTISE_REWARD_ROW;
  void score(const std::vector<mortise::Row>& rows, mortise::Span<double> rewards, mortise::Call call) override {
    ++num_calls;
    for (const mortise::Row& row : rows) {
      obey(row.completion(), call);
      rewards[&row - rows.data()] = double(num_calls);
    }
  }
  std::string save_state() const { return std::to_string(num_calls); }
  void load_state(std::string_view bytes) { num_calls = std::stoll(std::string(bytes)); }
  const void* extension(const char* id) override { return mortise::state_extension<StrictCounter>(id); }
  std::int64_t num_calls = 0;
};
MORTISE_REWARD("strict_counter", StrictCounter)

// Reward: 1 where the worker may do what the completion names.
struct Probe : mortise::Reward {
  static constexpr const char* summary = "tries what a worker may not do";
  std::string path = param("path", "/tmp/mortise-probe", "file to write or to look for");
  double score(const mortise::Row& row) const {
    const std::string_view what = row.completion();
    if (what == "socket") return close_good(::socket(AF_INET, SOCK_STREAM, 0));
    if (what == "write") return close_good(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
    if (what == "read") return close_good(::open("/proc/self/exe", O_RDONLY));
    if (what == "see") return ::access(path.c_str(), R_OK) == 0 ? 1 : 0;
    if (what == "touch") return ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0 ? 1 : 0;
    if (what == "chmod") return ::chmod(path.c_str(), 0640) == 0 ? 1 : 0;
    if (what == "rename") return ::rename(path.c_str(), (path + "2").c_str()) == 0 ? 1 : 0;
    if (what == "remove") return ::unlink(path.c_str()) == 0 ? 1 : 0;
    if (what == "device") return close_good(::open("/dev/null", O_RDWR));
    if (what == "program") return std::system("exit 3") == 3 << 8 ? 1 : 0;
    // The kernel looks at the path before it asks who may: EPERM is the filter's.
    if (what == "sandbox") return ::syscall(SYS_chroot, nullptr) == -1 && errno == EFAULT ? 1 : 0;
    if (what == "memory") {
      std::string big;
      big.resize(std::size_t{3} << 30);  // bad_alloc above the limit
      return 1;
    }
    if (what == "pid") return double(::getpid());
    if (what == "parent") return double(::getppid());
    if (what == "loaded_by") return double(loaded_by);
    if (what == "crash") std::raise(SIGSEGV);
    if (what == "processors") return double(num_processors());
    if (what == "processes") return double(num_processes());
    if (what == "descriptors") return double(num_descriptors());
    return mortise::not_applicable;
  }
  static double close_good(int fd) { return fd >= 0 && ::close(fd) == 0 ? 1 : 0; }
  static int num_processors() {
    cpu_set_t set;
    return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
  }
  // That it can see.
  static int num_processes() {
    int count = 0;
    for (int pid = 1; pid < 65536; ++pid) count += ::kill(pid, 0) == 0 ? 1 : 0;
    return count;
  }
  static int num_descriptors() {
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  }
};
MORTISE_REWARD("probe", Probe)

// The reward of a turn is the length of its text.
struct Turns : mortise::Environment {
  static constexpr const char* summary = "does what the turn says";
  mortise::Observation step(const mortise::EpisodeAction& action, mortise::Call call) override {
    return {{}, obey(action.text, call), action.is_last};
  }
};
MORTISE_ENVIRONMENT("faulty_turns", Turns)

// For whole runs: 1 if the completion begins with 7. It fails on some other beginnings.
struct Fussy : mortise::Reward {
  static constexpr const char* summary = "1 for completions that begin with 7";
  std::string crash_on = param("crash_on", "", "beginning of completions to crash at");
  std::string hang_on = param("hang_on", "", "beginning of completions to hang at");
  std::string refuse_on = param("refuse_on", "", "beginning of completions to throw at");
  bool hangs = param("hangs", false, "at all completions");
  bool trains_only = param("trains_only", false, "throw in validations");
  std::string mark = param("mark", "", "file that a row makes before it hangs");
  double score(const mortise::Row& row) const {
    const auto begins_with = [&](const std::string& text) {
      return !text.empty() && row.completion().substr(0, text.size()) == text;
    };
    if (begins_with(crash_on)) std::raise(SIGSEGV);
    if (hangs || begins_with(hang_on)) {
      make_mark(mark);
      hang();
    }
    if (trains_only && row.is_validation()) throw std::runtime_error("cannot validate");
    if (begins_with(refuse_on)) throw std::runtime_error("cannot stand it,\nnot at all");
    return begins_with("7") ? 1 : 0;
  }
};
MORTISE_REWARD("fussy", Fussy)

}  // namespace

MORTISE_PACK()
