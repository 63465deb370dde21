// Learning on a device whose memory the host cannot touch (support/locked_device.h): passes forward and backward, updates,
// ranks and saved optimizers never read it from the host, never mix tensors of host and device, and give the numbers of
// CPU tensors. By libtorch's operators, and by the kernels of core/cuda, which the emulator runs.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <deque>

#include "foundation/base/stateful.h"
#include "foundation/formats/safetensors.h"
#include "layer_variants.h"
#include "learn/update/critic_learner.h"
#include "learn/update/sft_learner.h"
#include "support/as_device.h"
#include "support/locked_device.h"
#include "support/started_kernels.h"
#include "unit/model/torch_helpers.h"

namespace mortise {
namespace {

const ComputeDevice& locked() {
  static const ComputeDevice device{.device = test::locked_device(), .by_operators = true, .text = "locked memory"};
  return device;
}

// The kernels of training, for which the memory is opened.
struct KernelsOnLockedMemory : test::TrainingKernels {
  KernelsOnLockedMemory() {
    test::AroundKernels::open = [] {
      EXPECT_TRUE(test::locked_device_is_current());
      test::open_locked_memory();
    };
    test::AroundKernels::close = test::close_locked_memory;
    test::DevicePointers::is_of_device = test::is_on_locked_device;
  }
  ~KernelsOnLockedMemory() {
    test::AroundKernels::open = test::AroundKernels::close = nullptr;
    test::DevicePointers::is_of_device = nullptr;
  }
};

std::vector<Variant> variants_of_a_device() {
  std::vector<Variant> out = variants();
  std::erase_if(out, [](const Variant& one) { return one.name == "a teacher"; });  // its weights are on the CPU
  for (Variant& one : variants_with_references()) out.push_back(std::move(one));
  return out;
}

void expect_same_update(const Update& got, const Update& want, double tolerance) {
  expect_same_reports(got.report, want.report, tolerance);
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (size_t i = 0; i < got.weights.size(); ++i)
    EXPECT_LE(max_difference(on_host(got.weights[i]), on_host(want.weights[i])), tolerance) << i;
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (size_t i = 0; i < got.gradients.size(); ++i) {
    const at::Tensor expected = on_host(want.gradients[i]);
    EXPECT_LE(max_difference(on_host(got.gradients[i]), expected),
              tolerance * (1.0 + expected.abs().max().item<double>()))
        << i;
  }
}

// Every kind of layer and adapter, router losses, and references. Operators read contiguous copies there, and products add
// in another order. A short run takes every seventh one, MORTISE_LONG=1 all.
TEST(LockedUpdates, LearnWhatCpuTensorsLearn) {
  const std::vector<Variant> all = variants_of_a_device();
  for (size_t i = 0; i < all.size(); i += test::is_long() ? 1 : 7) {
    const Variant& variant = all[i];
    SCOPED_TRACE(variant.name);
    const long before = test::operators_on_locked_device();
    const Update got = update_of(variant, alone(), {.device = &locked()});
    EXPECT_GT(test::operators_on_locked_device(), before + 500);
    expect_same_update(got, update_of(variant, alone(), {.device = &kAsDevice}), 1e-8);
  }
}

// By the kernels, in float32 and bfloat16: the device of the tensors is the current one whenever a kernel starts.
TEST(LockedUpdates, LearnByKernelsWhatCpuTensorsLearn) {
  const std::vector<Variant> all = variants_of_a_device();
  for (size_t i = 0; i < all.size(); i += test::is_long() ? 1 : 9) {
    const std::string dtype = i % 2 == 0 ? "float32" : "bfloat16";
    SCOPED_TRACE(all[i].name + ", " + dtype);
    Update want;
    {
      const test::TrainingKernels kernels;
      want = update_of(all[i], alone(), {.device = &kAsDevice}, 1, dtype);
    }
    const KernelsOnLockedMemory kernels;
    const int64_t steps = test::TrainingKernels::steps();
    expect_same_update(update_of(all[i], alone(), {.device = &locked()}, 1, dtype), want, 1e-4);
    EXPECT_GT(test::TrainingKernels::steps(), steps);
  }
}

// What tells it if a kernel gets an address of the host: as an argument, in a struct, and in the table of a step.
TEST(LockedUpdatesDeathTest, AKernelThatGetsAnAddressOfTheHostEndsTheTest) {
  const KernelsOnLockedMemory kernels;
  const at::Tensor there = at::zeros({4}, at::TensorOptions(at::kFloat).device(locked().device));
  float here = 0;
  float* const device = there.mutable_data_ptr<float>();
  const auto look = [](const auto&... arguments) {
    test::open_locked_memory();
    test::DevicePointers::look(arguments...);
    test::close_locked_memory();
  };
  look(device, MortiseCudaIn{device, 0}, static_cast<float*>(nullptr));
  const char* const said = "a kernel gets an address of the host";
  EXPECT_DEATH(look(device, &here), said);
  EXPECT_DEATH(look(MortiseCudaHeadRows{device, device, &here, 0}), said);
  const MortiseCudaStepTensor row{device, device, device, &here, nullptr, 4, 0, 0, 0.0F, 0.0F};
  const at::Tensor table =
      at::from_blob(const_cast<MortiseCudaStepTensor*>(&row), {static_cast<int64_t>(sizeof(row))}, at::kByte)
          .to(locked().device);
  EXPECT_DEATH(look(static_cast<const MortiseCudaStepTensor*>(table.const_data_ptr()), int64_t{1}), said);
}

// A policy of a family there, with its optimizer.
struct PlacedPolicy {
  Model model;
  Optimizer optimizer;

  PlacedPolicy(const ModelConfig& config, const ComputeDevice& device, const std::string& dtype = "float64",
               StateMemory memory = StateMemory::kNow)
      : model(place(Model::random(config, 5, dtype).value(), device)),
        optimizer(TestPolicy::parameters(model), make_adamw({}), AdamWOptions().weight_decay, "actor.optim", {},
                  memory) {
    at::set_num_threads(1);
  }
  static Model place(Model model, const ComputeDevice& device) {
    EXPECT_OK(model.move_to(device));
    return model;
  }
  [[nodiscard]] std::vector<at::Tensor> numbers() const {
    std::vector<at::Tensor> out;
    for (const NamedParameter& one : model.parameters()) out.push_back(on_host(one.tensor.detach()).clone());
    return out;
  }
  // Two updates; the second one reads what the first one has changed.
  void learn(const StepTable& table) {
    TestObjective objective({"actor.loss_agg_mode=token-mean"});
    ActorLearner learner(model, optimizer, objective.objective, cut_by({4, 0}));
    for (int64_t update = 1; update <= 2; ++update) {
      const auto done = learner.update(table, all_rows(table), {.lr = 1e-3, .update_index = update});
      ASSERT_OK(done);
      EXPECT_GT(done->grad_norm, 0.0);
    }
  }
};

void expect_same_numbers(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(max_difference(got[i], want[i]), tolerance) << i;
}

TEST(LockedUpdates, CriticsAndSupervisedUpdatesLearnThereToo) {
  const auto critic = [](const ComputeDevice& device) {
    PlacedPolicy placed(*as_classifier(small_config(kShape.vocab, 2), 1), device);
    RandomRows rows(false, kShape);
    CriticLearner learner(placed.model, placed.optimizer, {});
    rows.batch.put<column::Values>(learner.values(rows.batch).value());
    rows.batch.put<column::Returns>(std::vector<float>(rows.batch.get<column::Values>().size(), 1.0F));
    for (int i = 0; i < 2; ++i) EXPECT_OK(learner.update(rows.batch, all_rows(rows.batch), 1e-3));
    return placed.numbers();
  };
  expect_same_numbers(critic(locked()), critic(kAsDevice), 1e-8);
  const auto supervised = [](const ComputeDevice& device) {
    PlacedPolicy placed(small_config(kShape.vocab, 2), device);
    const RandomRows rows(false, kShape);
    for (int i = 0; i < 2; ++i)
      EXPECT_OK(sft_update(placed.model, placed.optimizer, rows.batch, cut_by(kCut), {1e-3, i + 1}));
    return placed.numbers();
  };
  expect_same_numbers(supervised(locked()), supervised(kAsDevice), 1e-8);
}

// The experts of the pass that measures log-probs are taken again in updates (R2).
TEST(LockedUpdates, RecordedExpertsAreTakenAgain) {
  for (const ModelConfig& config : {moe_config(), stacked_moe_config()}) {
    const auto learnt = [&](const ComputeDevice& device, ExpertChoices& recorded) {
      PlacedPolicy placed(config, device);
      RandomRows rows(false);
      TestObjective objective({"actor.loss_agg_mode=token-mean"});
      const ActorLearner learner(placed.model, placed.optimizer, objective.objective, cut_by({4, 0}));
      EXPECT_OK(learner.log_probs(placed.model, rows.batch, nullptr, nullptr, &recorded));
      rows.batch.replay(recorded);
      placed.learn(rows.batch);
      return placed.numbers();
    };
    ExpertChoices there, here;
    expect_same_numbers(learnt(locked(), there), learnt(kAsDevice, here), 1e-8);
    EXPECT_FALSE(there.empty());
    EXPECT_EQ(there.experts, here.experts);
  }
}

// A checkpoint is read from the device through the host, and loaded back. The resumed run has the same bits.
void copy_state(Optimizer& from, Optimizer& to) {
  StatefulRegistry saved, loaded;
  ASSERT_OK(saved.add(from));
  ASSERT_OK(loaded.add(to));
  StateSnapshot snapshot = saved.save().value();
  std::deque<std::string> files;
  for (TensorView& view : snapshot.tensors) {
    if (view.source == nullptr) continue;
    std::string& bytes =
        files.emplace_back(dtype_bytes(view.dtype) * static_cast<size_t>(num_elements(view.shape).value()), '\0');
    ASSERT_OK(view.source->read(0, std::as_writable_bytes(std::span(bytes))));
    view.bytes = std::as_bytes(std::span(bytes));
  }
  EXPECT_FALSE(snapshot.tensors.empty());
  ASSERT_OK(loaded.load(snapshot, "memory"));
}

TEST(LockedUpdates, AResumeHasTheSameBits) {
  const RandomRows rows(false);
  for (const char* dtype : {"float32", "bfloat16"}) {
    PlacedPolicy straight(small_config(29, 2), locked(), dtype), resumed(small_config(29, 2), locked(), dtype);
    straight.learn(rows.batch);
    copy_state(straight.optimizer, resumed.optimizer);
    resumed.model.copy_numbers(straight.model);
    for (PlacedPolicy* policy : {&straight, &resumed}) policy->learn(rows.batch);
    expect_same_numbers(resumed.numbers(), straight.numbers(), 0.0);
  }
}

// A state that rests on the host between the updates of two steps: its memory on the device is free, and the bits are those
// of a state that stays. A state that was saved does not change in later updates, and a resume continues from it.
TEST(LockedUpdates, AStateThatRestsOnTheHostLeavesTheDevice) {
  const RandomRows rows(false);
  const KernelsOnLockedMemory kernels;
  for (const char* dtype : {"float64", "float32"}) {  // by operators, and by the kernels
    SCOPED_TRACE(dtype);
    const ModelConfig config = small_config(29, 2);
    const size_t none = test::bytes_on_locked_device();
    PlacedPolicy stays(config, locked(), dtype);
    const size_t before = test::bytes_on_locked_device();
    PlacedPolicy rests(config, locked(), dtype, StateMemory::kHost);
    const size_t of_model = test::bytes_on_locked_device() - before;
    const auto state = static_cast<size_t>(state_bytes(*make_adamw({}), rests.optimizer.parameters()));
    EXPECT_GE(before - none, of_model + state) << "the state is not there yet";
    for (PlacedPolicy* policy : {&stays, &rests}) policy->learn(rows.batch);
    const size_t learnt = test::bytes_on_locked_device();
    ASSERT_OK(rests.optimizer.rest());
    const size_t rested = test::bytes_on_locked_device();
    EXPECT_GE(learnt, rested + state);
    ASSERT_OK(rests.optimizer.rest());
    StatefulRegistry saved;
    ASSERT_OK(saved.add(rests.optimizer));
    const StateSnapshot snapshot = saved.save().value();
    const auto digest = [&] {
      std::string bytes;
      for (const TensorView& view : snapshot.tensors)
        bytes.append(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
      return bytes;
    };
    const std::string kept = digest();
    EXPECT_EQ(kept.size(), state);
    PlacedPolicy resumed(config, locked(), dtype, StateMemory::kHost);
    copy_state(rests.optimizer, resumed.optimizer);
    resumed.model.copy_numbers(rests.model);
    for (PlacedPolicy* policy : {&stays, &rests, &resumed}) policy->learn(rows.batch);
    EXPECT_EQ(digest(), kept);
    expect_same_numbers(rests.numbers(), stays.numbers(), 0.0);
    expect_same_numbers(resumed.numbers(), stays.numbers(), 0.0);
    ASSERT_OK(rests.optimizer.rest());
    EXPECT_NE(digest(), kept);
  }
}

// Ranks that share the optimizer, gradients or weights (ZeRO 1 to 3), tokens, or layers. A short run takes one variant for
// each layout, MORTISE_LONG=1 all.
TEST(LockedUpdates, RanksLearnWhatOneRankOfTheCpuLearns) {
  const std::vector<Mesh> meshes{{.num_ranks = 2, .zero_stage = 0, .device = &locked()},
                                 {.num_ranks = 2, .zero_stage = 1, .device = &locked()},
                                 {.num_ranks = 2, .zero_stage = 2, .device = &locked()},
                                 {.num_ranks = 2, .zero_stage = 3, .device = &locked()},
                                 {.num_ranks = 2, .sequence_size = 2, .device = &locked()},
                                 {.num_ranks = 2, .sequence_size = 2, .zero_stage = 3, .device = &locked()},
                                 {.num_ranks = 2, .tensor_size = 2, .device = &locked()},
                                 {.num_ranks = 4, .zero_stage = 3, .tensor_size = 2, .device = &locked()}};
  const std::vector<Variant> all = variants_of_a_device();
  size_t num_runs = 0;
  for (size_t m = 0; m < meshes.size(); ++m) {
    const size_t only = (11 * m + 1) % all.size();  // dropout with split layers is among them
    for (size_t i = 0; i < all.size(); ++i) {
      if (!test::is_long() && i != only) continue;
      expect_numbers_of_one_rank(all[i], meshes[m]);
      ++num_runs;
    }
  }
  EXPECT_EQ(num_runs, test::is_long() ? meshes.size() * all.size() : meshes.size());
}

}  // namespace
}  // namespace mortise
