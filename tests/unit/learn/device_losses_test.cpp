// A learner uses the CUDA builds of losses and KL estimators on CPU tensors. The emulator runs their kernels, and the kernels
// for the head and AdamW. The learner must go the same way as on the CPU, and have the same bits after a resume. For the other
// losses (geo_mean, kl_cov, topr, vespo ...), unit/plugin/device_call_test.cpp compares single calls.
#include <cmath>
#include <optional>

#include "foundation/base/stateful.h"
#include "learner_fixture.h"
#include "support/as_device.h"
#include "support/started_kernels.h"
#include "train/run/plugin_memory.h"
#include "unit/plugin/device_rows.h"

namespace mortise {
namespace {

using test::emulated_packs;

struct LossCase {
  const char* name;
  const char* kl;
  std::vector<std::string> settings;
};

// Losses of tokens, of rows, of groups, and of the whole update.
const LossCase kCases[] = {
    {"vanilla", "k3", {}},
    {"gspo", "k3_row_ratio", {}},
    {"fipo", "k3_ratio", {}},
    {"real", "k1", {}},
    {"clip_cov", "k3", {"actor.policy_loss.clip_cov_ratio=0.2", "actor.policy_loss.clip_cov_lb=0.02"}},
    {"m2po", "k2", {"actor.policy_loss.m2_threshold=0.01"}},
};

enum class Place { kHost, kDevice };

// A policy and its objective. On the device all is computed by kernels.
class Learning {
 public:
  Learning(const LossCase& loss, Place place) : policy_("float32") {
    const bool on_device = place == Place::kDevice;
    if (on_device) {
      kernels_.emplace();
      device_ = plugin_device(at::kCPU);
      EXPECT_TRUE(policy_.model.move_to(kAsDevice).ok());
    }
    std::vector<std::string> settings = loss.settings;
    settings.insert(settings.end(), {std::string("actor.policy_loss.loss_mode=") + loss.name, "actor.use_kl_loss=true",
                                     std::string("actor.kl_loss_type=") + loss.kl, "actor.kl_loss_coef=0.1"});
    RunKey key;
    key.device = device_.get();
    objective_.emplace(settings, emulated_packs(), key);
    EXPECT_EQ(objective_->objective.policy_loss().instance().device() != nullptr, on_device);
  }

  // Takes over what a checkpoint has.
  void resume(Learning& from) {
    StatefulRegistry saved, loaded;
    EXPECT_TRUE(saved.add(from.policy_.optimizer).ok() && loaded.add(policy_.optimizer).ok());
    EXPECT_TRUE(loaded.load(saved.save().value(), "memory").ok());
    for (size_t i = 0; i < policy_.model.parameters().size(); ++i)
      policy_.model.parameters()[i].tensor.detach().copy_(from.policy_.model.parameters()[i].tensor.detach());
  }

  // Loss, KL and norm of the gradient of each update.
  std::vector<double> run(int64_t from, int64_t to) {
    const RandomRows rows(false);
    ActorLearner learner(policy_.model, policy_.optimizer, objective_->objective, cut_by({3, 0}));
    std::vector<double> numbers;
    for (int64_t step = from; step <= to; ++step) {
      const auto done =
          learner.update(rows.batch, all_rows(rows.batch), {.lr = 1e-3, .step = step, .update_index = step});
      EXPECT_TRUE(done.ok()) << done.error().to_string();
      if (!done.ok()) return numbers;
      EXPECT_GT(done->grad_norm, 0.0);
      numbers.insert(numbers.end(), {done->sums.loss, done->sums.kl, done->grad_norm});
    }
    return numbers;
  }

  [[nodiscard]] std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> out;
    for (const NamedParameter& one : policy_.model.parameters()) out.push_back(one.tensor.detach());
    return out;
  }

 private:
  std::optional<test::TrainingKernels> kernels_;
  std::unique_ptr<PluginDevice> device_;
  TestPolicy policy_;
  std::optional<TestObjective> objective_;
};

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& one : tensors) out.push_back(one.clone());
  return out;
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]).square().sum().item<double>();
  return std::sqrt(squares);
}

TEST(DeviceLosses, LearnWhatTheCpuLearns) {
  for (const LossCase& loss : kCases) {
    SCOPED_TRACE(loss.name);
    Learning host(loss, Place::kHost);
    const std::vector<at::Tensor> before = copies(host.weights());
    const std::vector<double> want = host.run(1, 4);
    Learning device(loss, Place::kDevice);
    const std::vector<double> got = device.run(1, 4);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * std::abs(want[i]) + 1e-6) << i;
    EXPECT_GT(std::abs(want[10]), 1.0) << "the KL of the last update counts";
    const double learnt = distance(before, host.weights());
    EXPECT_GT(learnt, 0.01);
    EXPECT_LT(distance(host.weights(), device.weights()), 1e-4 * learnt);
  }
}

// Memory of the CPU that counts what goes there.
class CountingBytes final : public MirroredBytes {
 public:
  CountingBytes(std::unique_ptr<MirroredBytes> own, size_t& sent) : own_(std::move(own)), sent_(sent) {}
  std::byte* host() override { return own_->host(); }
  std::byte* device() override { return own_->device(); }
  void* stream() override { return own_->stream(); }
  Result<> send(size_t size) override {
    sent_ += size;
    return own_->send(size);
  }
  Result<> receive(size_t from, size_t size) override { return own_->receive(from, size); }

 private:
  std::unique_ptr<MirroredBytes> own_;
  size_t& sent_;
};
class CountingDevice final : public PluginDevice {
 public:
  int32_t type() const override { return own_->type(); }
  int32_t index() const override { return own_->index(); }
  Result<std::unique_ptr<MirroredBytes>> mirror(size_t size) override {
    return std::unique_ptr<MirroredBytes>(std::make_unique<CountingBytes>(TRY(own_->mirror(size)), sent));
  }
  size_t sent = 0;

 private:
  std::unique_ptr<PluginDevice> own_ = plugin_device(at::kCPU);
};

// The loss and the estimator look twice at the tokens, in the head's chunk and as whole rows.
TEST(DeviceLosses, AMicroBatchSendsItsColumnsOnce) {
  const test::TrainingKernels kernels;
  CountingDevice device;
  RunKey key;
  key.device = &device;
  TestPolicy policy("float32");
  ASSERT_TRUE(policy.model.move_to(kAsDevice).ok());
  TestObjective objective({"actor.use_kl_loss=true", "actor.kl_loss_type=k3"}, emulated_packs(), key);
  ActorLearner learner(policy.model, policy.optimizer, objective.objective, cut_by(kAll));
  const RandomRows rows(false);
  ASSERT_TRUE(learner.update(rows.batch, all_rows(rows.batch), {.lr = 1e-3}).ok());
  const auto num_tokens = static_cast<size_t>(rows.batch.num_tokens());
  const auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  const size_t numbers = padded(num_tokens * sizeof(float)), mask = padded(num_tokens);
  // Once: old and reference log-probs, advantages, weights and the mask. Each time: log-probs, entropies, and the zeros that
  // the gradient by entropy begins with.
  EXPECT_EQ(device.sent, 4 * numbers + mask + 2 * (2 * numbers + numbers));
}

TEST(DeviceLosses, AResumeHasTheSameBits) {
  for (const LossCase& loss : kCases) {
    SCOPED_TRACE(loss.name);
    std::vector<double> want, got;
    std::vector<at::Tensor> weights;
    {
      Learning straight(loss, Place::kDevice);
      want = straight.run(1, 4);
      weights = copies(straight.weights());
    }
    Learning first(loss, Place::kDevice);
    got = first.run(1, 2);
    Learning second(loss, Place::kDevice);
    second.resume(first);
    for (const double number : second.run(3, 4)) got.push_back(number);
    EXPECT_EQ(got, want);
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(second.weights()[i].equal(weights[i])) << i;
  }
}

}  // namespace
}  // namespace mortise
