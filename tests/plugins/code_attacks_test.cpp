// code: programs that try to look as if they had passed, as if the machine had failed, or to starve the others; and a
// machine that does fail. Needs bubblewrap that works and a python3 in /usr.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "code_fixture.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

class CodeAttacks : public CodeFixture {
 protected:
  void TearDown() override { ::setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1); }

  static RewardCall make(std::map<std::string, std::string> params = {}) { return make_code(std::move(params)); }
  static double asserts(const std::string& program, const std::string& statement, RewardCall plugin = make()) {
    return score(plugin, program, R"({"tests": [")" + statement + "\"]}");
  }
  // A folder with a program `bwrap` that comes before the real one in PATH.
  static void put_before_bubblewrap(const TempDir& dir, const std::string& script) {
    dir.write("bwrap", "#!/bin/sh\n" + script + "\nexec /usr/bin/bwrap \"$@\"\n");
    ::chmod((dir.path() / "bwrap").c_str(), 0755);
    ::setenv("PATH", (dir.path().string() + ":/usr/local/bin:/usr/bin:/bin").c_str(), 1);
  }
};

// A statement that the wrong program must fail, in a form that keeps the expected value outside the program's process,
// and in one that does not.
const char* const kStatements[] = {"assert f(20) == 6765", "assert abs(f(20) - 6765) < 0.5"};
constexpr const char* kWrong = "def f(n): return 0\n";

TEST_F(CodeAttacks, HonestProgramsPassBothForms) {
  const std::string fibonacci = "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\n";
  for (const char* statement : kStatements) {
    EXPECT_EQ(asserts(fibonacci, statement), 1) << statement;
    EXPECT_EQ(asserts(kWrong, statement), 0) << statement;
  }
}

// Each program searches another place for the proof of success, and prints what it finds.
TEST_F(CodeAttacks, NoProgramFindsTheMarkOfSuccess) {
  const std::string say =
      "import os, re\n"
      "def say(text):\n"
      "  if isinstance(text, str): text = text.encode('utf-8', 'replace')\n"
      "  for one in set(re.findall(rb'mortise-[0-9a-f]+|[0-9a-f]{32}', bytes(text))):\n"
      "    for fd in range(1, 12):\n"
      "      try: os.write(fd, one if fd > 2 else b'\\n' + one + b'\\n')\n"
      "      except OSError: pass\n"
      "def leave(): os._exit(0)\n";
  const std::map<std::string, std::string> attacks = {
      {"the program's own file", "say(open('/program').read() + '\\n'); leave()"},
      {"the harness", "say(open('/harness').read()); leave()"},
      {"every descriptor, before the test",
       "for fd in range(3, 64):\n  try: say(os.pread(fd, 4096, 0)); leave()\n  except OSError: pass\n"
       "for fd in range(3, 64):\n  try:\n    os.set_blocking(fd, False); say(os.read(fd, 4096))\n"
       "  except OSError: pass\n"},
      {"/proc",
       "for name in ('cmdline', 'environ', 'fd/3', 'fd/6', 'fd/7', 'mem'):\n"
       "  try: say(open('/proc/self/' + name, 'rb').read()); leave()\n  except OSError: pass\n"},
      {"the environment and the command line",
       "import sys\nsay(repr(os.environ) + repr(sys.argv) + repr(sys.orig_argv))\nleave()"},
      {"the frames of the harness",
       "import sys\nframe = sys._getframe()\nwhile frame:\n"
       "  say(repr(frame.f_locals) + repr(frame.f_globals) + repr(frame.f_code.co_consts) + "
       "repr(frame.f_code.co_names))\n"
       "  frame = frame.f_back\nleave()"},
      {"the frames of the harness, from the test",
       "import sys\ndef f(n):\n  frame = sys._getframe()\n  while frame:\n"
       "    say(repr(frame.f_locals) + repr(frame.f_globals) + repr(frame.f_code.co_consts))\n"
       "    frame = frame.f_back\n  leave()\n"},
      {"the modules", "import sys\nfor m in list(sys.modules.values()): say(repr(vars(m)))\nleave()"},
      {"all objects",
       "import gc\nfor o in gc.get_objects():\n  for x in [o] + gc.get_referents(o):\n"
       "    if isinstance(x, (bytes, str)) and len(x) < 100: say(x)\nleave()"},
      {"all objects, from the test",
       "import gc\ndef f(n):\n  for o in gc.get_objects():\n    for x in [o] + gc.get_referents(o):\n"
       "      if isinstance(x, (bytes, str)) and len(x) < 100: say(x)\n  leave()\n"},
      {"builtins in its place",
       "import builtins\nreal = builtins.print\n"
       "def fake(*a, **k):\n  say(repr(a)); real(*a, **k)\nbuiltins.print = fake\n"
       "builtins.exec = builtins.eval = builtins.compile = lambda *a, **k: say(repr(a))\n"
       "os.write_ = os.write\n"},
      {"the end of the process",
       "import atexit, gc, sys\natexit.register(lambda: [say(repr(vars(m))) for m in list(sys.modules.values())])\n"
       "atexit.register(lambda: os._exit(0))\n"},
      {"an unhandled exception", "import sys\nsys.excepthook = lambda *a: (say(repr(a)), leave())\n"},
      {"a trace of every line",
       "import sys\ndef trace(frame, event, arg):\n  say(repr(frame.f_locals) + repr(arg)); return trace\n"
       "sys.settrace(trace); sys.setprofile(trace)\n"},
      {"audit hooks", "import sys\nsys.addaudithook(lambda event, args: say(repr(args)))\n"},
  };
  for (const char* statement : kStatements)
    for (const auto& [name, attack] : attacks)
      EXPECT_EQ(asserts(say + kWrong + attack, statement), 0) << name << "\n" << statement;
}

TEST_F(CodeAttacks, AnObjectThatEqualsEverythingEqualsNoLiteral) {
  const std::string liar = "class A:\n  __eq__ = lambda s, o: True\n  __hash__ = None\ndef f(n): return A()\n";
  EXPECT_EQ(asserts(liar, kStatements[0]), 0);
  EXPECT_EQ(asserts("class A(int):\n  __eq__ = lambda s, o: True\ndef f(n): return A(3)\n", kStatements[0]), 0);
  EXPECT_EQ(asserts("class A(list):\n  __eq__ = lambda s, o: True\ndef f(n): return A()\n", "assert f(1) == [1, 2]"),
            0);
}

TEST_F(CodeAttacks, WritingAResultOfItsOwnIsNoUse) {
  const std::string forge =
      "import os\nfor text in (b'true', b'1', b'null', b'{\"i\": \"1\"}'): os.write(6, text)\nos._exit(0)";
  EXPECT_EQ(asserts(forge, kStatements[0]), 0);
  EXPECT_EQ(asserts(forge, kStatements[1]), 0);
  auto plugin = make();
  EXPECT_EQ(score(plugin, forge, R"({"fn_name": "f", "inputs": [[1]], "outputs": [7]})"), 0);
  const std::string deep = "import os\nfor _ in range(60): os.write(6, b'[' * 10000)\nos._exit(0)";
  EXPECT_EQ(score(plugin, deep, R"({"fn_name": "f", "inputs": [[1]], "outputs": [7]})"), 0);
  EXPECT_EQ(asserts(deep, kStatements[0]), 0);
}

// SIGKILL and its exit code mean that the machine is at fault, so a program must not be able to get either.
TEST_F(CodeAttacks, NoProgramCanLookAsIfTheMachineHadKilledIt) {
  auto plugin = make({{"time_limit", "5"}});
  const std::string libc = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n";
  for (const std::string& program : std::vector<std::string>{
           "import sys; sys.exit(137)", "import os; os._exit(137)", "import os; os._exit(137 + 256)",
           "import os; os.kill(os.getpid(), 9)", "import os; os.kill(-1, 9)", "import os; os.kill(0, 9)",
           "import signal, threading; signal.pthread_kill(threading.get_ident(), 9)",
           "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
           libc + "libc.prctl(22, 1)\nimport os\nos.getpid()",
           libc + "libc.syscall(" + std::to_string(SYS_exit) + ", 137)", libc + "libc.prctl(1, 9)",
           "import fcntl, os, signal\nr, w = os.pipe()\nfcntl.fcntl(r, 10, 9)\nfcntl.fcntl(r, fcntl.F_SETOWN, "
           "os.getpid())\n"
           "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\nos.write(w, b'x')\nimport time; time.sleep(1)"}) {
    EXPECT_EQ(score(plugin, program, R"({"inputs": [""], "outputs": ["ok"]})"), 0) << program;
    EXPECT_TRUE(plugin.plugin.call.failed_rows.empty()) << program;
  }
}

// What limits.cpp refuses to reward workers, and mounts, sockets and memory outside the address space.
TEST_F(CodeAttacks, HostileSystemCallsAreRefused) {
  std::string numbers;
  for (const long number : {SYS_ptrace,
                            SYS_process_vm_readv,
                            SYS_process_vm_writev,
                            SYS_setns,
                            SYS_reboot,
                            SYS_kexec_load,
                            SYS_init_module,
                            SYS_swapon,
                            SYS_finit_module,
                            SYS_delete_module,
                            SYS_bpf,
                            SYS_perf_event_open,
                            SYS_keyctl,
                            SYS_add_key,
                            SYS_request_key,
                            SYS_userfaultfd,
                            SYS_settimeofday,
                            SYS_clock_settime,
                            SYS_sethostname,
                            SYS_quotactl,
                            SYS_acct,
                            SYS_swapoff,
                            SYS_io_uring_setup,
                            SYS_open_tree,
                            SYS_move_mount,
                            SYS_fsopen,
                            SYS_fsmount,
                            SYS_fsconfig,
                            SYS_fspick,
                            SYS_pidfd_getfd,
                            SYS_mount,
                            SYS_umount2,
                            SYS_pivot_root,
                            SYS_chroot,
                            SYS_unshare,
                            SYS_socket,
                            SYS_memfd_create,
                            SYS_shmget,
                            SYS_msgget,
                            SYS_timer_create,
                            SYS_mq_open,
                            SYS_seccomp})
    numbers += std::to_string(number) + ",";
  auto plugin = make();
  // Refused by the filter: EPERM for arguments that the kernel itself answers with another error, or allows.
  EXPECT_TRUE(runs(plugin, "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nallowed = []\nfor n in (" +
                               numbers +
                               "):\n  ctypes.set_errno(0)\n"
                               "  if libc.syscall(n, -1, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != 1: "
                               "allowed.append(n)\nprint(allowed or 'ok')"));
}

TEST_F(CodeAttacks, ThreadsHaveALimit) {
  auto plugin = make({{"max_threads", "16"}});
  const std::string start = "import threading, time\nstop = threading.Event()\nthreading.stack_size(65536)\n";
  EXPECT_TRUE(runs(plugin, start + "ts = [threading.Thread(target=stop.wait) for _ in range(14)]\n"
                                   "for t in ts: t.start()\nstop.set()\nfor t in ts: t.join()\nprint('ok')"));
  EXPECT_FALSE(runs(plugin, start + "ts = [threading.Thread(target=stop.wait) for _ in range(200)]\n"
                                    "for t in ts:\n  try: t.start()\n  except RuntimeError: pass\n"
                                    "time.sleep(1)\nassert threading.active_count() > 100\nstop.set()\nprint('ok')"));
  EXPECT_TRUE(plugin.plugin.call.failed_rows.empty());
}

// A sandbox that does not start says nothing about the program.
TEST_F(CodeAttacks, ASandboxThatDoesNotStartIsTriedAgain) {
  const TempDir dir;
  auto plugin = [&] {
    put_before_bubblewrap(dir, "n=$(cat '" + dir.path().string() +
                                   "/left' 2>/dev/null || echo 0)\n"
                                   "if [ \"$n\" -gt 0 ]; then echo $((n - 1)) > '" +
                                   dir.path().string() +
                                   "/left'; echo 'bwrap: Creating new namespace failed: Resource temporarily "
                                   "unavailable' >&2; exit 1; fi");
    return make();
  }();
  ASSERT_NE(plugin.plugin.self, nullptr) << plugin.plugin.call.error;
  dir.write("left", "3");
  EXPECT_TRUE(runs(plugin, "print('ok')")) << "the fourth attempt works";
  EXPECT_TRUE(plugin.plugin.call.failed_rows.empty());
  dir.write("left", "1000");
  EXPECT_TRUE(std::isnan(score(plugin, "print('ok')", R"({"inputs": [""], "outputs": ["ok"]})")));
  ASSERT_EQ(plugin.plugin.call.failed_rows.size(), 1U);
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("the sandbox did not start"));
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, HasSubstr("Resource temporarily unavailable"));
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  std::error_code gone;
  const std::string tasks = "/proc/" + std::to_string(parent) + "/task";
  for (auto it = std::filesystem::directory_iterator(tasks, gone); it != std::filesystem::directory_iterator();
       it.increment(gone)) {
    std::ifstream file(it->path() / "children");
    for (pid_t pid = 0; file >> pid;) out.push_back(pid);
  }
  return out;
}

// The kernel ends the biggest program when the machine has no memory left.
TEST_F(CodeAttacks, AProgramThatIsKilledFromOutsideHasNoScore) {
  auto plugin = make();
  std::atomic<bool> done = false;
  std::thread killer([&] {
    for (; !done; ::usleep(10'000))
      for (const pid_t bubblewrap : children_of(::getpid()))
        for (const pid_t first : children_of(bubblewrap))
          for (const pid_t program : children_of(first)) ::kill(program, SIGKILL);
  });
  const double reward =
      score(plugin, "import time; time.sleep(100); print('ok')", R"({"inputs": [""], "outputs": ["ok"]})");
  done = true;
  killer.join();
  EXPECT_TRUE(std::isnan(reward));
  ASSERT_EQ(plugin.plugin.call.failed_rows.size(), 1U);
  EXPECT_THAT(plugin.plugin.call.failed_rows.at(0).text, testing::AnyOf(HasSubstr("SIGKILL"), HasSubstr("not start")));
}

// The real thing: programs that start threads in a group with few processes, next to honest ones.
TEST_F(CodeAttacks, ThreadsOfOneProgramDoNotStarveOthersInAPidsGroup) {
  const std::filesystem::path root = "/sys/fs/cgroup/pids";
  const std::filesystem::path group = root / ("mortise-test-" + std::to_string(::getpid()));
  std::error_code failed;
  if (!std::filesystem::exists(root / "cgroup.procs") || !std::filesystem::create_directory(group, failed))
    GTEST_SKIP() << "no pids cgroup can be made here";
  // Made before the group is full: a reward that cannot start one program ends the run.
  const std::map<std::string, std::string> few = {{"max_threads", "24"}};
  std::array<RewardCall, 4> plugins = {make(few), make(few), make(few), make(few)};
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(group / "pids.max") << 60;
    std::ofstream(group / "cgroup.procs") << ::getpid();
    const std::string bomb =
        "import threading, time\nthreading.stack_size(65536)\nfor _ in range(5000):\n"
        "  try: threading.Thread(target=time.sleep, args=(3,)).start()\n  except RuntimeError: pass\n";
    const std::string honest = "print('ok')";
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < (t < 2 ? 2 : 10); ++i) {
          const double reward =
              score(plugins[static_cast<size_t>(t)], t < 2 ? bomb : honest, R"({"inputs": [""], "outputs": ["ok"]})");
          if (t >= 2 && reward == 0) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    ::_exit(wrong);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "honest rows with the reward 0";
  std::filesystem::remove(group, failed);
}

}  // namespace
}  // namespace mortise::test
