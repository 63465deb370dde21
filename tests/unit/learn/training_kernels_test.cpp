// Training by the kernels of core/cuda, which the emulator runs: the head, the norm of the gradients, their clipping,
// and AdamW with bfloat16 copies. On CPU tensors, on several ranks, and on a device whose memory the host cannot touch.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "foundation/base/stateful.h"
#include "head_inputs.h"
#include "learn/update/critic_learner.h"
#include "learn/update/finite_step.h"
#include "learner_fixture.h"
#include "model/tensor/storage_memory.h"
#include "model/weights/rounded_matrices.h"
#include "support/as_device.h"
#include "support/locked_device.h"
#include "support/started_kernels.h"
#include "support/temp_dir.h"
#include "support/this_build.h"
#include "support/thread_ranks.h"
#include "unit/model/torch_helpers.h"

namespace mortise {
namespace {

// ---- AdamW ----

struct Steps {
  std::vector<OptimizedParameter> parameters;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<double> norms;

  // Two settings of their own, one parameter without decay, and one that no part divides.
  explicit Steps(const c10::Device& device, const ZeroOptions& zero = {}, StateMemory memory = StateMemory::kNow) {
    static const at::Tensor numbers = random_tensor({Shards::kBlock + 11}, 50, at::kFloat, 0.1);
    const std::vector<int64_t> sizes{numbers.numel(), 37, Shards::kBlock + 3};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const at::Tensor start = numbers.narrow(0, 0, sizes[i]).clone().to(device);
      parameters.push_back({"p" + std::to_string(i), start.requires_grad_(true), i != 1});
    }
    parameters[1].lr_scale = 0.5;
    parameters[2].weight_decay = 0.3;
    optimizer = std::make_unique<Optimizer>(parameters, make_adamw({.weight_decay = 0.1}), 0.1, "optim", zero, memory);
    if (memory == StateMemory::kLater)
      EXPECT_OK(optimizer->offload(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
  }

  // Sharded: this rank's range of the gradients.
  void set_gradients(uint64_t update, int rank) {
    static const at::Tensor numbers = random_tensor({Shards::kBlock + 11}, 10, at::kFloat, 0.01);
    std::vector<at::Tensor> all;
    for (const OptimizedParameter& one : parameters) {
      const auto shift = static_cast<int64_t>(997 * update + all.size());
      all.push_back(numbers.roll(shift).narrow(0, 0, one.tensor.numel()));
      if (!optimizer->is_sharded()) one.tensor.mutable_grad() = all.back().to(one.tensor.device());
    }
    if (!optimizer->is_sharded()) return;
    ShardUnit& unit = optimizer->units().front();
    const FlatRange own = unit.shards.of(rank);
    unit.own_gradient = at::cat(all).narrow(0, own.begin, own.size()).clone().to(parameters.front().tensor.device());
  }

  void run(uint64_t from, uint64_t to, int rank = 0) {
    for (uint64_t update = from; update <= to; ++update) {
      set_gradients(update, rank);
      const auto done = optimizer->step_clipped(1e-2, 1.0);
      ASSERT_TRUE(done.ok()) << done.error().to_string();
      norms.push_back(done->grad_norm.wait());
    }
  }

  [[nodiscard]] std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> out;
    for (const OptimizedParameter& one : parameters) out.push_back(on_host(one.tensor.detach()).clone());
    return out;
  }
};

void expect_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
}

TEST(TrainingKernels, AdamWTakesTheStepsOfTheCpu) {
  Steps cpu(at::kCPU);
  cpu.run(1, 3);
  const test::TrainingKernels kernels;
  const int64_t before = test::TrainingKernels::steps();
  Steps device(at::kCPU);
  device.run(1, 3);
  EXPECT_EQ(test::TrainingKernels::steps(), before + 3);
  EXPECT_EQ(device.optimizer->num_updates(), 3);
  double squares = 0.0;  // the last gradients
  for (const OptimizedParameter& one : device.parameters)
    squares += one.tensor.grad().to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(device.norms.back(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
  const std::vector<at::Tensor> start = Steps(at::kCPU).weights(), want = cpu.weights(), got = device.weights();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT(relative_l2(got[i] - start[i], want[i] - start[i]), 2e-5) << i;
    EXPECT_NEAR(device.norms[i], cpu.norms[i], 1e-4 * cpu.norms[i]) << i;  // the CPU adds in float32
    EXPECT_GT(cpu.norms[i], 2.0) << "the gradients are clipped";
  }
}

// Each rank steps its own numbers; norm and weights have the bits of one rank.
TEST(TrainingKernels, RanksOfZeroHaveTheBitsOfOne) {
  const test::TrainingKernels kernels;
  Steps one(at::kCPU);
  one.run(1, 3);
  const std::vector<at::Tensor> want = one.weights();
  for (const int size : {2, 3}) {
    test::on_ranks(size, [&](Communicator& ranks) {
      Steps own(at::kCPU, {&ranks, 1});
      EXPECT_TRUE(own.optimizer->is_sharded());
      own.run(1, 3, ranks.rank());
      expect_same_bits(own.weights(), want);
      EXPECT_EQ(own.norms, one.norms);
    });
  }
}

// Also if its state lies in files from then on.
TEST(TrainingKernels, AResumedOptimizerHasTheSameBits) {
  const test::TrainingKernels kernels;
  Steps straight(at::kCPU), first(at::kCPU), second(at::kCPU, {}, StateMemory::kLater);
  straight.run(1, 4);
  first.run(1, 2);
  StatefulRegistry saved, loaded;
  ASSERT_TRUE(saved.add(*first.optimizer).ok() && loaded.add(*second.optimizer).ok());
  ASSERT_TRUE(loaded.load(saved.save().value(), "memory").ok());
  for (size_t i = 0; i < first.parameters.size(); ++i)
    second.parameters[i].tensor.detach().copy_(first.parameters[i].tensor.detach());
  second.run(3, 4);
  expect_same_bits(second.weights(), straight.weights());
}

// On all ranks, also if only one of them has the number.
TEST(TrainingKernels, AGradientThatIsNotFiniteIsSkipped) {
  const test::TrainingKernels kernels;
  test::on_ranks(2, [&](Communicator& ranks) {
    Steps own(at::kCPU, {&ranks, 1}), want(at::kCPU, {&ranks, 1});
    own.run(1, 1, ranks.rank());
    want.run(1, 1, ranks.rank());
    own.set_gradients(2, ranks.rank());
    if (ranks.rank() == 1) own.optimizer->units().front().own_gradient[5] = std::numeric_limits<float>::quiet_NaN();
    const auto done = own.optimizer->step_clipped(1e-2, 1.0);
    ASSERT_TRUE(done.ok());
    EXPECT_FALSE(done->grad_norm.is_finite());
    EXPECT_EQ(own.optimizer->num_updates(), 1);
    own.run(3, 3, ranks.rank());
    want.run(3, 3, ranks.rank());
    expect_same_bits(own.weights(), want.weights());
  });
}

// In an update, the optimizer reads the norm of the update before, never its own. The test counts copies of CPU numbers, so it
// shows the order of the calls, and not how long a GPU works. The device skips an update by itself. The next update then has
// the numbers that it has if the host knew about the skip.
TEST(TrainingKernels, TheOptimizerReadsTheNormBeforeItsOwn) {
  const test::TrainingKernels kernels;
  Steps own(at::kCPU), asked(at::kCPU);
  std::vector<StepNorm> norms;
  const auto step = [](Steps& steps, uint64_t update) {
    steps.set_gradients(update, 0);
    if (update == 2) steps.parameters[1].tensor.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    return steps.optimizer->step_clipped(1e-2, 1.0).value().grad_norm;
  };
  for (uint64_t update = 1; update <= 4; ++update) {
    const int64_t before = HostCopy::num_waits();
    norms.push_back(step(own, update));
    EXPECT_EQ(HostCopy::num_waits() - before, update == 1 ? 0 : 1) << update;
    EXPECT_EQ(step(asked, update).is_finite(), update != 2);
    EXPECT_EQ(asked.optimizer->num_updates(), static_cast<int64_t>(update < 2 ? update : update - 1));
  }
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_EQ(norms[i].is_finite(), i != 1) << i;
  EXPECT_EQ(own.optimizer->num_updates(), 3);
  expect_same_bits(own.weights(), asked.weights());
}

// A save counts the update before it, also one whose norm nobody has asked for.
TEST(TrainingKernels, ASaveCountsTheLastUpdate) {
  const test::TrainingKernels kernels;
  Steps steps(at::kCPU);
  for (uint64_t update = 1; update <= 2; ++update) {
    steps.set_gradients(update, 0);
    ASSERT_OK(steps.optimizer->step_clipped(1e-2, 1.0));
  }
  StatefulRegistry saved, loaded;
  ASSERT_OK(saved.add(*steps.optimizer));
  Steps other(at::kCPU);
  ASSERT_OK(loaded.add(*other.optimizer));
  ASSERT_OK(loaded.load(saved.save().value(), "memory"));
  EXPECT_EQ(other.optimizer->num_updates(), 2);
}

// What a GPU does with tensors that the host cannot read: the head's passes and AdamW's steps. Each kernel starts while
// the tensors' device is the current one.
TEST(TrainingKernels, TheHostDoesNotTouchTheMemoryOfTheDevice) {
  const c10::Device device = test::locked_device();
  const HeadInputs inputs({70, 4, 300, 3.0});
  const HeadNumbers want = inputs.in_float64();
  const test::TrainingKernels kernels;
  Steps cpu(at::kCPU);
  cpu.run(1, 2);
  test::AroundKernels::open = [] {
    EXPECT_TRUE(test::locked_device_is_current());
    test::open_locked_memory();
  };
  test::AroundKernels::close = test::close_locked_memory;
  HeadInputs rounding = inputs;
  rounding.rounds = true;
  for (const bool in_one_pass : {true, false}) {
    expect_close(inputs.by_device(device, in_one_pass, 1), want, 2e-5);
    expect_close_but_for_rounding(rounding.by_device(device, in_one_pass, 1), inputs.in_float64_rounded());
  }
  Steps locked(device), from_files(device, {}, StateMemory::kLater);
  locked.run(1, 2);
  from_files.run(1, 2);
  test::AroundKernels::open = test::AroundKernels::close = nullptr;
  EXPECT_FALSE(test::locked_device_is_current());
  for (const Steps* steps : {&locked, &from_files}) {
    EXPECT_EQ(steps->norms, cpu.norms);
    expect_same_bits(steps->weights(), cpu.weights());
  }
}

// Masters in files: the kernel steps copies of them on the device, and writes the bfloat16 matrices that passes read.
TEST(TrainingKernels, MastersInFilesTakeTheStepsOfThoseInMemory) {
  const test::TrainingKernels kernels;
  const auto learnt = [&](bool in_files) {
    Model model = two_layer_model(29, "bfloat16");
    EXPECT_OK(model.move_to({.device = test::locked_device(), .by_operators = true, .text = "locked memory"}));
    Optimizer optimizer(TestPolicy::parameters(model), make_adamw({}), 0.0, "optim", {},
                        in_files ? StateMemory::kLater : StateMemory::kNow);
    const auto files = std::make_shared<Offload>(Path(MORTISE_BINARY_DIR));
    if (in_files) EXPECT_TRUE(optimizer.offload(files).ok() && model.offload_masters(files).ok());
    for (uint64_t update = 1; update <= 3; ++update) {
      for (const NamedParameter& one : model.parameters()) {
        at::Tensor gradient = random_tensor(one.tensor.sizes().vec(), 10 + update, at::kFloat);
        if (update == 2) gradient.view({-1})[0] = std::numeric_limits<float>::infinity();
        one.tensor.mutable_grad() = gradient.to(one.tensor.device());
      }
      test::AroundKernels::open = test::open_locked_memory;
      test::AroundKernels::close = test::close_locked_memory;
      EXPECT_OK(optimizer.step_clipped(0.05, 1.0, model.copies_to_step()));
      test::AroundKernels::open = test::AroundKernels::close = nullptr;
    }
    EXPECT_EQ(optimizer.num_updates(), 2);
    std::vector<at::Tensor> out;
    for (const NamedParameter& one : model.numbers()) out.push_back(on_host(one.tensor.detach()).clone());
    for (const at::Tensor& copy : copies_of_layer(model.weights(), 1)) out.push_back(on_host(copy));
    for (const at::Tensor& master : masters_of_layer(model.weights(), 1)) EXPECT_EQ(has_memory(master), !in_files);
    return out;
  };
  const int64_t before = test::TrainingKernels::steps();
  const std::vector<at::Tensor> want = learnt(false);
  EXPECT_EQ(test::TrainingKernels::steps(), before + 3);
  expect_same_bits(learnt(true), want);
  EXPECT_GT(test::TrainingKernels::steps(), before + 6) << "one launch for each parameter";
}

// ---- whole updates ----

struct Learnt {
  std::vector<double> numbers;  // loss, gradient norm and learnt tokens of each update
  std::vector<at::Tensor> weights;
};

Learnt learn(const std::string& dtype, bool on_device, const std::vector<std::string>& settings, int64_t chunk_bytes,
             const LoraChoice* adapter = nullptr) {
  const RandomRows rows(false);
  TestObjective objective(settings);
  Model model = two_layer_model(29, dtype);
  if (on_device) EXPECT_TRUE(model.move_to(kAsDevice).ok());
  if (adapter != nullptr) EXPECT_TRUE(model.train_lora(*adapter, 4).ok());
  at::set_num_threads(1);
  AdamW optimizer(TestPolicy::parameters(model), {});
  LearnerOptions options = cut_by({3, 0});
  options.head.chunk_bytes = chunk_bytes;
  ActorLearner learner(model, optimizer, objective.objective, options);
  Learnt out;
  for (int64_t step = 1; step <= 3; ++step) {
    const auto done =
        learner.update(rows.batch, all_rows(rows.batch), {.lr = 1e-3, .step = step, .update_index = step});
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    if (!done.ok()) return out;
    out.numbers.insert(out.numbers.end(), {done->sums.loss, done->grad_norm});
  }
  for (const NamedParameter& one : model.trainable()) out.weights.push_back(one.tensor.detach().clone());
  return out;
}

void expect_same_learning(const Learnt& got, const Learnt& want, double tolerance) {
  ASSERT_EQ(got.numbers.size(), want.numbers.size());
  for (size_t i = 0; i < want.numbers.size(); ++i)
    EXPECT_NEAR(got.numbers[i], want.numbers[i], tolerance * std::max(1.0, std::abs(want.numbers[i]))) << i;
}

// Losses of tokens (one pass) and of sequences (two passes), with entropy, KL and adapters.
TEST(TrainingKernels, UpdatesFollowThoseWithoutKernels) {
  const LoraChoice adapter{.rank = 3, .alpha = 6.0};
  for (const char* loss : {"vanilla", "gspo"}) {
    const std::vector<std::string> settings{std::string("actor.policy_loss.loss_mode=") + loss,
                                            "actor.use_kl_loss=true", "actor.entropy_coeff=0.01"};
    for (const LoraChoice* choice : {static_cast<const LoraChoice*>(nullptr), &adapter}) {
      SCOPED_TRACE(std::string(loss) + (choice == nullptr ? "" : " with an adapter"));
      const Learnt exact = learn("float64", false, settings, 1, choice);
      const Learnt operators = learn("float32", true, settings, 1, choice);
      const test::TrainingKernels kernels;
      const int64_t steps = test::TrainingKernels::steps(), chunks = test::TrainingKernels::head_chunks();
      const Learnt got = learn("float32", true, settings, 1, choice);
      EXPECT_EQ(test::TrainingKernels::steps(), steps + 3);
      EXPECT_GT(test::TrainingKernels::head_chunks(), chunks);
      expect_same_learning(got, exact, 1e-3);
      expect_same_learning(got, operators, 1e-3);
    }
  }
}

// The optimizer leaves a step's norms on the device until the step ends. What the updates report then is the same.
TEST(TrainingKernels, AnUpdateReportsItsStepLater) {
  const test::TrainingKernels kernels;
  const RandomRows rows(false);
  TestObjective objective({});
  Model model = two_layer_model(29, "float32"), waiting = two_layer_model(29, "float32");
  AdamW optimizer(TestPolicy::parameters(model), {}), own(TestPolicy::parameters(waiting), {});
  ASSERT_TRUE(model.move_to(kAsDevice).ok() && waiting.move_to(kAsDevice).ok());
  ActorLearner learner(model, optimizer, objective.objective, cut_by({3, 0}));
  ActorLearner other(waiting, own, objective.objective, cut_by({3, 0}));
  std::vector<UpdateReport> reports(3);
  std::vector<FiniteStep> steps(3);
  std::vector<double> norms;
  for (size_t i = 0; i < reports.size(); ++i) {
    UpdatePlace place{.lr = 1e-3, .update_index = static_cast<int64_t>(i) + 1};
    norms.push_back(other.update(rows.batch, all_rows(rows.batch), place).value().grad_norm);
    place.open_step = &steps[i];
    const int64_t before = HostCopy::num_waits();
    reports[i] = learner.update(rows.batch, all_rows(rows.batch), place).value();
    EXPECT_EQ(HostCopy::num_waits() - before, i == 0 ? 0 : 1);
    EXPECT_EQ(reports[i].grad_norm, 0.0);
  }
  for (size_t i = 0; i < reports.size(); ++i) {
    report_step(steps[i], reports[i]);
    EXPECT_EQ(reports[i].grad_norm, norms[i]);
    EXPECT_GT(reports[i].grad_norm, 0.0);
    EXPECT_FALSE(reports[i].skipped);
  }
}

// The same of a critic's updates. Its learning rate is asked for when the step before is known, and counts skipped ones out.
TEST(TrainingKernels, ACriticReportsItsStepLater) {
  const test::TrainingKernels kernels;
  RandomRows rows(false);
  const auto num_tokens = static_cast<size_t>(rows.batch.num_tokens());
  rows.batch.put<column::Values>(std::vector<float>(num_tokens, 0.1F));
  rows.batch.put<column::Returns>(std::vector<float>(num_tokens, 0.7F));
  const ModelConfig config = *as_classifier(two_layer_model(29, "float32").config(), 1);
  Model model = *Model::random(config, 5, "float32"), waiting = *Model::random(config, 5, "float32");
  ASSERT_TRUE(model.move_to(kAsDevice).ok() && waiting.move_to(kAsDevice).ok());
  AdamW optimizer(TestPolicy::parameters(model), {}), own(TestPolicy::parameters(waiting), {});
  CriticLearner learner(model, optimizer, {}), other(waiting, own, {});
  std::vector<FiniteStep> steps(3);
  std::vector<CriticReport> reports(3);
  std::vector<double> norms;
  for (size_t i = 0; i < steps.size(); ++i) {
    const CriticReport want = other.update(rows.batch, all_rows(rows.batch), 1e-3).value();
    const int64_t before = HostCopy::num_waits();
    const auto rate = [&] { return optimizer.num_updates() == static_cast<int64_t>(i) ? 1e-3 : 0.0; };
    reports[i] = learner.update(rows.batch, all_rows(rows.batch), {rate, steps[i]}).value();
    EXPECT_EQ(HostCopy::num_waits() - before, i == 0 ? 0 : 1);
    EXPECT_EQ(reports[i].lr, 1e-3);
    EXPECT_EQ(reports[i].grad_norm, 0.0);
    norms.push_back(want.grad_norm);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    report_step(steps[i], reports[i]);
    EXPECT_EQ(reports[i].grad_norm, norms[i]);
    EXPECT_GT(norms[i], 0.0);
  }
  for (size_t i = 0; i < model.parameters().size(); ++i)
    EXPECT_TRUE(model.parameters()[i].tensor.equal(waiting.parameters()[i].tensor)) << i;
}

// The step writes the copies that the next pass reads: the masters rounded to the nearest.
TEST(TrainingKernels, AStepWritesTheBfloat16Copies) {
  const std::vector<std::string> settings{"actor.use_kl_loss=true"};
  const Learnt want = learn("bfloat16", true, settings, 1);
  const test::TrainingKernels kernels;
  expect_same_learning(learn("bfloat16", true, settings, 1), want, 2e-2);
  Model model = two_layer_model(29, "bfloat16");
  AdamW optimizer(TestPolicy::parameters(model), {});
  for (const bool is_finite : {true, false}) {
    uint64_t seed = 7;
    for (const NamedParameter& one : model.parameters())
      one.tensor.mutable_grad() = random_tensor(one.tensor.sizes().vec(), seed++, at::kFloat);
    if (!is_finite) model.parameters().back().tensor.mutable_grad().fill_(std::numeric_limits<float>::infinity());
    const uint64_t version = static_cast<uint64_t>(model.parameters().front().tensor._version());
    const auto before = model.weights().rounded[1].o_HQ.clone();
    const auto done = step_if_finite(model, optimizer, 0.5, 0.1, 1.0);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->skipped(), !is_finite);
    EXPECT_EQ(optimizer.num_updates(), 1);
    EXPECT_EQ(model.weights().rounded[1].o_HQ.equal(before), !is_finite);
    if (is_finite) EXPECT_GT(static_cast<uint64_t>(model.parameters().front().tensor._version()), version);
    for (size_t layer = 0; layer < model.weights().layers.size(); ++layer) {
      const auto copies = copies_of_layer(model.weights(), layer), masters = masters_of_layer(model.weights(), layer);
      for (size_t i = 0; i < copies.size(); ++i)
        EXPECT_TRUE(copies[i].equal(masters[i].detach().to(at::kBFloat16))) << layer << " " << i;
    }
  }
}

// The gradient of a model's parameters, as far as this rank steps them.
void set_gradients(TestPolicy& policy, int rank) {
  const auto gradient_of = [&](size_t i) {
    const at::Tensor& parameter = policy.optimizer.parameters()[i].tensor;
    return random_tensor(parameter.sizes().vec(), 90 + i, at::kFloat);
  };
  for (size_t i = 0; i < policy.optimizer.parameters().size() && !policy.optimizer.is_sharded(); ++i)
    policy.optimizer.parameters()[i].tensor.mutable_grad() = gradient_of(i);
  for (ShardUnit& unit : policy.optimizer.units()) {
    std::vector<at::Tensor> flat;
    for (const size_t i : unit.parameters) flat.push_back(gradient_of(i).reshape({-1}));
    const FlatRange own = unit.shards.of(rank);
    unit.own_gradient = at::cat(flat).narrow(0, own.begin, own.size()).clone();
  }
}

// Ranks share the state (ZeRO 1), or the weights too (ZeRO 3). Weights, their copies and norms have the bits of one
// rank.
TEST(TrainingKernels, ModelsOnRanksHaveTheBitsOfOne) {
  const test::TrainingKernels kernels;
  for (const char* dtype : {"float32", "bfloat16"}) {
    const auto step = [](TestPolicy& policy, int rank) {
      set_gradients(policy, rank);
      const auto done = step_if_finite(policy.model, policy.optimizer, 0.5, 0.1, 1.0);
      EXPECT_TRUE(done.ok() && !done->skipped());
      return done.ok() ? done->grad_norm.wait() : 0.0;
    };
    TestPolicy one(dtype);
    const double norm = step(one, 0);
    for (const int64_t stage : {1, 3}) {
      SCOPED_TRACE(std::string(dtype) + ", ZeRO " + std::to_string(stage));
      test::on_ranks(2, [&](Communicator& ranks) {
        TestPolicy own(dtype, 29, 2, 5, {&ranks, stage});
        EXPECT_EQ(step(own, ranks.rank()), norm);
        const auto whole = WholeWeights::gather({&own.model});
        ASSERT_TRUE(whole.ok()) << whole.error().to_string();
        for (size_t i = 0; i < one.model.parameters().size(); ++i)
          EXPECT_TRUE(own.model.parameters()[i].tensor.equal(one.model.parameters()[i].tensor)) << i;
        for (size_t layer = 0; layer < one.model.weights().rounded.size(); ++layer) {
          const auto got = copies_of_layer(own.model.weights(), layer);
          const auto want = copies_of_layer(one.model.weights(), layer);
          for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << layer << " " << i;
        }
      });
    }
  }
}

}  // namespace
}  // namespace mortise
