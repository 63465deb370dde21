// `mortise serve` as a process of its own, with a trainer as its client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "foundation/base/text.h"
#include "process.h"
#include "program.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr const char* kShortRun =
    " trainer.total_training_steps=8 data.train_batch_size=8 actor.ppo_mini_batch_size=4 rollout.n=4 "
    "trainer.num_threads=1 trainer.save_freq=-1";

std::string text_in(const Path& path) {
  const auto text = default_env().read_file(path);
  return text.ok() ? *text : "";
}

// The server of a task's model, as a person starts it.
class ServerProcess {
 public:
  explicit ServerProcess(const TaskFolder& task, std::vector<std::string> more = {})
      : task_(&task), more_(std::move(more)) {
    start("0");
  }
  void start(const std::string& port) {
    const Path log = task_->path() / ("server" + std::to_string(++num_starts_) + ".txt");
    std::vector<std::string> words = {program("mortise"), "serve", "--model", "model",
                                      "--port",           port,    "--json",  "trainer.num_threads=1"};
    words.insert(words.end(), more_.begin(), more_.end());
    process_.emplace(words, task_->path(), log);
    const Stopwatch watch(default_env());
    while (watch.elapsed_s() < 300 && !process_->poll()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::string said = text_in(log);
      const size_t at = said.find("\"port\":");
      if (at == std::string::npos || said.find('\n', at) == std::string::npos) continue;
      port_ = said.substr(at + 7, said.find_first_of(",}", at) - at - 7);
      return;
    }
    ADD_FAILURE() << text_in(log);
  }
  void kill() { process_->kill_and_wait(); }
  void start_again() { start(port_); }
  int stop() {
    process_->signal(SIGTERM);
    return process_->wait();
  }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + port_; }
  // Weights that came over the network and that it still keeps for a load.
  [[nodiscard]] size_t num_received() const {
    const std::string prefix = "mortise-received-" + std::to_string(process_->pid()) + "-";
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      count += entry.path().filename().string().starts_with(prefix) ? 1 : 0;
    return count;
  }

 private:
  const TaskFolder* task_;
  std::vector<std::string> more_;
  std::optional<Process> process_;
  std::string port_;
  int num_starts_ = 0;
};

std::string with_server(const std::string& url) {
  return std::string(kShortRun) + " trainer.default_local_dir=served rollout.name=vllm rollout.vllm.backoff=0.05 " +
         "rollout.vllm.url=" + url;
}

std::vector<std::string> train_words(const std::string& settings) {
  std::vector<std::string> words = {program(), "train", "run.toml"};
  for (const std::string_view word : split(settings, ' '))
    if (!word.empty()) words.emplace_back(word);
  return words;
}

// A server that dies comes back with its first weights. It gets the newest again, and the run has the same bits as one
// without servers.
void expect_same_when_server_dies(const std::string& more) {
  const TaskFolder task;
  const Outcome alone = task.mortise(
      std::string("train run.toml rollout.reuse_forward_mib=0 trainer.default_local_dir=alone") + kShortRun);
  ASSERT_EQ(alone.code, 0) << alone.output;
  ServerProcess server(task);
  const std::vector<std::string> words = train_words(with_server(server.url()) + more);
  ASSERT_TRUE(default_env().create_dirs(task.path() / "served").ok());
  FolderWatch lines(task.path() / "served", IN_CREATE | IN_MODIFY);
  Process train(words, task.path(), task.path() / "train.txt");
  lines.wait_for("metrics.jsonl", 2, train);  // it is there, and has a step
  server.kill();
  server.start_again();
  ASSERT_EQ(train.wait(), 0) << text_in(task.path() / "train.txt");
  const auto expected = rows_of(task.path() / "alone/updates.jsonl");
  EXPECT_EQ(expected.size(), 16U);
  EXPECT_EQ(rows_of(task.path() / "served/updates.jsonl"), expected);
  EXPECT_THAT(text_in(task.path() / "train.txt"), HasSubstr("out of use")) << "the server died before the last step";
  EXPECT_EQ(server.num_received(), 0U);
  EXPECT_EQ(server.stop(), 0);
}

TEST(Serve, ARunIsTheSameWhenItsServerDiesInTheMiddle) { expect_same_when_server_dies(""); }

constexpr const char* kOverNetwork = " rollout.vllm.weight_transfer=c10d rollout.vllm.weights_dir=/nowhere";

TEST(Serve, WeightsOverTheNetworkSurviveTheirServersDeath) {
  expect_same_when_server_dies(kOverNetwork);
  EXPECT_FALSE(default_env().exists("/nowhere")) << "weights went through a folder";
}

// A trainer that is killed may leave a server paused, and weights half sent. The next one connects again; two servers
// have a connection each.
TEST(Serve, WeightsOverTheNetworkSurviveTheirTrainersDeath) {
  const TaskFolder task;
  const std::string saves = " trainer.save_freq=1 trainer.total_training_steps=6";
  const Outcome alone = task.mortise(
      std::string("train run.toml rollout.reuse_forward_mib=0 trainer.default_local_dir=alone") + kShortRun + saves);
  ASSERT_EQ(alone.code, 0) << alone.output;
  ServerProcess first(task), second(task);
  const std::string settings = with_server(first.url() + "," + second.url()) + kOverNetwork + saves;
  for (const int num_kills : {1, 2}) {
    ASSERT_TRUE(default_env().create_dirs(task.path() / "served").ok());
    FolderWatch lines(task.path() / "served", IN_CREATE | IN_MODIFY);
    Process train(train_words(settings), task.path(), task.path() / "train.txt");
    lines.wait_for("metrics.jsonl", 2, train);
    // Somewhere between its steps: in a transfer, or next to one.
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * num_kills));
    train.kill_and_wait();
  }
  const Outcome resumed = task.mortise("train run.toml" + settings);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  const auto expected = rows_of(task.path() / "alone/updates.jsonl");
  EXPECT_EQ(expected.size(), 12U);
  EXPECT_EQ(rows_of(task.path() / "served/updates.jsonl"), expected);
  EXPECT_EQ(first.num_received() + second.num_received(), 0U);
  EXPECT_EQ(first.stop(), 0);
  EXPECT_EQ(second.stop(), 0);
}

// By the code of a device: the same tokens, with the weights that a run sends.
TEST(Serve, ADeviceServesTheTokensOfTheCpu) {
  const TaskFolder task;
  std::vector<Json> updates[2];
  for (const size_t side : {size_t{0}, size_t{1}}) {
    ServerProcess server(task, {"model.dtype=float64", side == 1 ? "model.device=cpu-as-device" : "model.device=cpu"});
    const std::string folder = "served_" + std::to_string(side);
    const Outcome run = task.mortise("train run.toml model.dtype=float64" + with_server(server.url()) +
                                     " trainer.total_training_steps=3 trainer.default_local_dir=" + folder);
    ASSERT_EQ(run.code, 0) << run.output;
    updates[side] = rows_of(task.path() / folder / "updates.jsonl");
    EXPECT_EQ(server.stop(), 0);
  }
  ASSERT_GE(updates[0].size(), 6U);
  ASSERT_EQ(updates[1].size(), updates[0].size());
  for (size_t i = 0; i < updates[0].size(); ++i)
    EXPECT_NEAR(number_of(updates[1][i], "loss"), number_of(updates[0][i], "loss"), 1e-8) << i;
}

// Each run would sample with the other's weights. Sooner or later one of them sees that, and says so.
TEST(Serve, OneOfTwoRunsOnOneServerStops) {
  const TaskFolder task;
  ServerProcess server(task);
  std::vector<std::unique_ptr<Process>> runs;
  for (const std::string name : {"first", "second"}) {
    const std::string settings = with_server(server.url()) + " trainer.total_training_steps=2000";
    const auto words = train_words(settings + " trainer.default_local_dir=" + name);
    runs.push_back(std::make_unique<Process>(words, task.path(), task.path() / (name + ".txt")));
  }
  size_t ended = runs.size();
  const Stopwatch watch(default_env());
  while (ended == runs.size() && watch.elapsed_s() < 300) {
    for (size_t i = 0; i < runs.size() && ended == runs.size(); ++i)
      if (runs[i]->poll()) ended = i;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_LT(ended, runs.size()) << "both runs go on";
  EXPECT_EQ(runs[ended]->wait(), 4);
  const std::string said = text_in(task.path() / (ended == 0 ? "first.txt" : "second.txt"));
  EXPECT_THAT(said, HasSubstr(server.url() + " has the weights of another run"));
  EXPECT_THAT(said, HasSubstr("Give each run servers of its own"));
  runs[1 - ended]->kill_and_wait();
  EXPECT_EQ(server.stop(), 0);
}

// A server that validates gives the numbers that the trainer's own process gives, before the first update and after the
// last. Without a server such a run cannot validate.
TEST(Serve, ValidationsOnAServerHaveTheSameNumbers) {
  const TaskFolder task;
  const std::string validates =
      std::string(kShortRun) +
      " trainer.test_freq=4 trainer.val_before_train=true data.val_files=data/val.jsonl data.val_max_samples=20 "
      "rollout.val_kwargs.n=3 rollout.val_kwargs.do_sample=true rollout.val_kwargs.temperature=1";
  const Outcome alone = task.mortise("train run.toml trainer.default_local_dir=alone" + validates);
  ASSERT_EQ(alone.code, 0) << alone.output;
  ServerProcess server(task);
  const std::string on_server = validates + with_server(server.url()) + " rollout.val_engine=rollout";
  const Outcome served = task.mortise("train run.toml" + on_server);
  ASSERT_EQ(served.code, 0) << served.output;
  const auto validations = [&](const char* folder) {
    std::vector<Json> all;
    for (const Json& row : rows_of(task.path() / folder / "metrics.jsonl")) {
      Json numbers = Json::object();
      for (const auto& [name, value] : row.items())
        if (name.starts_with("val-") || name.starts_with("eval_")) numbers[name] = value;
      if (!numbers.empty()) all.push_back(numbers);
    }
    return all;
  };
  EXPECT_EQ(validations("alone").size(), 3U);  // before, after step 4, after step 8
  EXPECT_EQ(validations("served"), validations("alone"));
  EXPECT_EQ(server.stop(), 0);
  const std::string no_server = "eval run.toml" + on_server + " rollout.vllm.start_limit=0";
  EXPECT_EQ(task.mortise(no_server).code, 4) << "it validated without the server";
  EXPECT_EQ(task.mortise(no_server + " rollout.val_engine=native").code, 0);
}

// All completions have the form, and those of a server are those of the trainer itself.
TEST(Serve, APatternGivesTheSameTokensOnAServer) {
  const TaskFolder task;
  const std::string guided = " 'rollout.structured_outputs_regex=(1|2){2}(30?)*' rollout.reuse_forward_mib=0";
  const Outcome alone = task.mortise("train run.toml trainer.default_local_dir=alone trainer.rollout_data_dir=dump" +
                                     std::string(kShortRun) + guided);
  ASSERT_EQ(alone.code, 0) << alone.output;
  ServerProcess server(task);
  const Outcome served = task.mortise("train run.toml" + with_server(server.url()) + guided);
  ASSERT_EQ(served.code, 0) << served.output;
  EXPECT_EQ(rows_of(task.path() / "served/updates.jsonl"), rows_of(task.path() / "alone/updates.jsonl"));
  EXPECT_EQ(server.stop(), 0);
  int num_whole = 0, num_rows = 0;
  for (int step = 1; step <= 8; ++step) {
    for (const Json& row : rows_of(task.path() / "dump" / (std::to_string(step) + ".jsonl"))) {
      const std::string text = row.at("output");
      EXPECT_THAT(text, testing::MatchesRegex("[12]{0,2}(30?)*")) << row;
      num_whole += row.at("finish_reason") == "stop" ? 1 : 0;
      ++num_rows;
    }
  }
  EXPECT_EQ(num_rows, 256);
  EXPECT_GT(num_whole, 20);
}

// An evaluation would send A and B alone, and give the numbers of another model.
TEST(Serve, AnEvaluationSendsNoAdapterThatServersCannotAdd) {
  const TaskFolder task;
  const Outcome eval = task.mortise(
      "eval run.toml data.val_files=data/val.jsonl rollout.val_engine=rollout rollout.send_adapter=true "
      "model.lora_rank=2 model.use_dora=true");
  EXPECT_EQ(eval.code, 2) << eval.output;
  EXPECT_THAT(eval.output, HasSubstr("the adapter is more than A and B"));
}

TEST(Serve, ANewServerIsNotReachedWithoutItsKey) {
  const TaskFolder task;
  ServerProcess server(task, {"--api-key", "sesame"});
  const Outcome locked = task.mortise("train run.toml" + with_server(server.url()));
  EXPECT_EQ(locked.code, 4) << locked.output;
  EXPECT_THAT(locked.output, HasSubstr("status 401"));
  const Outcome opened = run("export KEY=sesame; " + program() + " train run.toml" + with_server(server.url()) +
                                 " rollout.vllm.api_key_env=KEY trainer.total_training_steps=1",
                             task.path());
  EXPECT_EQ(opened.code, 0) << opened.output;
}

TEST(Serve, OtherFrameworksClientsTalkToIt) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: no client of TRL was tried";
  const TaskFolder task;
  ServerProcess server(task);
  const std::string script = std::string(MORTISE_SOURCE_DIR) + "/tests/e2e/serve_clients.py ";
  const Outcome tried = run(std::string(python) + " " + script + server.url(), task.path());
  if (tried.code == 77) GTEST_SKIP() << "the oracles have no `requests`: install them again from tests/oracles.lock";
  EXPECT_EQ(tried.code, 0) << tried.output;
  EXPECT_THAT(tried.output, HasSubstr("TRL's client: generate"));
}

TEST(Serve, TorchDistributedSendsItWeights) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: no torch.distributed sent weights";
  const TaskFolder task;
  ServerProcess server(task);
  const std::string script = std::string(MORTISE_SOURCE_DIR) + "/tests/e2e/serve_weights.py ";
  const Outcome tried = run(std::string(python) + " " + script + server.url() + " model", task.path());
  EXPECT_EQ(tried.code, 0) << tried.output;
  EXPECT_THAT(tried.output, HasSubstr("a good one makes the server well"));
  EXPECT_EQ(server.num_received(), 0U);
  EXPECT_EQ(server.stop(), 0);
}

TEST(Serve, UsageErrorsSayWhatToDo) {
  const TaskFolder task;
  const auto serve = [&](const std::string& args) { return task.mortise("serve " + args); };
  EXPECT_THAT(serve("--model model --host 0.0.0.0").output, HasSubstr("set --api-key"));
  EXPECT_THAT(serve("--model model rollout.n=4").output, HasSubstr("'rollout.n=4' has no effect on serve"));
  EXPECT_EQ(serve("--model nowhere").code, 3);
  EXPECT_EQ(serve("--model model --port 99999").code, 2);
  EXPECT_THAT(serve("model").output, HasSubstr("add --ui for the pages, or write --model model"));
  EXPECT_THAT(serve("data --ui").output, HasSubstr("neither the folder of a run (no metrics.jsonl) nor of a model"));
  EXPECT_THAT(serve("model --ui --host 0.0.0.0").output, HasSubstr("set --api-key"));
}

}  // namespace
}  // namespace mortise::test
