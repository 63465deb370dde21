// code: how many of a row's tests does the completion's Python program pass?
//
// The program is the last ```python block (else the last ``` block, else the whole completion). The column has JSON, as
// in APPS, codecontests and taco: with {"inputs": [...], "outputs": [...]} the program reads standard input and prints;
// with "fn_name" the function (or the method of class Solution) is called with each input's arguments instead. Or
// {"tests": ["assert f(1) == 2", ...]}, each run after the program.
// Every test is its own process in a sandbox (sandbox.h). A crash, a wrong answer and a time-out are failed tests.
// After the first time-out the row's other tests count as failed, which bounds a row's time. If the machine is the
// cause (no process, killed because memory ran out), the sandbox tries again, and then the row has no score.
// Trap: `timeout` and `row_timeout` of the [[reward]] table must leave room for a row's tests, or the row has no score.
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include <mortise/cpp/mortise.hpp>

#include "../../shared/columns.h"
#include "code_tests.h"
#include "sandbox.h"

namespace mortise {
namespace {

struct Code : Reward {
  static constexpr const char* summary = "the fraction of a row's tests that the completion's Python program passes";
  static constexpr const char* doc =
      "tests: {\"inputs\", \"outputs\"[, \"fn_name\"]} or {\"tests\": [asserts]}; each in a bubblewrap sandbox without "
      "network, with limits on time, memory, files, output";
  static constexpr std::uint32_t flags =
      MORTISE_FLAG_CONCURRENT | MORTISE_FLAG_NEEDS_PROGRAMS | MORTISE_FLAG_NEEDS_FILES | MORTISE_FLAG_NEEDS_SANDBOX;

  std::string column = param("column", "test_cases", "data column with the tests as JSON, or a dotted path").column();
  std::string interpreter = param("python", "python3", "Python in the sandbox, by name or path");
  std::string read =
      param("read", "", "further folders that programs may read, separated by ':' (a virtual environment)");
  double time_limit = param("time_limit", 1.5, "seconds for one test").range(0.05, 3600);
  std::int64_t memory_mib = param("memory_mib", 1024, "address space of the program").range(32, 1 << 20);
  std::int64_t file_mib = param("file_mib", 64, "its files in /tmp").range(1, 1 << 16);
  std::int64_t output_kib = param("output_kib", 1024, "limit of its output; more is a failed test").range(1, 1 << 20);
  std::int64_t max_threads =
      param("max_threads", 128, "threads of the program, with its main thread; more is a failed test")
          .range(1, 1 << 16);
  std::int64_t max_tests =
      param("max_tests", 10, "number of a row's tests to run, from the first on; 0: all").at_least(0);
  bool all_or_nothing = param("all_or_nothing", false, "1 if every test passes, else 0; stops at the first failure");
  double tolerance = param("tolerance", 1e-6, "relative difference between printed numbers that are equal").at_least(0);

  void setup(Call) override {
    std::vector<std::string> folders;
    for (std::size_t at = 0; at < read.size();) {
      const std::size_t end = std::min(read.find(':', at), read.size());
      if (end > at) folders.push_back(read.substr(at, end - at));
      at = end + 1;
    }
    sandbox_ = std::make_unique<Sandbox>(std::move(folders));
    // Starts a thread. If the kernel counts threads differently than expected, its limit on them is not used.
    const std::string program =
        max_threads == 1 ? "print('ready')"
                         : "import threading\nt = threading.Thread(target=print, args=('ready',))\nt.start()\nt.join()";
    CodeTests tests;
    tests.cases.push_back({"", "ready\n", {}, ""});
    SandboxLimits limits = test_limits();
    limits.seconds = 20;
    std::string why;
    const auto works = [&] {
      try {
        const SandboxRun trial = sandbox_->run(interpreter, job_of(tests, tests.cases[0], program, ""), limits);
        why = "exit code " + std::to_string(trial.code) + ": " + trial.errors;
        return passes(tests, tests.cases[0], trial, "", 0);
      } catch (const Failure& e) {
        why = e.what();
        return false;
      }
    };
    // Other programs may hold all processes and threads for a moment.
    const auto works_soon = [&](int attempts) {
      for (int attempt = 0; attempt < attempts; ++attempt) {
        if (works()) return true;
        const bool short_of_processes = why.find("can't start new thread") != std::string::npos ||
                                        why.find("Resource temporarily unavailable") != std::string::npos;
        if (!short_of_processes) return false;
        ::usleep(100'000U << attempt);
      }
      return false;
    };
    if (works_soon(3)) return;
    sandbox_->leave_thread_limit();
    if (works_soon(5)) return;
    fail(MORTISE_FAILED_PRECONDITION,
         "Python does not run in the sandbox on this machine: " + why +
             ". bubblewrap needs user namespaces or root, '" + interpreter +
             "' must be in /usr or in a folder of `read`, and memory_mib must be large enough");
  }

  double score(const Row& row) const {
    const auto column_value = find_value(row, column);
    if (!column_value) return not_applicable;
    const CodeTests tests = read_tests(*column_value, column);
    const std::size_t count =
        max_tests == 0 ? tests.cases.size() : std::min(tests.cases.size(), std::size_t(max_tests));
    const std::string program = program_of(row.completion());
    std::size_t passed = 0, timed_out = 0;
    for (std::size_t i = 0; i < count && !program.empty(); ++i) {
      const Verdict verdict = run_test(tests, tests.cases[i], program);
      if (verdict == Verdict::kPassed) ++passed;
      if (verdict == Verdict::kTimedOut) ++timed_out;
      if (timed_out > 0 || (all_or_nothing && verdict != Verdict::kPassed)) break;
    }
    row.note("code/timed_out", double(timed_out));
    if (all_or_nothing) return passed == count ? 1 : 0;
    return double(passed) / double(count);
  }

 private:
  enum class Verdict { kPassed, kFailed, kTimedOut };

  [[nodiscard]] SandboxLimits test_limits() const {
    return {time_limit, memory_mib << 20, file_mib << 20, output_kib << 10, max_threads};
  }

  Verdict run_test(const CodeTests& tests, const CodeCase& one, const std::string& program) const {
    const std::string nonce = random_text();
    const SandboxRun run = sandbox_->run(interpreter, job_of(tests, one, program, nonce), test_limits());
    if (run.end == SandboxRun::kTimedOut) return Verdict::kTimedOut;
    return passes(tests, one, run, nonce, tolerance) ? Verdict::kPassed : Verdict::kFailed;
  }

  static std::string random_text() {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != ssize_t(sizeof bytes)) fail(MORTISE_INTERNAL, "no random bytes");
    std::string out;
    for (const unsigned char b : bytes) out += {"0123456789abcdef"[b >> 4], "0123456789abcdef"[b & 15]};
    return out;
  }

  std::unique_ptr<Sandbox> sandbox_;
};

}  // namespace
}  // namespace mortise

MORTISE_REWARD("code", mortise::Code)
