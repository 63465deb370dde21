// A run of several processes, started without `mortise launch`, so that tests can stop each of them.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "dist/launch/local_address.h"
#include "process.h"
#include "run_table.h"

namespace mortise::test {

// The processes of one run, with the environment of torchrun.
class Group {
 public:
  // Consoles go to `dir`, where the ranks start too, but for the last one if it has a folder of its own.
  Group(const std::vector<std::vector<std::string>>& words_by_rank, const Path& dir, const Path& dir_of_last = {})
      : dir_(dir) {
    const std::string port = std::to_string(port_.number), size = std::to_string(words_by_rank.size());
    for (size_t rank = 0; rank < words_by_rank.size(); ++rank) {
      const std::string number = std::to_string(rank);
      std::vector<std::string> words{"/usr/bin/env",       "RANK=" + number,           "LOCAL_RANK=" + number,
                                     "WORLD_SIZE=" + size, "LOCAL_WORLD_SIZE=" + size, "MASTER_ADDR=127.0.0.1",
                                     "MASTER_PORT=" + port};
      words.insert(words.end(), words_by_rank[rank].begin(), words_by_rank[rank].end());
      const bool is_apart = !dir_of_last.empty() && rank + 1 == words_by_rank.size();
      processes_.emplace_back(words, is_apart ? dir_of_last : dir, console_of(rank));
    }
  }

  [[nodiscard]] Path console_of(size_t rank) const { return dir_ / ("console_" + std::to_string(rank) + ".txt"); }
  [[nodiscard]] std::string text_of(size_t rank) const { return default_env().read_file(console_of(rank)).value(); }
  Process& operator[](size_t rank) { return processes_[rank]; }

  // The exit codes of all ranks.
  std::vector<int> wait() {
    std::vector<int> codes;
    for (Process& process : processes_) codes.push_back(process.wait());
    return codes;
  }
  void expect_all(int code) {
    const std::vector<int> codes = wait();
    for (size_t rank = 0; rank < codes.size(); ++rank) EXPECT_EQ(codes[rank], code) << rank << ": " << text_of(rank);
  }
  // All ranks end with the code and the text, but for those that saw another rank end before they could tell.
  void expect_refused(int code, const std::string& text) {
    const std::vector<int> codes = wait();
    int num_telling = 0;
    for (size_t rank = 0; rank < codes.size(); ++rank) {
      EXPECT_TRUE(codes[rank] == code || codes[rank] == 7) << codes[rank] << ": " << text_of(rank);
      num_telling += text_of(rank).find(text) != std::string::npos ? 1 : 0;
    }
    EXPECT_GT(num_telling, 0) << text_of(0);
  }

 private:
  Path dir_;
  FreePort port_ = free_port().value();
  std::deque<Process> processes_;
};

// Numbers that say how the work was shared.
inline std::map<std::string, std::string> without_shares(std::map<std::string, std::string> bits) {
  std::string kept;
  std::string& text = bits["metrics.jsonl"];
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    Json row = parse_json(text.substr(begin, end - begin), "metrics").value();
    std::vector<std::string> names;
    for (const auto& [name, value] : row.items()) {
      if (name.starts_with("global_seqlen/")) names.push_back(name);
    }
    for (const std::string& name : names) row.erase(name);
    kept += dump_json(row) + "\n";
    begin = end + 1;
  }
  text = kept;
  return bits;
}

class Ranks : public testing::Test {
 protected:
  static constexpr int64_t kSteps = 3;

  // `model`: which one make_task makes.
  explicit Ranks(const std::string& model = "--tiny") : task_(model) { task_.write("data/mix.jsonl", mix_rows()); }

  // Passes of a few rows, so that every rank has some.
  [[nodiscard]] std::vector<std::string> words(const std::string& command, const std::string& out,
                                               const std::vector<std::string>& more) const {
    std::vector<std::string> settings{
        "actor.ppo_max_token_len_per_gpu=20", "trainer.logger=[]",
        (command == "sft" ? "sft" : "trainer") + std::string(".total_training_steps=") + std::to_string(kSteps)};
    settings.insert(settings.end(), more.begin(), more.end());
    return task_.words(command, out, settings);
  }
  void run_alone(const std::string& command, const std::string& out, const std::vector<std::string>& more) {
    Process process(words(command, out, more), task_.path(), task_.path() / "console.txt");
    ASSERT_EQ(process.wait(), 0) << default_env().read_file(task_.path() / "console.txt").value();
  }
  void run_group(size_t size, const std::string& command, const std::string& out,
                 const std::vector<std::string>& more) {
    Group group(std::vector(size, words(command, out, more)), task_.path());
    group.expect_all(0);
  }
  [[nodiscard]] std::map<std::string, std::string> bits(const std::string& out) const {
    return without_shares(bits_of_run(task_.path() / out, kSteps));
  }

  TinyTask task_;
};

}  // namespace mortise::test
