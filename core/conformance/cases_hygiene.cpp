// Hygiene cases: the process after create, the work and destroy is the process before; failures are statuses.
#include <fmt/core.h>

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

#include "conformance/process_state.h"
#include "conformance/reward_call.h"
#include "conformance/token_batch.h"
#include "conformance/workload.h"
#include "foundation/base/clock.h"
#include "foundation/base/text.h"
#include "plugin/pack/tier.h"

// True under the address sanitizer.
extern "C" __attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes();

namespace mortise::check {
namespace {

struct Lives {
  ProcessState before, between, after;  // between: while an instance is alive and has worked
};
// Creates, uses and destroys an instance. A rollout backend that does not accept our prompts does no work.
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
  return broken(
      fmt::format("changes the locale from {} to {}", quote(lives.before.locale), quote(lives.between.locale)));
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
  return broken(fmt::format("changes the floating-point mode from {} to {}", lives.before.floating_point,
                            lives.between.floating_point));
}

Result<> descriptors(Subject& subject) {
  const Lives lives = TRY(live(subject));
  const std::string changed = descriptor_difference(lives.before, lives.after);
  return changed.empty() ? Result<>() : broken(changed);
}

// libtorch keeps pools of threads after its first use. A pack bound to it is responsible only for the threads that
// later instances add.
Result<> threads(Subject& subject) {
  const Lives first = TRY(live(subject));
  int64_t allowed = first.before.num_threads;
  if (subject.pack().tier == kTorchLocked) {
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
  return broken(fmt::format("prints {} bytes; use host->log", size));
}

Result<> leaves_by_itself(Subject& subject) {
  const Instance instance = TRY(subject.create(make_host()));
  auto done = do_work(instance);
  if (!done.ok() && !is_not_applicable(done.error())) return std::move(done).error();
  return {};  // the parent process checks how this one ends
}

// Whatever goes wrong, the result is a status and a text.
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
    elsewhere.device = subject.untaken_device();
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

// The stack counts as memory too, so allocate in advance what a call may need of it.
__attribute__((noinline)) void grow_stack() {
  volatile char pages[1 << 20];
  for (size_t i = 0; i < sizeof pages; i += 4096) pages[i] = 0;
}

// While it exists, almost no memory can be allocated.
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

// A large batch with no memory left: the result is a status, with or without an exception inside the plugin.
Result<> out_of_memory(Subject& subject) {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return not_applicable("this program is built with a sanitizer");
  if ((subject.kind() & (kRollout | kEnvironment)) != 0) return not_applicable("its work is not a call of one batch");
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
  return broken(fmt::format("without memory it returned {}, which is not a status code", call.code));
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

// Whether repetitions leak: in all more than a container may grow once, or a little in each half. `bytes` was counted
// before the first repetition and after each.
bool keeps_growing(const std::vector<int64_t>& bytes) {
  const auto growth = [&](size_t from, size_t to, int64_t slack) {
    return bytes[to] - bytes[from] > 4 * static_cast<int64_t>(to - from) + slack;
  };
  const size_t end = bytes.size() - 1, middle = end / 2;
  return growth(0, end, 16'384) || (growth(0, middle, 256) && growth(middle, end, 256));
}

// Repeats `once`, and is broken if memory grows. Ends early if time runs short, which the report then says.
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
  const std::string count = fmt::format("{} times {}", format_count(done), what);
  if (done < repeats.least) return broken(fmt::format("only {} fit into the time", count));
  if (keeps_growing(bytes))
    return broken(
        fmt::format("{} leave {} behind", count, format_bytes(static_cast<uint64_t>(bytes.back() - bytes.front()))));
  const int64_t mapped = address_space() - space;
  if (mapped > (int64_t{64} << 20) && __sanitizer_get_current_allocated_bytes == nullptr)
    return broken(fmt::format("{} leave {} mapped", count, format_bytes(static_cast<uint64_t>(mapped))));
  if (done == repeats.wanted) return {};
  const double seconds = stopwatch.elapsed_s() / static_cast<double>(done) * static_cast<double>(repeats.wanted) / 0.6;
  subject.note(fmt::format("{} fit into the time, of {} wanted; all would need --timeout {}s", count,
                           format_count(repeats.wanted), static_cast<int64_t>(seconds * 1.2) + 1));
  return {};
}

Result<> create_growth(Subject& subject) {
  const mortise_host* host = make_host();
  // An instance that starts its own program takes its time.
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
  if (subject.kind() == kEnvironment) {
    return demand_no_growth(subject, {200, 20}, "the same episodes", [&]() -> Result<> {
      TRY(do_work(instance));
      return {};
    });
  }
  const TokenBatch batch = usual_batch();
  return demand_no_growth(subject, {200, 20}, "the same call", [&]() -> Result<> {
    TRY(tokens_ok(instance, batch));
    return {};
  });
}

constexpr Case kHygieneCases[] = {
    {"hygiene.signals", "R20", kEvery, "signal handlers do not change", signals},
    {"hygiene.locale", "R20", kEvery, "the locale does not change", locale},
    {"hygiene.directory", "R20", kEvery, "the working directory does not change", folder},
    {"hygiene.environment", "R20", kEvery, "the environment does not change", environment},
    {"hygiene.umask", "R20", kEvery, "the umask does not change", umask},
    {"hygiene.floating_point", "R20", kEvery, "the floating-point mode does not change", floating_point},
    {"hygiene.descriptors", "R20", kEvery, "it closes the descriptors that it opened, and no others", descriptors},
    {"hygiene.threads", "R18", kEvery, "its threads end with destroy", threads},
    {"hygiene.children", "R20", kEvery, "it leaves no child process behind", children},
    {"hygiene.output", "R38", kEvery, "it prints only through the log of the host", output},
    {"hygiene.exit", "R20", kEvery, "only the program ends the process, and the exit is clean", leaves_by_itself},
    {"hygiene.exceptions", "R15", kEvery, "no exception leaves a slot", exceptions},
    {"hygiene.out_of_memory", "R15", kEvery, "a call without enough memory returns a status", out_of_memory},
    {"hygiene.create_growth", "R18", kEvery, "10,000 instances leak no memory", create_growth},
    {"hygiene.call_growth", "R16", kEvery, "calls leak no memory", call_growth},
};

}  // namespace

std::span<const Case> hygiene_cases() { return kHygieneCases; }

}  // namespace mortise::check
