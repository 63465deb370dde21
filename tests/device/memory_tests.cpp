// Graphs against passes without them, and a device whose memory is full: an error, after which the next step works.
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <string>
#include <utility>

#include "device/device_models.h"
#include "device/full_memory.h"
#include "generate/device/step_graphs.h"
#include "model/device/kernel_table.h"
#include "model/tensor/torch_guard.h"
#include "support/temp_dir.h"
#include "support/this_build.h"
#include "unit/learn/learner_fixture.h"

namespace mortise {
namespace {

using testing::HasSubstr;

// The device's graphs, which are counted. A test may fill the memory just before one is captured.
class WatchedGraphs final : public StepGraphs {
 public:
  static inline int64_t captures = 0, replays = 0;  // NOLINT: the factory is a function
  static inline bool fills_memory = false;          // NOLINT

  static std::unique_ptr<StepGraphs> open() {
    set_step_graphs(nullptr);
    std::unique_ptr<StepGraphs> own = open_step_graphs(device_under_test.device);
    set_step_graphs(&WatchedGraphs::open);
    return own == nullptr ? nullptr : std::make_unique<WatchedGraphs>(std::move(own));
  }
  explicit WatchedGraphs(std::unique_ptr<StepGraphs> own) : own_(std::move(own)) {}
  void warm_up(const std::function<void()>& work) override { own_->warm_up(work); }
  std::unique_ptr<StepGraph> capture(const std::function<void()>& work) override {
    ++captures;
    std::unique_ptr<FullMemory> full;
    if (fills_memory) full = std::make_unique<FullMemory>(0);
    return std::make_unique<Graph>(own_->capture(work));
  }

 private:
  class Graph final : public StepGraph {
   public:
    explicit Graph(std::unique_ptr<StepGraph> own) : own_(std::move(own)) {}
    void replay() override {
      ++replays;
      own_->replay();
    }

   private:
    std::unique_ptr<StepGraph> own_;
  };
  std::unique_ptr<StepGraphs> own_;
};

class UseWatchedGraphs {
 public:
  explicit UseWatchedGraphs(bool fills_memory = false) {
    WatchedGraphs::captures = WatchedGraphs::replays = 0;
    WatchedGraphs::fills_memory = fills_memory;
    set_step_graphs(&WatchedGraphs::open);
  }
  UseWatchedGraphs(const UseWatchedGraphs&) = delete;
  UseWatchedGraphs& operator=(const UseWatchedGraphs&) = delete;
  ~UseWatchedGraphs() { set_step_graphs(nullptr); }
};

std::vector<GenerateRequest> some_requests() {
  std::vector<GenerateRequest> out;
  for (int64_t id = 1; id <= 3; ++id) {
    GenerateRequest& request = out.emplace_back();
    request.request_id = id;
    request.first_row_id = id * 10;
    request.prompt_ids = {id, 5, 7, 9};
    request.num_samples = 4;
    request.sampling.max_new_tokens = 12 + id;
  }
  return out;
}

Result<Completions> sampled(const Model& model, const std::vector<GenerateRequest>& requests = some_requests()) {
  const std::unique_ptr<GenerateEngine> engine = TRY(GenerateEngine::create(model, {}));
  return sample_all(*engine, requests);
}

// A replayed graph computes what its operations compute when each starts by itself. CPU tensors have no graphs. There
// tests/unit/generate/device_kernels_test.cpp compares recorded ones.
TEST(DeviceGraphs, GiveTheBitsOfPassesWithoutThem) {
  const bool is_gpu = device_under_test.device.is_cuda();
  if (is_gpu && !why_no_gpu_kernels().empty()) GTEST_SKIP() << "graphs need the kernels, and " << why_no_gpu_kernels();
  for (const auto& [family, dtype] : {std::pair{Family::kQwen3, "float32"},
                                      {Family::kQwen3, "bfloat16"},
                                      {Family::kQwen3Moe, "float32"},
                                      {Family::kQwen3Moe, "bfloat16"},
                                      {Family::kGptOss, "bfloat16"}}) {
    const Model model = model_of(family, dtype, true);
    const UseWatchedGraphs watched;
    ASSERT_OK_AND_ASSIGN(const Completions with, sampled(model));
    EXPECT_EQ(WatchedGraphs::captures > 0, is_gpu) << "a GPU decodes by graphs";
    EXPECT_EQ(WatchedGraphs::replays > WatchedGraphs::captures, is_gpu) << "graphs are used again";
    set_step_graphs([]() -> std::unique_ptr<StepGraphs> { return nullptr; });
    ASSERT_OK_AND_ASSIGN(const Completions without, sampled(model));
    ASSERT_EQ(with.size(), 12U);
    for (const auto& [key, row] : with) {
      EXPECT_EQ(row.ids, without.at(key).ids) << dtype;
      EXPECT_EQ(row.log_prob, without.at(key).log_prob) << dtype;
    }
  }
}

// More memory than any machine has: an error of Mortise, and the device works afterwards.
TEST(DeviceMemory, AFullMemoryIsAnErrorAndNotTheEnd) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends the process";
  const at::TensorOptions options = at::TensorOptions().device(device_under_test.device).dtype(at::kFloat);
  const Result<> done = guard_torch("filling a tensor", [&]() -> Result<> {
    at::empty({int64_t{1} << 48}, options).fill_(1.0);
    return {};
  });
  ASSERT_FALSE(done.ok());
  EXPECT_THAT(done.error().to_string(), HasSubstr("filling a tensor"));
  EXPECT_THAT(done.error().to_string(), HasSubstr("memory"));
  EXPECT_EQ(at::empty({8}, options).fill_(2.0).sum().item<float>(), 16.0F);
}

// Updates of a model on the device, and the memory that each may take.
class Updates {
 public:
  Updates() : model_(two_layer_model(29, "float32")) {
    EXPECT_OK(model_.move_to(device_under_test));
    std::vector<OptimizedParameter> trained;
    for (const NamedParameter& one : model_.trainable()) trained.push_back({one.name, one.tensor, true});
    optimizer_.emplace(std::move(trained), AdamWOptions{});
  }
  Result<UpdateReport> update(int64_t bytes_left = 0) {
    ActorLearner learner(model_, *optimizer_, objective_.objective, cut_by({int64_t{1} << 30, 0}));
    std::optional<FullMemory> full;
    if (bytes_left > 0) full.emplace(bytes_left);
    return guard_torch("an update", [&] { return learner.update(rows_.batch, all_rows(rows_.batch), {.lr = 1e-3}); });
  }

 private:
  // A GPU's allocator gives memory in pieces of 2 MiB, so that its rows must be longer.
  static RowsShape shape() {
    return device_under_test.device.is_cuda() ? RowsShape{29, 64, 4, 512} : RowsShape{29, 4, 3, 9};
  }
  Model model_;
  std::optional<AdamW> optimizer_;
  TestObjective objective_{{"actor.entropy_coeff=0.01"}};
  RandomRows rows_{false, shape()};
};

// The memory ends at more and more distant places of an update: in the layers, the head, backward.
TEST(DeviceMemory, AnUpdateThatDoesNotFitIsAnErrorAndTheNextOneIsAsIfItWereTheFirst) {
  Updates whole, cut;
  ASSERT_OK_AND_ASSIGN(const UpdateReport want, whole.update());
  int64_t num_failed = 0;
  for (int64_t left = device_under_test.device.is_cuda() ? 4 << 20 : 4 << 10;; left += left / 4) {
    const Result<UpdateReport> done = cut.update(left);
    if (done.ok()) {
      EXPECT_EQ(done->sums.loss, want.sums.loss);
      EXPECT_EQ(done->grad_norm, want.grad_norm);
      break;
    }
    ++num_failed;
    EXPECT_THAT(done.error().to_string(), HasSubstr("an update: the GPU has no memory left"));
    ASSERT_LT(num_failed, 60) << "no update fits";
  }
  EXPECT_GE(num_failed, 5);
  ASSERT_OK_AND_ASSIGN(const UpdateReport next, cut.update());
  ASSERT_OK_AND_ASSIGN(const UpdateReport want_next, whole.update());
  EXPECT_EQ(next.sums.loss, want_next.sums.loss);
}

// Errors tell that sampling needs this part, while one lives.
class ToldPart {
 public:
  ToldPart(const char* name, double bytes, const char* lowered_by) {
    MemoryNeed need;
    need.sampling.push_back(MemoryPart{name, bytes, lowered_by});
    tell_memory_need(std::move(need), {});
  }
  ToldPart(const ToldPart&) = delete;
  ToldPart& operator=(const ToldPart&) = delete;
  ~ToldPart() { tell_memory_need({}, {}); }
};

// The longest prompts of a pass do not fit.
TEST(DeviceMemory, ASamplingThatDoesNotFitIsAnErrorAndTheNextOneIsGood) {
  const Model model = model_of(Family::kQwen3, "float32", true);
  std::vector<GenerateRequest> requests = some_requests();
  for (GenerateRequest& one : requests) one.prompt_ids.resize(device_under_test.device.is_cuda() ? 20000 : 200, 3);
  ASSERT_OK_AND_ASSIGN(const Completions want, sampled(model, requests));
  {
    const FullMemory full(1 << 16);
    const ToldPart told("KV cache", 3 << 20, "lower rollout.kv_cache_mib");
    const Result<Completions> done = sampled(model, requests);
    ASSERT_FALSE(done.ok());
    EXPECT_THAT(done.error().to_string(), HasSubstr("the GPU has no memory left"));
    EXPECT_THAT(done.error().what, HasSubstr("3.0 MiB while it samples: KV cache 3.0 MiB)"));
    EXPECT_EQ(done.error().next, "lower rollout.kv_cache_mib");
  }
  ASSERT_OK_AND_ASSIGN(const Completions again, sampled(model, requests));
  for (const auto& [key, row] : want) EXPECT_EQ(again.at(key).ids, row.ids);
}

TEST(DeviceMemory, ACaptureThatDoesNotFitIsAnErrorAndTheNextSamplingIsGood) {
  if (device_under_test.device.is_cpu()) GTEST_SKIP() << "CPU tensors have no graphs to capture";
  if (!why_no_gpu_kernels().empty()) GTEST_SKIP() << "graphs need the kernels, and " << why_no_gpu_kernels();
  ModelConfig config = device_config(Family::kQwen3);
  config.vocab_size = 100'000;  // the logits of a pass do not fit into what the pool of the graphs has already
  Model model = *Model::random(config, 11, "float32");
  ASSERT_OK(model.move_to(device_under_test));
  ASSERT_OK_AND_ASSIGN(const Completions want, sampled(model));
  {
    const UseWatchedGraphs watched(/*fills_memory=*/true);
    const Result<Completions> done = sampled(model);
    ASSERT_FALSE(done.ok()) << "the graph of a pass needs memory of its own";
    EXPECT_THAT(done.error().to_string(), HasSubstr("memory"));
  }
  ASSERT_OK_AND_ASSIGN(const Completions again, sampled(model));
  for (const auto& [key, row] : want) EXPECT_EQ(again.at(key).ids, row.ids);
}

}  // namespace
}  // namespace mortise
