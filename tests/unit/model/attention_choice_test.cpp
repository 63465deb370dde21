// The choice between libtorch's attention and cuDNN's: by time, by rule, and where neither can compute. A stand-in plays cuDNN
// on CPU tensors, and libtorch's side is the plain operations.
#include "model/layers/attention_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/plain_cudnn.h"
#include "support/temp_dir.h"
#include "unit/model/gradient_fixture.h"

namespace mortise {
namespace {

using test::PlainCudnn;
using testing::HasSubstr;

const AttentionShape kShape{4, 2, 16, 0.25};
constexpr int64_t kLongest = 40;

AttentionShape with_window(int64_t window) {
  AttentionShape shape = kShape;
  shape.window = window;
  return shape;
}

// A clock that knows who worked.
WorkTimer clock_of(const PlainCudnn& cudnn, double cudnn_seconds, double libtorch_seconds) {
  return [&cudnn, cudnn_seconds, libtorch_seconds](const std::function<void()>& work) {
    const int before = cudnn.num_backwards;
    work();
    return cudnn.num_backwards > before ? cudnn_seconds : libtorch_seconds;
  };
}

AttentionVerdict tried(PlainCudnn& cudnn, const WorkTimer& seconds, const AttentionShape& shape = kShape) {
  AttentionTrial trial = attention_trial(shape, kLongest, cudnn, at::kCPU);
  trial.seconds = seconds;
  return try_attention(trial);
}

TEST(AttentionChoice, TheFasterOneIsTaken) {
  PlainCudnn cudnn;
  const AttentionVerdict fast = tried(cudnn, clock_of(cudnn, 1e-3, 2e-3));
  EXPECT_EQ(fast.code, AttentionCode::kCudnn);
  EXPECT_EQ(fast.why, "cuDNN takes 1.000 ms and libtorch 2.000 ms");
  EXPECT_EQ(tried(cudnn, clock_of(cudnn, 2e-3, 1e-3)).code, AttentionCode::kLibtorch);
}

// The noise of a clock does not decide.
TEST(AttentionChoice, LibtorchIsTakenIfBothAreAboutAsFast) {
  PlainCudnn cudnn;
  EXPECT_EQ(tried(cudnn, clock_of(cudnn, 0.98e-3, 1e-3)).code, AttentionCode::kLibtorch);
  EXPECT_EQ(tried(cudnn, clock_of(cudnn, 0.94e-3, 1e-3)).code, AttentionCode::kCudnn);
}

TEST(AttentionChoice, WithoutAClockCudnnIsTakenWhereItComputes) {
  PlainCudnn cudnn;
  EXPECT_EQ(tried(cudnn, {}).code, AttentionCode::kCudnn);
  EXPECT_EQ(tried(cudnn, {}, with_window(9)).code, AttentionCode::kCudnn);
  EXPECT_EQ(cudnn.last_shape.window, 9);
}

TEST(AttentionChoice, ACudnnThatFailsIsAReasonForLibtorch) {
  PlainCudnn cudnn;
  cudnn.fails = "no engine for sm_80\nmore lines";
  const AttentionVerdict verdict = tried(cudnn, clock_of(cudnn, 1e-3, 2e-3));
  EXPECT_EQ(verdict.code, AttentionCode::kLibtorch);
  EXPECT_EQ(verdict.why, "cuDNN does not compute it: no engine for sm_80");
}

TEST(AttentionChoice, ACudnnWithOtherNumbersIsNotTaken) {
  PlainCudnn wrong;
  wrong.factor = 1.2;
  AttentionVerdict verdict = tried(wrong, clock_of(wrong, 1e-3, 2e-3));
  EXPECT_EQ(verdict.code, AttentionCode::kLibtorch);
  EXPECT_THAT(verdict.why, HasSubstr("differ from libtorch's by 20 %"));
  wrong.factor = std::numeric_limits<double>::quiet_NaN();
  verdict = tried(wrong, {});
  EXPECT_EQ(verdict.code, AttentionCode::kLibtorch);
  EXPECT_EQ(verdict.why, "a trial gives numbers that are not finite");
  PlainCudnn unsteady;
  unsteady.is_unsteady = true;
  verdict = tried(unsteady, clock_of(unsteady, 1e-3, 2e-3));
  EXPECT_EQ(verdict.code, AttentionCode::kLibtorch);
  EXPECT_EQ(verdict.why, "cuDNN gives other bits each time");
}

// A mask that is off by one key changes each row a little.
TEST(AttentionChoice, ACudnnWithAnotherMaskIsNotTaken) {
  PlainCudnn wrong;
  wrong.window_error = -1;
  const AttentionVerdict verdict = tried(wrong, {}, with_window(30));
  EXPECT_EQ(verdict.code, AttentionCode::kLibtorch) << verdict.why;
  EXPECT_THAT(verdict.why, HasSubstr("differ from libtorch's by"));
}

TEST(AttentionChoice, AFailedMeasurementIsAReasonForLibtorch) {
  PlainCudnn cudnn;
  const AttentionVerdict verdict = tried(cudnn, [](const auto&) -> double { throw std::runtime_error("no memory"); });
  EXPECT_EQ(verdict.code, AttentionCode::kLibtorch);
  EXPECT_EQ(verdict.why, "the measurement failed: no memory");
}

// As the masks of long sequences may, which fill the memory of a GPU.
TEST(AttentionChoice, ALibtorchThatFailsIsAReasonForCudnn) {
  PlainCudnn cudnn;
  AttentionTrial trial = attention_trial(kShape, kLongest, cudnn, at::kCPU);
  trial.libtorch = []() -> std::vector<at::Tensor> { throw std::runtime_error("out of memory"); };
  const AttentionVerdict verdict = try_attention(trial);
  EXPECT_EQ(verdict.code, AttentionCode::kCudnn);
  EXPECT_EQ(verdict.why, "libtorch does not compute it: out of memory");
}

TEST(AttentionClass, GrowsByPowersOfFour) {
  EXPECT_EQ(attention_class(kShape, 1).most_keys, 1024);
  EXPECT_EQ(attention_class(kShape, 1024).most_keys, 1024);
  EXPECT_EQ(attention_class(kShape, 1025).most_keys, 4096);
  EXPECT_EQ(attention_class(kShape, 20000).most_keys, 65536);
  EXPECT_FALSE(attention_class(with_window(100), 100).has_window) << "it holds all keys";
  EXPECT_TRUE(attention_class(with_window(100), 101).has_window);
  EXPECT_EQ(text_of(attention_class(with_window(9), 30)),
            "4 query and 2 key heads of 16 numbers, up to 1024 keys, with a window");
}

TEST(AttentionChoices, HoldForTheirClassAlone) {
  PlainCudnn cudnn;
  AttentionChoices choices;
  choices.use(&cudnn);
  choices.set(attention_class(kShape, 1000), AttentionCode::kCudnn);
  choices.set(attention_class(kShape, 4000), AttentionCode::kLibtorch);
  AttentionShape shape = kShape;
  EXPECT_EQ(choices.cudnn_for(shape, {{5}, {5}}), nullptr) << "float32";
  shape.rounds = true;
  EXPECT_EQ(choices.cudnn_for(shape, {{5}, {5}}), &cudnn);
  EXPECT_EQ(choices.cudnn_for(shape, {{5, 3000}, {5, 3000}}), nullptr);
  EXPECT_EQ(choices.cudnn_for(shape, {{9000}, {9000}}), nullptr) << "no choice was made";
  shape.window = 4;
  EXPECT_EQ(choices.cudnn_for(shape, {{5}, {5}}), nullptr) << "no choice was made for windows";
  shape.softcap = 30.0;
  EXPECT_EQ(AttentionChoices::everywhere(cudnn).cudnn_for(shape, {{5}, {5}}), nullptr) << "cuDNN has no caps";
}

AttentionChoices reloaded(const AttentionChoices& from, const std::string& setting) {
  AttentionChoices before = from, after;
  after.choose_for(setting);
  StatefulRegistry saved, loaded;
  EXPECT_OK(saved.add(before));
  EXPECT_OK(loaded.add(after));
  EXPECT_OK(loaded.load(saved.save().value(), "here"));
  return after;
}

// The bits after a resume depend on no clock.
TEST(AttentionChoices, ComeBackFromACheckpoint) {
  const AttentionClass calls = attention_class(kShape, 1000), windows = attention_class(with_window(9), 4000);
  AttentionChoices choices;
  choices.choose_for("auto");
  choices.set(calls, AttentionCode::kLibtorch);
  choices.set(windows, AttentionCode::kCudnn);
  AttentionChoices same = reloaded(choices, "auto");
  EXPECT_TRUE(same.has(calls) && same.has(windows) && same.need_cudnn());
  PlainCudnn cudnn;
  same.use(&cudnn);
  AttentionShape shape = with_window(9);
  shape.rounds = true;
  EXPECT_EQ(same.cudnn_for(shape, {{4000}, {4000}}), &cudnn);
  shape.window = 0;
  EXPECT_EQ(same.cudnn_for(shape, {{1000}, {1000}}), nullptr);
  EXPECT_FALSE(reloaded(choices, "cudnn").has(calls)) << "the setting was changed";
  EXPECT_FALSE(reloaded({}, "").has(calls)) << "none was made, as with libtorch alone";
}

// Passes of a model by the code of a device.
struct Passes {
  Model model;
  PackedBatch batch;

  Passes() : model(*Model::random(config(), 3, "bfloat16")), batch(make_batch()) {
    EXPECT_OK(model.move_to({at::kCPU, /*by_operators=*/true, "the CPU, with the code of a device"}));
  }
  static ModelConfig config() {
    ModelConfig config = small_config(Family::kQwen2, false);
    config.hidden_size = 64;
    config.head_dim = 16;
    return config;
  }
  static PackedBatch make_batch() {
    static const std::vector<int64_t> prompt{1, 2, 3}, completion{4, 5, 6, 7};
    const PackRow row{prompt, completion, -1};
    return *pack_rows({&row, 1}, {.vocab_size = 23});
  }
  at::Tensor gradient() {
    model.zero_grad();
    model.forward_hidden(batch).sum().backward();
    return model.parameters().at(1).tensor.grad().clone();
  }
};

TEST(TrainingAttention, TakesCudnnForwardAndBackwardWhereTheChoicesSaySo) {
  Passes passes;
  const at::Tensor want = passes.gradient();
  PlainCudnn cudnn;
  const AttentionChoices choices = AttentionChoices::everywhere(cudnn);
  use_attention_choices(&choices);
  const at::Tensor got = passes.gradient();
  use_attention_choices(nullptr);
  EXPECT_EQ(cudnn.num_forwards, passes.model.config().num_layers);
  EXPECT_EQ(cudnn.num_backwards, passes.model.config().num_layers);
  EXPECT_LT(relative_l2(got, want), 0.05);
  EXPECT_TRUE(passes.gradient().equal(want)) << "without choices libtorch computes again";
  EXPECT_EQ(cudnn.num_forwards, passes.model.config().num_layers);
}

}  // namespace
}  // namespace mortise
