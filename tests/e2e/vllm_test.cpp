// The backend vllm against a real vLLM on the CPU (./dev test --servers): a run learns with it, log-probs are those of the
// weights that each completion names, and nothing is lost when the server dies, hangs or answers nonsense.
//
// One server serves all cases, in their order here: a start takes minutes. The last case ruins it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "foundation/formats/safetensors.h"
#include "plugins/rollout_client.h"
#include "process.h"
#include "real_vllm.h"

namespace mortise::test {
namespace {

using testing::HasSubstr;

constexpr double kMostDifference = 1e-4;  // for log-probs and probabilities: float32 kernels of two libraries
constexpr int64_t kMaxLength = 64;

std::string text_in(const Path& path) {
  const auto text = default_env().read_file(path);
  return text.ok() ? *text : "";
}

class RealServer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (RealVllm::python() == nullptr) return;
    ::setenv("no_proxy", "127.0.0.1", 1);
    task_ = new TaskFolder;
    vllm_ = new RealVllm(task_->path() / "model", task_->path(), kMaxLength);
    is_up_ = vllm_->start();
  }
  static void TearDownTestSuite() {
    delete vllm_;
    delete task_;
  }
  void SetUp() override {
    if (RealVllm::python() == nullptr)
      GTEST_SKIP() << "MORTISE_VLLM_PYTHON is not set: no real vLLM was tried. Run ./dev test --servers";
    ASSERT_TRUE(is_up_) << "vLLM did not start: " << vllm_->log();
  }

  // Words of a run that samples on the server, with its results in `out`.
  static std::vector<std::string> train(const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {program(),
                                      "train",
                                      "run.toml",
                                      "rollout.name=vllm",
                                      "rollout.vllm.slots=64",
                                      "rollout.vllm.url=" + vllm_->url(),
                                      "trainer.save_freq=-1",
                                      "trainer.default_local_dir=" + out};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::string console(const std::string& out) { return text_in(task_->path() / (out + ".txt")); }
  static int finish(const std::string& out, const std::vector<std::string>& more) {
    Process process(train(out, more), task_->path(), task_->path() / (out + ".txt"));
    return process.wait();
  }
  static std::vector<Json> metrics_of(const std::string& out) { return rows_of(task_->path() / out / "metrics.jsonl"); }
  // The server's log-probs are the trainer's in each step.
  static void expect_equal_log_probs(const std::vector<Json>& rows) {
    double most = 0;
    for (const Json& row : rows) most = std::max(most, number_of(row, "training/rollout_probs_diff_max"));
    EXPECT_LT(most, kMostDifference);
    std::printf("largest difference of a probability in %zu steps: %.2g\n", rows.size(), most);
  }
  static double mean_reward(const std::vector<Json>& rows, size_t first, size_t last) {
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += number_of(rows[i], "critic/score/mean");
    return sum / double(last - first);
  }

  static inline TaskFolder* task_ = nullptr;
  static inline RealVllm* vllm_ = nullptr;
  static inline bool is_up_ = false;
};

// The task's model, with its last norm multiplied by `version` + 1: each version has its own log-probs.
std::vector<SentTensor> weights_of(const Path& model, int64_t version) {
  std::vector<SentTensor> out;
  const auto file = SafetensorsFile::open(default_env(), model / "model.safetensors");
  EXPECT_TRUE(file.ok());
  for (const TensorView& tensor : file->tensors()) {
    const auto values = tensor.as<float>();
    SentTensor& sent = out.emplace_back(SentTensor{tensor.name, tensor.shape, {values.begin(), values.end()}});
    if (tensor.name != "model.norm.weight") continue;
    for (float& value : sent.data) value *= float(version + 1);
  }
  return out;
}

std::vector<int64_t> prompt_of(int64_t id) { return {2 + id % 10, 12, 2 + id / 10 % 10, 13}; }

// Completions with the weights that they name, as lines for vllm_oracle.py.
class NamedSamples {
 public:
  void add(const RolloutClient& client) {
    for (const auto& [key, sample] : client.sink.taken) {
      lines_ += Json({{"version", sample.version},
                      {"prompt", prompt_of(key.first)},
                      {"ids", sample.ids},
                      {"log_probs", sample.log_prob}})
                    .dump() +
                "\n";
      ++num_of_[sample.version];
    }
  }
  // Compares with transformers, which computes the log-probs of each completion with the weights that it names.
  void expect_right(const TaskFolder& task) const {
    const Path file = task.write("named.jsonl", lines_);
    const std::string script = std::string(MORTISE_SOURCE_DIR) + "/tests/support/vllm_oracle.py";
    const Outcome judged = run(
        std::string(RealVllm::python()) + " " + script + " model " + file.string() + " 2>&1 | tail -n 1", task.path());
    const Json found = Json::parse(judged.output, nullptr, false);
    ASSERT_TRUE(found.is_object()) << judged.output;
    std::printf("log-probs of %s\n", judged.output.c_str());
    EXPECT_LT(number_of(found, "largest_difference"), kMostDifference);
    EXPECT_GT(number_of(found, "smallest_difference_of_another_version"), 10 * kMostDifference)
        << "the test could not tell the versions apart";
  }
  [[nodiscard]] int64_t num_of(int64_t version) const {
    const auto found = num_of_.find(version);
    return found == num_of_.end() ? 0 : found->second;
  }

 private:
  std::string lines_;
  std::map<int64_t, int64_t> num_of_;
};

// First, while the server has the weights that it started with.
TEST_F(RealServer, AdaptersAreLoadedAndUnloaded) {
  ASSERT_EQ(finish("adapters", {"model.lora_rank=4", "rollout.send_adapter=true", "actor.optim.lr=1e-2",
                                "trainer.total_training_steps=20"}),
            0)
      << console("adapters");
  const std::vector<Json> rows = metrics_of("adapters");
  ASSERT_EQ(rows.size(), 20U);
  EXPECT_GT(mean_reward(rows, 15, 20), mean_reward(rows, 0, 3) + 0.2);
  expect_equal_log_probs(rows);
  const Json models = Json::parse(vllm_->get("/v1/models").body, nullptr, false);
  ASSERT_TRUE(models.contains("data"));
  EXPECT_EQ(models["data"].size(), 2U) << "the base and the last adapter: " << models;
}

TEST_F(RealServer, ARunLearnsAndTheServersLogProbsAreTheTrainers) {
  ASSERT_EQ(finish("learns", {}), 0) << console("learns");
  const std::vector<Json> rows = metrics_of("learns");
  ASSERT_EQ(rows.size(), 40U);
  EXPECT_LT(mean_reward(rows, 0, 5), 0.5);
  EXPECT_GT(mean_reward(rows, 35, 40), 0.9);
  expect_equal_log_probs(rows);
  EXPECT_EQ(finish("refused", {"model.lora_rank=4", "rollout.send_adapter=true"}), 4);
  EXPECT_THAT(console("refused"), HasSubstr("it no longer has the weights that it was started with"));
}

// Another client keeps the server busy. So requests are in flight at each update, and others wait for the new weights.
TEST_F(RealServer, TwentyUpdatesWhileRequestsAreInFlightHaveTheRightVersions) {
  std::atomic<bool> ends = false;
  std::atomic<int> num_others = 0;
  std::thread other([&] {
    RolloutClient client("vllm", {{"url", vllm_->url()}});
    client.sampling.max_new_tokens = 40;
    while (!ends) {
      client.sink.taken.clear();
      for (int64_t id = 0; id < 4; ++id) EXPECT_EQ(client.submit(id, 2, prompt_of(id)), 0);
      EXPECT_EQ(client.collect(), 0) << client.error();
      num_others += int(client.sink.taken.size());
    }
  });
  RolloutClient client("vllm", {{"url", vllm_->url()}, {"slots", "8"}});
  client.sampling.max_new_tokens = 16;
  NamedSamples named;
  int64_t next_id = 0;
  EXPECT_EQ(client.send(0, weights_of(task_->path() / "model", 0)), 0) << client.error();
  for (int64_t version = 1; version <= 20; ++version) {
    client.sink.taken.clear();
    for (int i = 0; i < 8; ++i, ++next_id) EXPECT_EQ(client.submit(next_id, 2, prompt_of(next_id)), 0);
    EXPECT_EQ(client.poll_once(), 0) << client.error();  // four are sent, four wait
    EXPECT_EQ(client.send(version, weights_of(task_->path() / "model", version)), 0) << client.error();
    EXPECT_EQ(client.collect(), 0) << client.error();
    EXPECT_EQ(client.sink.taken.size(), 16U) << version;
    named.add(client);
  }
  ends = true;
  other.join();
  EXPECT_EQ(client.sink.num_twice, 0);
  EXPECT_GT(num_others.load(), 100);
  for (int64_t version = 0; version <= 20; ++version)
    EXPECT_EQ(named.num_of(version), version == 0 || version == 20 ? 8 : 16) << version;
  named.expect_right(*task_);
  EXPECT_THAT(vllm_->get("/weight_info").body, HasSubstr("000000020\"")) << "version 20, after the run's mark";
}

TEST_F(RealServer, AServerThatHangsIsUsedAgainWhenItAnswers) {
  RolloutClient client("vllm", {{"url", vllm_->url()}, {"request_limit", "3"}, {"retries", "20"}, {"backoff", "0.5"}});
  client.sampling.max_new_tokens = 16;
  ASSERT_EQ(client.send(3, weights_of(task_->path() / "model", 3)), 0) << client.error();
  const int num_loads = vllm_->count_of("POST /collective_rpc");
  vllm_->stop();
  for (int64_t id = 0; id < 4; ++id) ASSERT_EQ(client.submit(id, 2, prompt_of(id)), 0);
  int status = 0;
  while (status == 0 && client.log().empty()) {
    status = client.poll_once();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  vllm_->go_on();
  ASSERT_EQ(status, 0) << client.error();
  EXPECT_THAT(client.log().front(), HasSubstr("is out of use"));
  EXPECT_EQ(client.collect(), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 8U);
  EXPECT_EQ(client.sink.num_twice, 0);
  EXPECT_EQ(vllm_->count_of("POST /collective_rpc"), num_loads + 1) << "it could have been started again";
  NamedSamples named;
  named.add(client);
  named.expect_right(*task_);
}

// As after a run that ended when a load had failed: vLLM is paused, and a completion before a good load kills its engine.
TEST_F(RealServer, AFailedLoadIsFollowedByAGoodOneBeforeAnythingIsSampled) {
  const Path folder = task_->path() / "no_folder";
  ASSERT_EQ(http_post(vllm_->port(), "/pause?mode=wait", "{}"), 200);
  const Json reload = {{"method", "reload_weights"}, {"kwargs", {{"weights_path", folder.string()}}}};
  ASSERT_EQ(http_post(vllm_->port(), "/collective_rpc", reload.dump()), 500);
  RolloutClient client("vllm", {{"url", vllm_->url()}});
  ASSERT_EQ(client.created(), 0) << client.error();
  ASSERT_EQ(client.send(4, weights_of(task_->path() / "model", 4)), 0) << client.error();
  for (int64_t id = 0; id < 4; ++id) ASSERT_EQ(client.submit(id, 2, prompt_of(id)), 0);
  ASSERT_EQ(client.collect(), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 8U);
  EXPECT_THAT(vllm_->get("/is_paused").body, HasSubstr("false"));
  NamedSamples named;
  named.add(client);
  named.expect_right(*task_);
}

// Between the client and vLLM, a proxy spoils every third answer: each kind of fault in turn.
TEST_F(RealServer, SpoiledAnswersAreAskedForAgain) {
  const PythonService proxy(task_->path(), "spoiling_proxy.py " + vllm_->url());
  ASSERT_TRUE(proxy.started());
  RolloutClient client("vllm", {{"url", proxy.url("")}, {"slots", "8"}, {"request_limit", "5"}, {"retries", "20"}});
  client.sampling.max_new_tokens = 16;
  ASSERT_EQ(client.send(5, weights_of(task_->path() / "model", 5)), 0) << client.error();
  for (int64_t id = 0; id < 24; ++id) ASSERT_EQ(client.submit(id, 2, prompt_of(id)), 0);
  ASSERT_EQ(client.collect(), 0) << client.error();
  EXPECT_EQ(client.sink.taken.size(), 48U);
  EXPECT_EQ(client.sink.num_twice, 0);
  NamedSamples named;
  named.add(client);
  EXPECT_EQ(named.num_of(5), 48);
  named.expect_right(*task_);
  const Json counts = Json::parse(http_get(proxy.port(), "/spoiled").body, nullptr, false);
  for (const char* fault : {"status 500", "half a body", "garbage", "a choice too few", "NaN", "closed", "no answer"})
    EXPECT_GE(number_of(counts, fault), 1) << fault;
}

// It comes back with its first weights, after it lost what it had not answered.
TEST_F(RealServer, AServerThatIsKilledGetsTheNewestWeightsAgain) {
  ASSERT_TRUE(default_env().create_dirs(task_->path() / "killed").ok());
  FolderWatch lines(task_->path() / "killed", IN_CREATE | IN_MODIFY);
  Process process(train("killed", {"trainer.total_training_steps=20"}), task_->path(), task_->path() / "killed.txt");
  ASSERT_TRUE(lines.wait_for("metrics.jsonl", 5, process)) << console("killed");
  vllm_->kill();
  is_up_ = vllm_->start();
  ASSERT_TRUE(is_up_);
  ASSERT_EQ(process.wait(), 0) << console("killed");
  EXPECT_THAT(console("killed"), HasSubstr("out of use"));
  EXPECT_THAT(console("killed"), HasSubstr("is back"));
  const std::vector<Json> rows = metrics_of("killed");
  ASSERT_EQ(rows.size(), 20U);
  expect_equal_log_probs(rows);
}

TEST_F(RealServer, WeightsThatAreNoNumbersStopTheRun) {
  RolloutClient client("vllm", {{"url", vllm_->url()}});
  std::vector<SentTensor> weights = weights_of(task_->path() / "model", 0);
  for (SentTensor& tensor : weights)
    for (float& value : tensor.data) value = std::nanf("");
  ASSERT_EQ(client.send(1, weights), 0) << client.error();
  EXPECT_EQ(client.sample(1), MORTISE_DATA_LOSS);
  EXPECT_THAT(client.error(), HasSubstr("the weights give numbers that are not finite"));
}

}  // namespace
}  // namespace mortise::test
