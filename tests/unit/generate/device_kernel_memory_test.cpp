// The memory of sampling by the kernels of core/cuda: pages of keys and values, and what graphs keep.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>

#include "generate/device/device_cache.h"
#include "generate/device/graphed_decode.h"
#include "unit/generate/device_kernels_fixture.h"

namespace mortise {
namespace {

// Bytes of a page of the model, as it lies on a device.
int64_t device_page_bytes(const ModelConfig& config, int64_t element) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * MORTISE_CUDA_PAGE_TOKENS * element;
}

// kv_cache_bytes counts pages as they are: those of a bfloat16 model have half the bytes.
TEST_F(DeviceKernelsTest, ABfloat16CacheHoldsTwiceAsManySamples) {
  for (const char* const dtype : {"float32", "bfloat16"}) {
    Model model = tiny_model(3, dtype);
    move_to_device(model);
    EngineOptions options;
    options.kv_cache_bytes = 4 * device_page_bytes(model.config(), 4);  // two for each sample
    auto engine = make_engine(model, options);
    SamplingParams params;
    params.max_new_tokens = 20;
    const std::vector<GenerateRequest> requests = {make_request(1, {5, 6, 7}, 10, params)};
    ASSERT_EQ(engine->submit(requests).value(), 1U);
    ASSERT_TRUE(engine->poll([](const GeneratedSequence&) { return true; }, std::chrono::nanoseconds(1)).ok());
    EXPECT_EQ(engine->running().size(), dtype == std::string("float32") ? 2U : 4U);
  }
}

// Bytes of the CPU's tensors, now and at most since a mark. Threads of libtorch may allocate too.
class CountingMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    auto* const block = new Block{c10::GetDefaultCPUAllocator()->allocate(size), size};
    const size_t after = now += size;
    for (size_t before = most; before < after && !most.compare_exchange_weak(before, after);) {
    }
    void* const data = block->memory.get();
    return {data, block, &give_back, at::Device(at::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  static inline std::atomic<size_t> now = 0, most = 0;  // NOLINT: a deleter is a function

 private:
  struct Block {
    c10::DataPtr memory;
    size_t size;
  };
  static void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    now -= block->size;
  }
};

// Memory doubles to all pages that the scheduler may give out, and never has more. After it was freed the cache takes at once
// what it had. Pages that nobody has are freed before larger memory is taken.
TEST_F(DeviceKernelsTest, PagesTakeTheMemoryThatTheyNeed) {
  static CountingMemory memory;
  c10::Allocator* const before = c10::GetCPUAllocator();
  Model model = tiny_model(3, "bfloat16");
  move_to_device(model);
  constexpr int64_t kMostPages = 100, kPadding = 1;
  KvCache kv({2, 2, 12}, kMostPages, PageMemory::kOnDevice);
  std::vector<float*> taken;
  const auto page_bytes = static_cast<size_t>(device_page_bytes(model.config(), 2));
  const auto cache = make_paged_cache(model, model.config(), *device_kernels(at::kCPU), kv);
  c10::SetCPUAllocator(&memory, /*priority=*/100);
  const auto layout_of = [&](int count) {  // samples of 30 pages
    for (int i = 0; i < count; ++i) {
      for (int page = 0; page < 30; ++page) taken.push_back(kv.take());
      cache->add_slots({1, 20, 30 * MORTISE_CUDA_PAGE_TOKENS, {{taken.end() - 30, taken.end()}}});
    }
    return cache->layout();
  };
  const auto drop = [&](bool frees) {
    frees ? cache->free() : cache->clear();
    kv.give_back(taken);
  };
  const uint64_t two = layout_of(2);
  const size_t bytes = CountingMemory::now;
  EXPECT_NE(layout_of(1), two);  // 90 pages, where 64 were
  constexpr size_t kMore = kMostPages + kPadding - 64;
  EXPECT_EQ(CountingMemory::now - bytes, kMore * page_bytes);
  drop(true);
  EXPECT_LT(CountingMemory::now, bytes);
  const uint64_t one = layout_of(1);
  EXPECT_EQ(layout_of(2), one);
  drop(true);
  for (const bool is_computed : {false, true}) {
    const auto smaller = make_paged_cache(model, model.config(), *device_kernels(at::kCPU), kv);
    float* const known = kv.take();  // a prompt that is done has it
    if (is_computed) kv.set_computed(known);
    smaller->add_slots({1, 20, 20, {{known}}});
    smaller->clear();
    const size_t small = CountingMemory::now;
    CountingMemory::most = small;
    for (int page = 0; page < 90; ++page) taken.push_back(kv.take());
    smaller->add_slots({1, 20, 20, {taken}});
    if (is_computed)
      EXPECT_GT(CountingMemory::most - small, kMore * page_bytes) << "what is computed is copied";
    else
      EXPECT_EQ(CountingMemory::most - small, kMore * page_bytes);
    taken.push_back(known);
    kv.give_back(taken);
  }
  c10::SetCPUAllocator(before, /*priority=*/100);
}

// Runs passes, and keeps the most bytes that one of them took next to what was there.
class CountedGraphs final : public StepGraphs {
 public:
  static inline size_t most = 0;  // NOLINT: the factory is a function
  void warm_up(const std::function<void()>& work) override { count(work); }
  std::unique_ptr<StepGraph> capture(const std::function<void()>& work) override {
    return std::make_unique<Graph>(work);
  }

 private:
  static void count(const std::function<void()>& work) {
    const size_t before = CountingMemory::now;
    CountingMemory::most = before;
    work();
    most = std::max(most, CountingMemory::most - before);
  }
  class Graph final : public StepGraph {
   public:
    explicit Graph(std::function<void()> work) : work_(std::move(work)) {}
    void replay() override { work_(); }

   private:
    std::function<void()> work_;
  };
};

// The bytes that the largest pass of a model takes, and how far decode_graph_bytes() is from it.
void expect_graph_bytes(Model model, bool has_edits, const char* dtype) {
  const ModelConfig config = model.config();
  move_to_device(model);
  SamplingParams params;
  params.max_new_tokens = 3;
  params.ignore_eos = true;
  if (!has_edits) params.ignore_eos = false, params.max_new_tokens = 2;
  if (has_edits) params.repetition_penalty = 1.2;
  CountedGraphs::most = 0;
  run_all(*make_engine(model), {make_request(1, {5, 6, 7, 8}, 40, params)});
  const double said = decode_graph_bytes(config, {40, 6, has_edits, dtype == std::string("bfloat16")});
  EXPECT_GT(CountedGraphs::most, 0U);
  EXPECT_NEAR(said / static_cast<double>(CountedGraphs::most), 1.0, 0.15)
      << config.vocab_size << dtype << has_edits << config.moe.expert_size;
}

// What --dry-run says that graphs keep is what the largest pass takes. Models whose layers, and whose head, need most, both
// gates, and experts.
TEST_F(DeviceKernelsTest, GraphsNeedTheMemoryOfTheLargestPass) {
  static CountingMemory memory;
  c10::Allocator* const before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&memory, /*priority=*/100);
  set_step_graphs([]() -> std::unique_ptr<StepGraphs> { return std::make_unique<CountedGraphs>(); });
  constexpr auto kSilu = Activation::kSilu;
  for (const auto& [vocab_size, has_edits, activation] :
       {std::tuple{60, false, kSilu}, {60, false, Activation::kGeluTanh}, {3000, false, kSilu}, {3000, true, kSilu}}) {
    for (const char* const dtype : {"float32", "bfloat16"}) {
      ModelConfig config = tiny_model().config();
      config.vocab_size = vocab_size;
      config.intermediate_size = 400;
      config.activation = activation;
      expect_graph_bytes(*Model::random(config, 3, dtype), has_edits, dtype);
    }
  }
  for (const char* const dtype : {"float32", "bfloat16"}) {
    for (const auto& [expert_size, shared_size] : {std::pair{20, 0}, {200, 0}, {60, 300}}) {
      ModelConfig config = tiny_mixture(shared_size > 0 ? Mixture::kQwen2 : Mixture::kQwen3, dtype).config();
      config.vocab_size = 60;
      config.moe.expert_size = expert_size;
      config.moe.shared_size = shared_size;
      expect_graph_bytes(*Model::random(config, 3, dtype), false, dtype);
    }
  }
  set_step_graphs(nullptr);
  c10::SetCPUAllocator(before, /*priority=*/100);
}

}  // namespace
}  // namespace mortise
