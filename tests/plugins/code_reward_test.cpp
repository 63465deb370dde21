// The reward code: tests of all kinds, what a program may not do, and time-outs. Needs a working bubblewrap and a
// python3 in /usr.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "code_fixture.h"
#include "support/processes.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

class CodeReward : public CodeFixture {
 protected:
  static RewardCall make(std::map<std::string, std::string> params = {}) { return make_code(std::move(params)); }
  static long peak_kib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  }
  static int processes_that_name(const std::string& text) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      const std::string line{std::istreambuf_iterator<char>(file), {}};
      count += line.find(text) != std::string::npos ? 1 : 0;
    }
    return count;
  }
};

TEST_F(CodeReward, StandardInputAndOutput) {
  auto plugin = make();
  const std::string tests = R"({"inputs": ["1 2\n", "3 4", "5 5"], "outputs": ["3\n", "7 ", "11"]})";
  EXPECT_DOUBLE_EQ(score(plugin, "a, b = map(int, input().split())\nprint(a + b)", tests), 2.0 / 3);
  EXPECT_DOUBLE_EQ(score(plugin, "Here:\n```python\nprint(sum(map(int, input().split())))\n```\nIt adds.", tests),
                   2.0 / 3);
  EXPECT_EQ(score(plugin, "print(", tests), 0) << "does not compile";
  EXPECT_EQ(score(plugin, "print(3); raise SystemExit(1)", tests), 0) << "does not end well";
  auto all = make({{"all_or_nothing", "true"}});
  EXPECT_EQ(score(all, "a, b = map(int, input().split())\nprint(a + b)", tests), 0);
  EXPECT_EQ(score(all, "a, b = map(int, input().split())\nprint(a + b + (a == 5))", tests), 1);
}

TEST_F(CodeReward, OutputIsComparedByLinesAndNumbers) {
  auto plugin = make();
  const auto prints = [&](const std::string& program, const std::string& expected) {
    return score(plugin, program, R"({"inputs": [""], "outputs": [")" + expected + R"("]})") == 1;
  };
  EXPECT_TRUE(prints("print('a  ')\nprint('b')\nprint()", "a\\nb"));
  EXPECT_TRUE(prints("print(1/3)", "0.3333333333"));
  EXPECT_FALSE(prints("print(1/3)", "0.33"));
  EXPECT_FALSE(prints("print('a b')", "a\\nb"));
  EXPECT_FALSE(prints("print('nan')", "inf"));
}

TEST_F(CodeReward, CallsAndAsserts) {
  auto plugin = make();
  const std::string calls = R"({"fn_name": "add", "inputs": [[1, 2], "3\n4"], "outputs": [3, [7]]})";
  EXPECT_EQ(score(plugin, "def add(a, b):\n  print('noise')\n  return a + b", calls), 1);
  EXPECT_EQ(score(plugin, "class Solution:\n  def add(self, a, b): return a + b", calls), 1);
  EXPECT_EQ(score(plugin, "def add(a, b): return a - b", calls), 0);
  EXPECT_EQ(score(plugin, "def other(): pass", calls), 0);
  const std::string asserts = R"({"tests": ["assert f(1) == 2", "assert f(2) == 4", "assert f(3) == 7"]})";
  EXPECT_DOUBLE_EQ(score(plugin, "def f(x): return 2 * x", asserts), 2.0 / 3);
  EXPECT_EQ(score(plugin, "import os\nos._exit(0)", asserts), 0) << "ending before the test is not passing it";
}

TEST_F(CodeReward, MaxTestsAreRun) {
  auto two = make({{"max_tests", "2"}});
  EXPECT_EQ(score(two, "print(input())", R"({"inputs": ["1", "2", "3"], "outputs": ["1", "2", "4"]})"), 1);
}

TEST_F(CodeReward, AProgramSeesNothingOfTheMachine) {
  auto plugin = make();
  const TempDir dir;
  const auto secret = dir.write("secret.txt", "42");
  EXPECT_FALSE(runs(plugin, "print(open('" + secret.string() + "').read()); print('ok')"));
  EXPECT_FALSE(runs(plugin, "open('/etc/passwd'); print('ok')"));
  EXPECT_FALSE(runs(plugin, "open('/usr/x', 'w'); print('ok')"));
  EXPECT_FALSE(runs(plugin, "open('/x', 'w'); print('ok')"));
  EXPECT_FALSE(runs(plugin, "import socket; socket.socket(); print('ok')"));
  EXPECT_FALSE(runs(plugin, "import os; os.fork(); print('ok')"));
  EXPECT_FALSE(runs(plugin, "import subprocess; subprocess.run(['true']); print('ok')"));
  ::setenv("MORTISE_TEST_SECRET", "1", 1);
  EXPECT_TRUE(runs(plugin, "import os; assert 'MORTISE_TEST_SECRET' not in os.environ; print('ok')"));
  ::unsetenv("MORTISE_TEST_SECRET");
  EXPECT_TRUE(runs(plugin, "import os; assert os.getpid() < 10; print('ok')")) << "a process list of its own";
  EXPECT_TRUE(runs(plugin, "open('/tmp/x', 'w').write('1'); print('ok')"));
  EXPECT_TRUE(runs(plugin, "import threading; t = threading.Thread(target=print, args=('ok',)); t.start(); t.join()"));
}

TEST_F(CodeReward, AProgramHasLimits) {
  auto plugin = make({{"memory_mib", "256"}, {"file_mib", "1"}, {"output_kib", "4"}});
  EXPECT_FALSE(runs(plugin, "x = bytearray(1 << 29); print('ok')"));
  EXPECT_FALSE(
      runs(plugin, "f = open('/tmp/x', 'wb')\nfor _ in range(40): f.write(bytes(1 << 16))\nf.close()\nprint('ok')"));
  EXPECT_FALSE(runs(plugin, "print('x' * 100000); print('ok')"));
  EXPECT_FALSE(runs(plugin, "import os; os.memfd_create('x'); print('ok')")) << "memory outside the address space";
  EXPECT_FALSE(runs(plugin, "import ctypes; assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0; print('ok')"));
  EXPECT_TRUE(runs(plugin, "print('ok')"));
}

// Who writes without end is stopped by the limit or by the clock, on either stream, and takes no memory meanwhile.
TEST_F(CodeReward, FloodsAreStopped) {
  auto plugin = make({{"time_limit", "1"}, {"output_kib", "64"}});
  // Many writers and a wide pipe: there is always more to read.
  const std::string flood =
      "import fcntl, os, threading\nblock = b'x' * 1048576\ndef pour(fd):\n  while True: os.write(fd, block)\n"
      "def all(fd):\n  fcntl.fcntl(fd, 1031, 1048576)\n"
      "  for _ in range(8): threading.Thread(target=pour, args=(fd,)).start()\n";
  const long before = peak_kib();
  auto patient = make({{"output_kib", "64"}});
  EXPECT_FALSE(runs(patient, flood + "all(1)"));
  EXPECT_EQ(patient.values["code/timed_out"][0], 0) << "too much output ends it before the time does";
  EXPECT_FALSE(runs(plugin, flood + "all(2)"));
  EXPECT_EQ(plugin.values["code/timed_out"][0], 1);
  EXPECT_FALSE(runs(plugin, "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(100000)")) << "closed and alive";
  EXPECT_EQ(plugin.values["code/timed_out"][0], 1);
  EXPECT_LT(peak_kib() - before, 16 * 1024);
}

// Threads that never end die with their program, and nothing of the sandbox remains.
TEST_F(CodeReward, NothingIsLeftBehind) {
  const TempDir named;  // its path is on the command line that starts the sandbox
  auto plugin = make({{"time_limit", "1"}, {"read", named.path().string()}});
  const std::string bomb =
      "import threading, time\nthreading.stack_size(65536)\n"
      "try:\n  for _ in range(5000): threading.Thread(target=time.sleep, args=(1000,)).start()\nexcept RuntimeError: "
      "pass\nwhile True: pass";
  EXPECT_FALSE(runs(plugin, bomb));
  EXPECT_FALSE(runs(plugin, "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"));
  EXPECT_FALSE(
      runs(plugin, "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(100000)"));
  auto patient = make();
  EXPECT_TRUE(runs(patient, "print('ok')")) << "the next one has all its room";
  EXPECT_TRUE(comes_true([&] { return processes_that_name(named.path().string()) == 0; }));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no child, dead or alive";
}

TEST_F(CodeReward, TimeOutsEndTheRowsTests) {
  auto plugin = make({{"time_limit", "10"}});  // the first test, which ends, has to start Python within it
  const std::string tests = R"({"inputs": ["1", "2", "3", "4"], "outputs": ["1", "2", "3", "4"]})";
  EXPECT_DOUBLE_EQ(score(plugin, "x = input()\nwhile x == '2': pass\nprint(x)", tests), 0.25);
  EXPECT_EQ(plugin.values["code/timed_out"][0], 1);
  EXPECT_EQ(score(plugin, "import time; time.sleep(100000)", tests), 0);
}

TEST_F(CodeReward, ColumnsWithoutTestsFailTheirRow) {
  auto plugin = make();
  const TestColumn column{"test_cases",
                          MORTISE_COLUMN_TEXT,
                          {"{}", R"({"inputs": ["1"], "outputs": []})", "[", R"({"tests": []})", std::nullopt},
                          {}};
  const auto got = plugin.score({{"", "", "", "", ""}, {column}, {}, {}, 0});
  for (const double reward : got) EXPECT_TRUE(std::isnan(reward));
  EXPECT_EQ(plugin.plugin.call.failed_rows.size(), 4U);
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(1).text, HasSubstr("must have as many inputs as outputs"));
  const std::string nested = std::string(300'000, '[') + std::string(300'000, ']');
  const TestColumn deep{"test_cases",
                        MORTISE_COLUMN_TEXT,
                        {nested, R"({"fn_name": "f", "inputs": [")" + nested + R"("], "outputs": ["1"]})"},
                        {}};
  for (const double reward : plugin.score({{"", ""}, {deep}, {}, {}, 0})) EXPECT_TRUE(std::isnan(reward));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(1).text, HasSubstr("nested deeper than 128 levels"));
}

TEST_F(CodeReward, AMissingInterpreterIsToldAtTheStart) {
  const RewardCall none = make({{"python", "/nowhere/python"}});
  EXPECT_EQ(none.plugin.self, nullptr);
  EXPECT_THAT(none.plugin.call.error, HasSubstr("Python does not run in the sandbox on this machine"));
  ::setenv("PATH", "/nowhere", 1);
  const RewardCall no_bwrap = make();
  ::setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
  EXPECT_THAT(no_bwrap.plugin.call.error, HasSubstr("install the package bubblewrap"));
}

}  // namespace
}  // namespace mortise::test
