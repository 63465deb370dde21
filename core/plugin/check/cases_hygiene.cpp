// Hygiene cases: the process after create, the work and destroy is the process before; failures are statuses.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "plugin/check/process_state.h"
#include "plugin/check/reward_call.h"
#include "plugin/check/token_batch.h"
#include "plugin/check/workload.h"

// Of the address sanitizer, where the program is built with it.
extern "C" __attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes();

namespace mortise::check {
namespace {

struct Lives {
  ProcessState before, between, after;  // between: while an instance is alive and has worked
};
// One life of an instance. A rollout backend that takes no prompts of ours lives without work.
Result<Lives> live(const Subject& subject) {
  (void)host_log();
  const mortise_host* host = make_host();
  (void)ProcessState::now();  // what the C library opens once is opened
  Lives out;
  out.before = ProcessState::now();
  {
    Instance instance = TRY(subject.create(host));
    auto done = do_work(instance);
    if (!done.ok() && !is_not_applicable(done.error())) return std::move(done).error();
    out.between = ProcessState::now();
  }
  out.after = ProcessState::now();
  return out;
}

Result<> signals(Subject& subject) {
  const Lives lives = TRY(live(subject));
  for (const ProcessState* state : {&lives.between, &lives.after}) {
    if (const std::string changed = signal_difference(lives.before, *state); !changed.empty())
      return broken("changes " + changed);
  }
  return {};
}

Result<> locale(Subject& subject) {
  const Lives lives = TRY(live(subject));
  if (lives.before.locale == lives.between.locale && lives.before.locale == lives.after.locale) return {};
  return broken("changes the locale from " + quote(lives.before.locale) + " to " + quote(lives.between.locale));
}

Result<> folder(Subject& subject) {
  const Lives lives = TRY(live(subject));
  if (lives.before.folder == lives.between.folder && lives.before.folder == lives.after.folder) return {};
  return broken("changes the working directory to " + quote(lives.between.folder));
}

Result<> environment(Subject& subject) {
  const Lives lives = TRY(live(subject));
  for (const ProcessState* state : {&lives.between, &lives.after}) {
    if (const std::string changed = environment_difference(lives.before, *state); !changed.empty())
      return broken("changes " + changed);
  }
  return {};
}

Result<> umask(Subject& subject) {
  const Lives lives = TRY(live(subject));
  if (lives.before.umask == lives.between.umask && lives.before.umask == lives.after.umask) return {};
  return broken("changes the umask");
}

Result<> floating_point(Subject& subject) {
  const Lives lives = TRY(live(subject));
  if (lives.before.floating_point == lives.between.floating_point &&
      lives.before.floating_point == lives.after.floating_point)
    return {};
  return broken("changes the floating-point mode from " + lives.before.floating_point + " to " +
                lives.between.floating_point);
}

Result<> descriptors(Subject& subject) {
  const Lives lives = TRY(live(subject));
  const std::string changed = descriptor_difference(lives.before, lives.after);
  return changed.empty() ? Result<>() : broken(changed);
}

// libtorch keeps pools of threads from its first use on, whoever uses it: a pack bound to it answers for what later
// instances add to those.
Result<> threads(Subject& subject) {
  const Lives first = TRY(live(subject));
  int64_t allowed = first.before.num_threads;
  if (subject.pack().tier == "torch-locked") {
    allowed = settled_threads(allowed);
    for (int i = 0; i < 2; ++i) TRY(live(subject));
  }
  const int64_t left = settled_threads(allowed) - allowed;
  if (left <= 0) return {};
  return broken(std::to_string(left) + " of its threads live on after destroy");
}

Result<> children(Subject& subject) {
  const Lives lives = TRY(live(subject));
  if (lives.after.has_children == lives.before.has_children) return {};
  return broken("leaves a child process behind");
}

Result<> output(Subject& subject) {
  const auto printed = [] {
    std::fflush(nullptr);
    return ::lseek(1, 0, SEEK_END);
  };
  const off_t before = printed();
  TRY(live(subject));
  const off_t size = printed() - before;
  if (size <= 0) return {};
  return broken("prints " + std::to_string(size) + " bytes; use host->log");
}

Result<> leaves_by_itself(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  auto done = do_work(instance);
  if (!done.ok() && !is_not_applicable(done.error())) return std::move(done).error();
  return {};  // how the process ends is judged by who started it
}

// Whatever goes wrong, what comes out is a status and a text.
Result<> exceptions(Subject& subject) {
  HostShape bare;
  bare.params = false;
  bare.memory = false;
  bare.extensions = false;
  SlotCall made;
  {
    auto refused = subject.create(make_host(bare), &made);
    if (!made.thrown.empty()) return judge(made, "create");
  }
  auto created = subject.create(make_host(), &made);
  TRY(judge(made, "create"));
  if (!created.ok()) return std::move(created).error();
  const Instance& instance = *created;
  if ((subject.kind() & kTokens) != 0) {
    TokenCall elsewhere;
    elsewhere.device = MORTISE_CUDA;
    const SlotCall call = call_tokens(instance, usual_batch(), elsewhere).call;
    if (!call.thrown.empty()) return judge(call, "compute");
  }
  if (subject.kind() == kReward) {
    RewardBatch rows = usual_rows(subject);
    for (DataColumn& column : rows.columns) column.type = ColumnType::kJson;  // texts that are no JSON
    const SlotCall call = call_reward(instance, rows).call;
    if (!call.thrown.empty()) return judge(call, "score");
  }
  return {};
}

int64_t address_space() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// The stack counts as memory too: what a call may need of it is there before.
__attribute__((noinline)) void grow_stack() {
  volatile char pages[1 << 20];
  for (size_t i = 0; i < sizeof pages; i += 4096) pages[i] = 0;
}

// From its making on nothing more can be allocated but scraps.
class Famine {
 public:
  Famine() {
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit nothing{static_cast<rlim_t>(address_space()), before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &nothing);
    for (size_t size = size_t{8} << 20; size >= 512; size /= 2) {
      while (num_eaten_ < eaten_.size() && (eaten_[num_eaten_] = std::malloc(size)) != nullptr) ++num_eaten_;
    }
  }
  Famine(const Famine&) = delete;
  Famine& operator=(const Famine&) = delete;
  ~Famine() {
    ::setrlimit(RLIMIT_AS, &before_);
    while (num_eaten_ > 0) std::free(eaten_[--num_eaten_]);
  }

 private:
  rlimit before_{};
  std::array<void*, 65536> eaten_{};
  size_t num_eaten_ = 0;
};

// A large batch with no memory left: an exception inside the plugin or not, what comes out is a status.
Result<> out_of_memory(Subject& subject) {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return not_applicable("this program is built with a sanitizer");
  if (subject.kind() == kRollout) return not_applicable("its work is not a call of one batch");
  const Instance instance = TRY(subject.create(make_host()));
  std::optional<Famine> famine;
  grow_stack();
  subject.around_slots([&] { famine.emplace(); }, [&] { famine.reset(); });
  SlotCall call;
  if (subject.kind() == kReward) {
    const std::vector<std::string> texts(64, std::string(1 << 16, 'x'));
    call = call_reward(instance, rows_of(subject, texts)).call;
  } else {
    const std::vector<int64_t> lengths(2048, 64);
    call = call_tokens(instance, make_batch(lengths, 4, 1, true)).call;
  }
  subject.around_slots(nullptr, nullptr);
  if (!call.thrown.empty()) return broken("without memory it threw " + call.thrown);
  if (call.code >= 0 && call.code <= MORTISE_UNAUTHENTICATED) return {};
  return broken("without memory it returned " + std::to_string(call.code) + ", which is no status code");
}

// Bytes that are allocated and not freed.
int64_t allocated() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
  const auto info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

struct Repeats {
  int64_t wanted;  // where time allows
  int64_t least;   // fewer prove nothing
};

// Memory that repetitions left behind: more than a container may grow once, or a little in each half of them. One byte
// count before the first and after each.
bool keeps_growing(const std::vector<int64_t>& bytes) {
  const auto growth = [&](size_t from, size_t to, int64_t slack) {
    return bytes[to] - bytes[from] > 4 * static_cast<int64_t>(to - from) + slack;
  };
  const size_t end = bytes.size() - 1, middle = end / 2;
  return growth(0, end, 16'384) || (growth(0, middle, 256) && growth(middle, end, 256));
}

// `once` repeated; broken where memory grows. Ends early when time runs short, which the report then says.
Result<> demand_no_growth(Subject& subject, Repeats repeats, const std::string& what,
                          const std::function<Result<>()>& once) {
  const auto repeat = [&]() -> Result<> {
    TRY(once());
    const std::lock_guard lock(host_log().mutex);
    host_log().lines.clear();  // ours, not the plugin's
    return {};
  };
  for (int64_t i = 0; i < std::min<int64_t>(50, repeats.least / 2); ++i) TRY(repeat());
  std::vector<int64_t> bytes;
  bytes.reserve(static_cast<size_t>(repeats.wanted) + 1);
  bytes.push_back(allocated());
  const int64_t space = address_space(), limit_ns = subject.request().timeout_ms * 600'000;
  const Stopwatch stopwatch;
  int64_t done = 0;
  for (; done < repeats.wanted && stopwatch.elapsed_ns() < limit_ns; ++done) {
    TRY(repeat());
    bytes.push_back(allocated());
  }
  const std::string count = format_count(done) + " times " + what;
  if (done < repeats.least) return broken("only " + count + " fit into the time");
  if (keeps_growing(bytes))
    return broken(count + " leave " + format_bytes(static_cast<uint64_t>(bytes.back() - bytes.front())) + " behind");
  const int64_t mapped = address_space() - space;
  if (mapped > (int64_t{64} << 20) && __sanitizer_get_current_allocated_bytes == nullptr)
    return broken(count + " leave " + format_bytes(static_cast<uint64_t>(mapped)) + " mapped");
  if (done == repeats.wanted) return {};
  const double seconds = stopwatch.elapsed_s() / static_cast<double>(done) * static_cast<double>(repeats.wanted) / 0.6;
  subject.note(count + " fit into the time, of " + format_count(repeats.wanted) + " wanted; all would need --timeout " +
               std::to_string(static_cast<int64_t>(seconds * 1.2) + 1) + "s");
  return {};
}

Result<> create_growth(Subject& subject) {
  const mortise_host* host = make_host();
  // An instance that starts a program of its own takes its time.
  const bool starts_programs = (subject.info().flags & MORTISE_FLAG_NEEDS_PROGRAMS) != 0;
  return demand_no_growth(subject, {10'000, starts_programs ? 10 : 1'000}, "create and destroy", [&]() -> Result<> {
    const Instance instance = TRY(subject.create(host));
    return {};
  });
}

Result<> call_growth(Subject& subject) {
  if (subject.kind() == kRollout) return not_applicable("its work is not a call of one batch");
  const Instance instance = TRY(subject.create(make_host()));
  if (subject.kind() == kReward) {
    RewardBatch rows = usual_rows(subject);
    rows.columns.resize(std::min<size_t>(rows.columns.size(), 1));  // the rest is this program's work, not the plugin's
    return demand_no_growth(subject, {200, 20}, "the same call", [&]() -> Result<> {
      TRY(reward_ok(instance, rows));
      return {};
    });
  }
  const TokenBatch batch = usual_batch();
  return demand_no_growth(subject, {200, 20}, "the same call", [&]() -> Result<> {
    TRY(tokens_ok(instance, batch));
    return {};
  });
}

constexpr Case kCases[] = {
    {"hygiene.signals", "R20", kEvery, "signals are as they were", signals},
    {"hygiene.locale", "R20", kEvery, "so is the locale", locale},
    {"hygiene.directory", "R20", kEvery, "and the working directory", folder},
    {"hygiene.environment", "R20", kEvery, "and the environment", environment},
    {"hygiene.umask", "R20", kEvery, "and the umask", umask},
    {"hygiene.floating_point", "R20", kEvery, "and the floating-point mode", floating_point},
    {"hygiene.descriptors", "R20", kEvery, "no descriptor stays open, and none of others is closed", descriptors},
    {"hygiene.threads", "R18", kEvery, "no thread lives on after destroy", threads},
    {"hygiene.children", "R20", kEvery, "no process lives on", children},
    {"hygiene.output", "R38", kEvery, "nothing is printed past the host's log", output},
    {"hygiene.exit", "R20", kEvery, "the process ends when the program ends it, and cleanly", leaves_by_itself},
    {"hygiene.exceptions", "R15", kEvery, "no exception leaves a slot", exceptions},
    {"hygiene.out_of_memory", "R15", kEvery, "without memory a call returns a status", out_of_memory},
    {"hygiene.create_growth", "R18", kEvery, "10,000 instances leave no memory behind", create_growth},
    {"hygiene.call_growth", "R16", kEvery, "calls leave no memory behind", call_growth},
};

}  // namespace

std::span<const Case> hygiene_cases() { return kCases; }

}  // namespace mortise::check
