// A group of rank_program processes, for tests that stop, kill or separate them.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "dist/launch/local_address.h"
#include "support/temp_dir.h"

namespace mortise {

using Environment = std::map<std::string, std::string>;

// The processes of one group, each with its output in a file.
class RankProcesses {
 public:
  // `network_of` names the network namespace of a rank; empty: this one. `of_ranks`: more variables, by rank.
  RankProcesses(int size, const std::vector<std::string>& words, const Environment& more = {},
                const std::function<std::string(int)>& network_of = {}, const std::vector<Environment>& of_ranks = {}) {
    auto port = free_port();
    EXPECT_TRUE(port.ok());
    port_ = std::move(*port);
    for (int rank = 0; rank < size; ++rank) {
      Environment environment{{"RANK", std::to_string(rank)},
                              {"WORLD_SIZE", std::to_string(size)},
                              {"LOCAL_RANK", std::to_string(rank)},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", std::to_string(port_.number)}};
      for (const auto& [name, value] : more) environment[name] = value;
      if (!of_ranks.empty())
        for (const auto& [name, value] : of_ranks[static_cast<size_t>(rank)]) environment[name] = value;
      start(rank, words, environment, network_of ? network_of(rank) : "");
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (size_t i = 0; i < pids_.size(); ++i)
      if (!codes_.contains(static_cast<int>(i))) {
        kill(pids_[i], SIGKILL);
        waitpid(pids_[i], nullptr, 0);
      }
  }

  void start(int rank, const std::vector<std::string>& words, const Environment& environment,
             const std::string& network) {
    const Path file = folder_.write(std::to_string(rank), "");  // it may be read before the rank has begun
    const pid_t pid = fork();
    if (pid == 0) {
      if (!network.empty()) {
        const int space = open(("/var/run/netns/" + network).c_str(), O_RDONLY | O_CLOEXEC);
        if (space < 0 || setns(space, CLONE_NEWNET) != 0) _exit(126);
      }
      const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(out, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      setenv("OMP_NUM_THREADS", "1", 1);
      std::vector<std::string> all{std::string(MORTISE_BINARY_DIR) + "/tests/rank_program"};
      if (environment.contains("OWN_PROCESSES"))  // ranks that cannot see each other's processes, as on two machines
        all.insert(all.begin(), {"unshare", "-pf", "--kill-child=SIGKILL", "--mount-proc"});
      all.insert(all.end(), words.begin(), words.end());
      std::vector<char*> pointers;
      for (std::string& word : all) pointers.push_back(word.data());
      pointers.push_back(nullptr);
      execvp(pointers[0], pointers.data());
      _exit(127);
    }
    pids_.push_back(pid);
  }

  void wait_until_joined() const {
    for (size_t rank = 0; rank < pids_.size(); ++rank) wait_for(static_cast<int>(rank), "joined");
  }
  // Until the output of the rank has `text`.
  void wait_for(int rank, const std::string& text) const {
    for (int i = 0; i < 15'000 && output(rank).find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_THAT(output(rank), testing::HasSubstr(text));
  }
  void send(int rank, int signal) const { kill(pids_[static_cast<size_t>(rank)], signal); }
  // The exit code; -signal; 1000 if it still runs when the time is over.
  int code(int rank, std::chrono::steady_clock::duration limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!codes_.contains(rank)) {
      int status = 0;
      if (waitpid(pids_[static_cast<size_t>(rank)], &status, WNOHANG) > 0)
        codes_[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      else if (std::chrono::steady_clock::now() > deadline)
        return 1000;
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return codes_[rank];
  }
  [[nodiscard]] std::string output(int rank) const { return folder_.read(std::to_string(rank)); }
  [[nodiscard]] pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }

 private:
  test::TempDir folder_;
  FreePort port_;
  std::vector<pid_t> pids_;
  std::map<int, int> codes_;
};

}  // namespace mortise
