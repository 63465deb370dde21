// How a run chooses the code of attention: what it tries, what all ranks take, and what a checkpoint's choices mean. A stand-in
// plays cuDNN on CPU tensors.
#include "train/run/run_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "support/plain_cudnn.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::error_of;
using test::on_ranks;
using test::PlainCudnn;
using testing::HasSubstr;

constexpr int64_t kLongest = 24;

ModelConfig model_config() {
  ModelConfig config;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.windows = {0, 9, 0};
  return config;
}

LoadedConfig settings(AttentionBackend backend, bool deterministic = false) {
  LoadedConfig loaded;
  loaded.config.model.attention_backend = backend;
  loaded.config.model.dtype = ModelDtype::kBfloat16;
  loaded.config.trainer.deterministic = deterministic;
  return loaded;
}

// A machine with cuDNN, or without.
struct Machine {
  PlainCudnn cudnn;
  bool has_cudnn = true;
  double cudnn_seconds = 1e-3, libtorch_seconds = 2e-3;
  int num_measured = 0;

  AttentionTools tools() {
    return {[this]() -> Result<CudnnAttention*> {
              if (has_cudnn) return &cudnn;
              return Error{ErrorKind::kConfig, "libmortise_cudnn.so is not there", "", "build it"};
            },
            at::kCPU,
            [this](const std::function<void()>& work) {
              ++num_measured;
              const int before = cudnn.num_backwards;
              work();
              return cudnn.num_backwards > before ? cudnn_seconds : libtorch_seconds;
            }};
  }
};

AttentionClass class_of(int64_t window, int64_t num_ranks = 1) {
  AttentionShape shape{4 / num_ranks, std::max<int64_t>(1, 2 / num_ranks), 16, 0.25};
  shape.window = window;
  return attention_class(shape, kLongest);
}

bool takes_cudnn(const AttentionChoices& choices, int64_t window) {
  AttentionShape shape{4, 2, 16, 0.25};
  shape.window = window;
  shape.rounds = true;
  return choices.cudnn_for(shape, {{kLongest}, {kLongest}}) != nullptr;
}

Result<> choose(Machine& machine, const LoadedConfig& loaded, AttentionChoices& choices) {
  Result<> done;
  on_ranks(1, [&](Communicator& ranks) {
    const ModelConfig config = model_config();
    const std::vector<AttendingModel> models{{config, 1}};
    done = choose_attention(loaded, ranks, models, kLongest, machine.tools(), choices);
  });
  return done;
}

TEST(RunAttention, AutoTakesTheFasterOneForLayersWithAndWithoutAWindow) {
  for (const double libtorch_seconds : {2e-3, 0.5e-3}) {
    Machine machine;
    machine.libtorch_seconds = libtorch_seconds;
    AttentionChoices choices;
    ASSERT_OK(choose(machine, settings(AttentionBackend::kAuto), choices));
    EXPECT_GT(machine.num_measured, 0);
    EXPECT_EQ(takes_cudnn(choices, 0), libtorch_seconds > 1e-3);
    EXPECT_EQ(takes_cudnn(choices, 9), libtorch_seconds > 1e-3);
  }
}

TEST(RunAttention, ADeterministicRunMeasuresNothing) {
  Machine machine;
  AttentionChoices choices;
  ASSERT_OK(choose(machine, settings(AttentionBackend::kAuto, true), choices));
  EXPECT_EQ(machine.num_measured, 0);
  EXPECT_FALSE(takes_cudnn(choices, 0) || takes_cudnn(choices, 9)) << "libtorch's fused operators are deterministic";
  EXPECT_TRUE(choices.has(class_of(0)) && choices.has(class_of(9)));
  EXPECT_EQ(machine.cudnn.num_forwards, 0);
}

TEST(RunAttention, ASettingDecidesWithoutAClock) {
  Machine machine;
  machine.libtorch_seconds = 0.1e-3;
  AttentionChoices cudnn, libtorch;
  ASSERT_OK(choose(machine, settings(AttentionBackend::kCudnn), cudnn));
  EXPECT_TRUE(takes_cudnn(cudnn, 0) && takes_cudnn(cudnn, 9));
  const int num_calls = machine.cudnn.num_forwards;
  ASSERT_OK(choose(machine, settings(AttentionBackend::kLibtorch), libtorch));
  EXPECT_FALSE(takes_cudnn(libtorch, 0));
  EXPECT_EQ(machine.cudnn.num_forwards, num_calls);
  EXPECT_EQ(machine.num_measured, 0);
}

// As on an A100, whose architecture cuDNN refuses here.
TEST(RunAttention, WhatCudnnRefusesIsLeftToLibtorch) {
  for (const AttentionBackend backend : {AttentionBackend::kAuto, AttentionBackend::kCudnn}) {
    Machine machine;
    machine.cudnn.fails = "needs compute capability 9.0 or newer";
    AttentionChoices choices;
    ASSERT_OK(choose(machine, settings(backend), choices));
    EXPECT_TRUE(choices.has(class_of(0)) && choices.has(class_of(9)));
    EXPECT_FALSE(takes_cudnn(choices, 0) || takes_cudnn(choices, 9));
  }
}

TEST(RunAttention, WithoutTheModuleOnlyASettingIsAnError) {
  Machine machine;
  machine.has_cudnn = false;
  AttentionChoices by_auto, by_setting;
  ASSERT_OK(choose(machine, settings(AttentionBackend::kAuto), by_auto));
  EXPECT_TRUE(by_auto.has(class_of(0)) && by_auto.has(class_of(9)) && !by_auto.need_cudnn());
  const std::string error = error_of(choose(machine, settings(AttentionBackend::kCudnn), by_setting));
  EXPECT_THAT(error, HasSubstr("libmortise_cudnn.so is not there"));
  EXPECT_THAT(error, HasSubstr("build it, or set model.attention_backend = \"libtorch\""));
}

// A resume takes the checkpoint's choices, whatever a clock says now.
TEST(RunAttention, ChoicesOfACheckpointStay) {
  Machine machine;
  AttentionChoices choices;
  choices.set(class_of(0), AttentionCode::kLibtorch);
  choices.set(class_of(9), AttentionCode::kCudnn);
  ASSERT_OK(choose(machine, settings(AttentionBackend::kAuto), choices));
  EXPECT_EQ(machine.num_measured, 0);
  EXPECT_FALSE(takes_cudnn(choices, 0));
  EXPECT_TRUE(takes_cudnn(choices, 9));
  machine.has_cudnn = false;
  const std::string error = error_of(choose(machine, settings(AttentionBackend::kAuto), choices));
  EXPECT_THAT(error, HasSubstr("libmortise_cudnn.so is not there, and the checkpoint's run chose it"));
  EXPECT_THAT(error, HasSubstr("--allow-change"));
}

// Rank 1's clock would say something else.
TEST(RunAttention, AllRanksTakeTheChoiceOfTheMainRank) {
  std::vector<Machine> machines(2);
  machines[1].libtorch_seconds = 0.1e-3;
  std::vector<AttentionChoices> choices(2);
  on_ranks(2, [&](Communicator& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    const ModelConfig config = model_config();
    const std::vector<AttendingModel> models{{config, 1}};
    ASSERT_OK(choose_attention(settings(AttentionBackend::kAuto), ranks, models, kLongest, machines[rank].tools(),
                               choices[rank]));
  });
  EXPECT_EQ(machines[1].num_measured, 0);
  for (const AttentionChoices& one : choices) EXPECT_TRUE(takes_cudnn(one, 0) && takes_cudnn(one, 9));
}

// All ranks take libtorch if one cannot load cuDNN. An error names that rank.
TEST(RunAttention, WithoutTheModuleOnOneRankNoRankTakesIt) {
  for (const AttentionBackend backend : {AttentionBackend::kAuto, AttentionBackend::kCudnn}) {
    std::vector<Machine> machines(2);
    machines[1].has_cudnn = false;
    std::vector<AttentionChoices> choices(2);
    std::vector<std::string> errors(2);
    on_ranks(2, [&](Communicator& ranks) {
      const auto rank = static_cast<size_t>(ranks.rank());
      const ModelConfig config = model_config();
      const std::vector<AttendingModel> models{{config, 1}};
      const Result<> done =
          choose_attention(settings(backend), ranks, models, kLongest, machines[rank].tools(), choices[rank]);
      if (!done.ok()) errors[rank] = done.error().to_string();
    });
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_FALSE(takes_cudnn(choices[rank], 0) || takes_cudnn(choices[rank], 9)) << rank;
      if (backend == AttentionBackend::kAuto)
        EXPECT_EQ(errors[rank], "");
      else
        EXPECT_THAT(errors[rank], HasSubstr("rank 1: libmortise_cudnn.so is not there"));
    }
  }
}

// Ranks that share the heads of a pass have fewer each.
TEST(RunAttention, RanksThatShareHeadsChooseForTheirOwn) {
  Machine machine;
  AttentionChoices choices;
  on_ranks(1, [&](Communicator& ranks) {
    const ModelConfig config = model_config();
    const std::vector<AttendingModel> models{{config, 2}};
    ASSERT_OK(choose_attention(settings(AttentionBackend::kAuto), ranks, models, kLongest, machine.tools(), choices));
  });
  EXPECT_TRUE(choices.has(class_of(0, 2)));
  EXPECT_FALSE(choices.has(class_of(0)));
}

}  // namespace
}  // namespace mortise
