// What a rank has while a run starts: it reads models that ranks share part by part, and needs no more than --dry-run says.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "support/counting_allocator.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"
#include "train/loop/critic.h"
#include "train/run/memory_estimate.h"
#include "train/run/policy_parts.h"
#include "unit/learn/small_config.h"

namespace mortise {
namespace {

// Bytes of one rank's tensors.
struct Counted {
  int64_t own = 0, peak = 0;  // at the end of its start, and the most
};

struct Layout {
  int num_ranks = 1;
  std::vector<std::string> keys = {};
};
const std::vector<Layout> kLayouts{
    {4, {"ranks.zero_stage=3"}},
    {2, {"actor.tensor_model_parallel_size=2"}},
    {4, {"ranks.zero_stage=3", "actor.tensor_model_parallel_size=2"}},
};

class StartMemory : public testing::Test {
 protected:
  StartMemory() {
    EXPECT_OK(Model::random(model_, 5).value().save(default_env(), folder_));
    const Path tokenizer = Path(MORTISE_SOURCE_DIR) / "tests/golden/replay/grpo_kl/model";
    for (const char* const name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(tokenizer / name, folder_ / name);
    weights_ = weight_bytes(model_, ModelDtype::kFloat32, WeightCopies::kMasters);
  }

  // Ranks start one after another, so that the counts of each are its own.
  void on_each_rank(const Layout& layout, std::vector<std::string> keys,
                    const std::function<void(const RunSettings&)>& start,
                    const std::function<void(const Counted&, double started)>& expect) {
    CountingAllocator& tensors = CountingAllocator::install();
    keys.insert(keys.end(), layout.keys.begin(), layout.keys.end());
    for (const std::string& key : {"model.path=" + path_.string(), std::string("model.dtype=float32"),
                                   std::string("trainer.num_threads=1"), "trainer.default_local_dir=" + out_.string()})
      keys.push_back(key);
    const LoadedConfig loaded = load_config(default_env(), "", keys).value();
    const double started = estimate(loaded, layout.num_ranks).started;
    EXPECT_GT(started, 0);
    test::on_ranks(layout.num_ranks, [&](Communicator& ranks) {
      for (int rank = 0; rank < layout.num_ranks; ++rank) {
        ASSERT_OK(ranks.barrier("the next rank"));
        if (ranks.rank() != rank) continue;
        RunSettings run(default_env(), loaded, ranks);
        run.plan = plan_batches(loaded.config);
        tensors_ = &tensors;
        start(run);
        expect(counted_, started);
      }
      ASSERT_OK(ranks.barrier("all"));
    });
  }

  void expect_policy_fits();
  void expect_critic_fits();
  // Around what is measured.
  void begin() {
    before_ = tensors_->bytes();
    tensors_->reset_peak();
  }
  void end() { counted_ = {tensors_->bytes() - before_, tensors_->peak() - before_}; }

  MemoryEstimate estimate(const LoadedConfig& loaded, int num_ranks) const {
    TrainedSize trained = trained_size(model_, std::nullopt, loaded, "actor.optim").value();
    if (path_ != folder_) trained.merge = {.matrices = 2.0};
    MemoryEstimate memory = estimate_memory(model_, std::nullopt, trained, loaded.config, /*by_operators=*/false);
    share_memory(model_, unit_bytes(model_, 4.0), trained, loaded.config, /*has_lora=*/false, num_ranks, {}, memory);
    return memory;
  }

  test::TempDir dir_;
  // model.path is an adapter's folder from now on.
  void use_adapter() {
    path_ = dir_ / "adapter";
    Model model = Model::load(default_env(), folder_).value();
    ASSERT_OK(model.train_lora({.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "down_proj"}}, 5));
    ASSERT_OK(model.save(default_env(), path_, {.lora = LoraSave::kApart, .base_model = folder_.string()}));
    for (const char* const name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(folder_ / name, path_ / name);
  }

  Path folder_ = dir_ / "model", path_ = folder_, out_ = dir_ / "out";
  const ModelConfig model_ = many_layers();
  double weights_ = 0;  // bytes of all
  CountingAllocator* tensors_ = nullptr;
  int64_t before_ = 0;
  Counted counted_;
};

constexpr double kVectorsInTheMaking = 16 << 10;

// In each layout.
void StartMemory::expect_policy_fits() {
  for (const Layout& layout : kLayouts) {
    const auto start = [&](const RunSettings& run) {
      PolicyParts policy;
      StatefulRegistry stateful;
      begin();
      ASSERT_OK(load_model(run, std::nullopt, policy, stateful));
      end();
    };
    on_each_rank(layout, {}, start, [&](const Counted& got, double started) {
      EXPECT_LE(static_cast<double>(got.peak), static_cast<double>(got.own) + started + kVectorsInTheMaking);
      EXPECT_LT(static_cast<double>(got.peak), weights_) << "what reading at once takes at least";
    });
  }
}

TEST_F(StartMemory, OfAPolicyIsItsPartAndWhatIsRead) { expect_policy_fits(); }

TEST_F(StartMemory, OfAPolicyFromAnAdaptersFolderIsItsPartAndWhatIsRead) {
  use_adapter();
  expect_policy_fits();
}

// It reads the initial policy next to its own numbers, of which the reference is a copy.
TEST_F(StartMemory, OfAReferenceAfterAResumeIsItsPartAndWhatIsRead) {
  for (const Layout& layout : kLayouts) {
    int64_t own = 0;  // what a rank has of the initial policy
    const auto start = [&](const RunSettings& run) {
      PolicyParts policy;
      StatefulRegistry stateful;
      ASSERT_OK(load_model(run, std::nullopt, policy, stateful));
      policy.reference.reset();
      begin();
      ASSERT_OK(load_reference(run, /*has_moved=*/true, policy));
      end();
      own = counted_.own;
    };
    on_each_rank(layout, {"actor.use_kl_loss=true"}, start, [&](const Counted& got, double started) {
      const double next_to_it = std::max(started, static_cast<double>(own));
      EXPECT_LE(static_cast<double>(got.peak), static_cast<double>(got.own) + next_to_it + kVectorsInTheMaking);
    });
  }
}

// The critic begins from a language model, or from its adapter.
void StartMemory::expect_critic_fits() {
  const auto start = [&](const RunSettings& run) {
    const Model policy = Model::open(default_env(), folder_, "float32").value();
    begin();
    const auto critic = load_critic(run, policy, nullptr);
    ASSERT_OK(critic);
    end();
  };
  on_each_rank(kLayouts.front(), {}, start, [&](const Counted& got, double started) {
    EXPECT_LE(static_cast<double>(got.peak), static_cast<double>(got.own) + started + kVectorsInTheMaking);
    EXPECT_LT(static_cast<double>(got.peak), weights_) << "what reading at once takes at least";
  });
}

TEST_F(StartMemory, OfACriticIsItsPartAndWhatIsRead) {
  expect_critic_fits();
  use_adapter();
  expect_critic_fits();
}

}  // namespace
}  // namespace mortise
