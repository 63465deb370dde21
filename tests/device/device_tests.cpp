// device_tests [DEVICE] [GoogleTest options]: what a device run computes, against the CPU's kernels in float64. DEVICE
// is that of model.device; default: cuda. If the machine has none, it says why and ends with code 13
// (docs/exit_codes.md).
//
// The shapes reach the fused attention operators (head size 16, no window) and the plain path (windows, caps, sinks).
// The other files of this folder hold the rest of the list.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>

#include "device/device_models.h"
#include "device/recorded_operators.h"
#include "dist/nccl/carry_device.h"
#include "learn/optim/rules.h"
#include "learn/update/actor_learner.h"
#include "learn/update/finite_step.h"
#include "model/device/kernel_table.h"
#include "model/head/divergence.h"
#include "model/weights/rounded_matrices.h"
#include "support/collectives.h"
#include "support/rank_group.h"
#include "support/temp_dir.h"
#include "unit/learn/learner_fixture.h"
#include "unit/model/head_pair.h"

namespace mortise {

ComputeDevice device_under_test;  // NOLINT: main() opens it before the first test

namespace {

std::vector<at::Tensor> host_gradients(Model& model) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& gradient : gradients_of(model.parameters()))
    out.push_back(gradient.defined() ? on_host(gradient).to(at::kDouble) : gradient);
  model.zero_grad();
  return out;
}

Loss loss_of(Model& model, const std::vector<PackRow>& rows) {
  const PackedBatch batch = *pack_rows(rows, {.vocab_size = 23});
  const at::Tensor hidden = model.forward_hidden(batch);
  const at::Tensor selected = hidden.index_select(0, batch.predict_index_R.to(hidden.device()));
  const LogProbs out = head_log_prob(selected.detach().contiguous(), model.head(), batch.targets_R, 0.9, true);
  const at::Tensor probe = random_tensor({64}, 77).narrow(0, 0, batch.num_targets()).contiguous();
  const at::Tensor d_selected = at::empty_like(selected);
  head_backward(selected.detach().contiguous(), model.head(), batch.targets_R, 0.9, probe, probe * 0.1, d_selected,
                model.head_grad());
  selected.backward(d_selected);
  return {(out.log_prob_R.to(at::kDouble) * probe).sum().item<double>(), out.log_prob_R.to(at::kDouble)};
}

class DeviceFamilies : public testing::TestWithParam<Family> {};

TEST_P(DeviceFamilies, LogProbsAndGradientsEqualTheCpus) {
  const Fixture rows = make_setup(Family::kQwen2, false);
  Model cpu = model_of(GetParam(), "float64", false);
  const Loss want = loss_of(cpu, rows.rows());
  const auto want_gradients = host_gradients(cpu);
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 1e-4}, std::pair{"bfloat16", 0.08}}) {
    Model model = model_of(GetParam(), dtype, true);
    const Loss got = loss_of(model, rows.rows());
    EXPECT_LE(max_difference(got.log_prob, want.log_prob), tolerance) << dtype;
    const auto gradients = host_gradients(model);
    for (size_t i = 0; i < gradients.size(); ++i)
      EXPECT_LT(relative_l2(gradients[i], want_gradients[i]), tolerance) << dtype << model.parameters()[i].name;
  }
}

TEST_P(DeviceFamilies, TwoPassesHaveTheSameBits) {
  const Fixture rows = make_setup(Family::kQwen2, false);
  for (const char* dtype : {"float32", "bfloat16"}) {
    Model model = model_of(GetParam(), dtype, true);
    const Loss first = loss_of(model, rows.rows());
    const auto want = host_gradients(model);
    EXPECT_TRUE(loss_of(model, rows.rows()).log_prob.equal(first.log_prob)) << dtype;
    const auto got = host_gradients(model);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(got[i].equal(want[i])) << dtype << " " << model.parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFamilies,
                         testing::Values(Family::kQwen2, Family::kQwen3, Family::kMistral, Family::kGemma2,
                                         Family::kGemma3, Family::kPhi3, Family::kQwen3Moe, Family::kGptOss));

// A pass of one token, which two of three experts of each layer get: the third one has a gradient of zeros.
TEST(DeviceExperts, WithoutTokensHaveGradientsOfZeros) {
  const std::vector<int64_t> prompt{3}, response{5};
  const std::vector<PackRow> rows{{prompt, response, -1}};
  for (const char* dtype : {"float32", "bfloat16"}) {
    Model model = model_of(Family::kMixtral, dtype, true);
    loss_of(model, rows);
    const auto gradients = host_gradients(model);
    int num_zeros = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const double most = gradients[i].abs().max().item<double>();
      EXPECT_TRUE(std::isfinite(most)) << dtype << model.parameters()[i].name;
      if (model.parameters()[i].name.find(".experts.") != std::string::npos && most == 0.0) ++num_zeros;
    }
    EXPECT_EQ(num_zeros, 2 * 3) << dtype << ": three matrices of one expert in each of two layers";
  }
}

// Loss and gradient norm of updates of the weights or of an adapter.
std::vector<double> learn(bool on_device, const std::vector<std::string>& settings, const LoraChoice* adapter,
                          int64_t num_updates = 4) {
  const RandomRows rows(false);
  ModelConfig config = two_layer_model(29, "float32").config();
  if (adapter != nullptr && !adapter->target_parameters.empty())
    config.moe = {.num_experts = 3, .experts_per_token = 2, .expert_size = 12, .is_dense = {false, false}};
  Model model = *Model::random(config, 5);
  const Result<> moved = model.move_to(on_device ? device_under_test : ComputeDevice());
  EXPECT_TRUE(moved.ok()) << (moved.ok() ? "" : moved.error().to_string());
  if (adapter != nullptr) {
    EXPECT_TRUE(model.train_lora(*adapter, 4).ok());
  }
  std::vector<OptimizedParameter> trained;
  for (const NamedParameter& p : model.trainable()) trained.push_back({p.name, p.tensor, true});
  AdamW optimizer(trained, {});
  TestObjective objective(settings);
  ActorLearner learner(model, optimizer, objective.objective, cut_by({4, 0}));
  std::vector<double> numbers;
  for (int64_t step = 1; step <= num_updates; ++step) {
    const auto done =
        learner.update(rows.batch, all_rows(rows.batch), {.lr = 1e-3, .step = step, .update_index = step});
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    numbers.insert(numbers.end(), {done->sums.loss, done->grad_norm});
  }
  return numbers;
}

void expect_same_learning(const std::vector<std::string>& settings, const LoraChoice* adapter) {
  const std::vector<double> want = learn(false, settings, adapter), got = learn(true, settings, adapter);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 2e-3 * std::max(1.0, std::abs(want[i]))) << settings.front() << " " << i;
}

TEST(DeviceLearning, UpdatesFollowTheCpus) {
  for (const char* loss : {"vanilla", "gspo"}) {
    expect_same_learning({std::string("actor.policy_loss.loss_mode=") + loss, "actor.entropy_coeff=0.01"}, nullptr);
  }
}

// With dropout, with magnitudes, and of experts and routers.
std::vector<LoraChoice> adapters() {
  LoraChoice plain{.rank = 4, .alpha = 8.0, .dropout = 0.2}, dora = plain;
  dora.use_dora = true;
  LoraChoice experts{.rank = 4, .alpha = 8.0};
  experts.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"};
  return {plain, dora, experts};
}

TEST(DeviceLearning, AdaptersFollowTheCpus) {
  for (const LoraChoice& choice : adapters()) expect_same_learning({"actor.use_kl_loss=true"}, &choice);
}

struct Rule {
  const char* name;
  std::function<std::unique_ptr<const UpdateRule>()> make;
  double tolerance = 1e-5;
};

// A moment within rounding of the middle of two codes of 8 bits may take the other one. Muon's iteration is in bfloat16.
std::vector<Rule> optimizer_rules() {
  return {{"AdamW", [] { return make_adamw({}); }},
          {"Lion", [] { return make_lion({}); }},
          {"SGD",
           [] {
             return make_sgd({0.9, 0.1, false});
           }},
          {"Adafactor", [] { return make_adafactor({}); }},
          {"8-bit AdamW", [] { return make_adamw_8bit({.min_size = 16, .embeddings_too = true}); }, 1e-3},
          {"Muon", [] { return make_muon({}); }, 0.02}};
}

// A matrix after three steps.
at::Tensor stepped(const Rule& rule, const at::Device& device) {
  std::vector<OptimizedParameter> parameters = {{"model.layers.0.mlp.up_proj.weight",
                                                 random_tensor({40, 24}, 1, at::kFloat).to(device).requires_grad_(true),
                                                 true}};
  at::Tensor& tensor = parameters.front().tensor;
  Optimizer optimizer(parameters, rule.make(), 0.1, "optim");
  for (uint64_t step = 1; step <= 3; ++step) {
    tensor.mutable_grad() = random_tensor({40, 24}, 10 + step, at::kFloat).to(device);
    EXPECT_TRUE(optimizer.step(0.05, 0.5).ok());
  }
  return on_host(tensor.detach());
}

TEST(DeviceLearning, OptimizersTakeTheStepsOfTheCpu) {
  for (const Rule& rule : optimizer_rules())
    EXPECT_LT(relative_l2(stepped(rule, device_under_test.device), stepped(rule, at::kCPU)), rule.tolerance)
        << rule.name;
}

// By the kernels of core/cuda, if their library is there: the norm and the clipping stay on the device.
TEST(DeviceLearning, ClippedStepsAreThoseOfTheCpu) {
  struct Stepped {
    std::vector<at::Tensor> weights;
    std::vector<double> norms;
  };
  const auto steps = [](const at::Device& device) {
    std::vector<OptimizedParameter> parameters;
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{40, 24}, {20011}, {5}}) {
      const at::Tensor start = random_tensor(shape, parameters.size(), at::kFloat).to(device).requires_grad_(true);
      parameters.push_back({"p" + std::to_string(parameters.size()), start, shape.size() > 1});
    }
    parameters[1].lr_scale = 0.5;
    AdamW optimizer(parameters, {});
    Stepped out;
    for (uint64_t step = 1; step <= 3; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i)
        parameters[i].tensor.mutable_grad() =
            random_tensor(parameters[i].tensor.sizes().vec(), 10 * step + i, at::kFloat).to(device);
      if (step == 2) parameters[2].tensor.mutable_grad().fill_(std::numeric_limits<float>::quiet_NaN());
      const auto done = optimizer.step_clipped(0.05, 1.0);
      EXPECT_TRUE(done.ok());
      if (step != 2) out.norms.push_back(done->grad_norm.wait());
      EXPECT_EQ(done->grad_norm.is_finite(), step != 2);
    }
    EXPECT_EQ(optimizer.num_updates(), 2);
    for (const OptimizedParameter& one : parameters) out.weights.push_back(on_host(one.tensor.detach()));
    return out;
  };
  const Stepped want = steps(at::kCPU), got = steps(device_under_test.device), again = steps(device_under_test.device);
  for (size_t i = 0; i < want.weights.size(); ++i) {
    EXPECT_LT(relative_l2(got.weights[i], want.weights[i]), 1e-5) << i;
    EXPECT_TRUE(again.weights[i].equal(got.weights[i])) << i;
  }
  for (size_t i = 0; i < want.norms.size(); ++i) EXPECT_NEAR(got.norms[i], want.norms[i], 1e-4 * want.norms[i]) << i;
  EXPECT_EQ(again.norms, got.norms);
}

// A step leaves the matrices that passes read as the nearest to their masters.
TEST(DeviceLearning, Bfloat16MatricesFollowTheirMasters) {
  Model model = model_of(Family::kQwen2, "bfloat16", true);
  std::vector<OptimizedParameter> trained;
  for (const NamedParameter& one : model.trainable()) {
    one.tensor.mutable_grad() =
        random_tensor(one.tensor.sizes().vec(), trained.size(), at::kFloat).to(one.tensor.device());
    trained.push_back({one.name, one.tensor, true});
  }
  AdamW optimizer(trained, {});
  const at::Tensor before = model.weights().rounded[0].o_HQ.clone();
  const auto done = step_if_finite(model, optimizer, 0.5, 0.1, 1.0);
  ASSERT_TRUE(done.ok() && !done->skipped());
  EXPECT_FALSE(model.weights().rounded[0].o_HQ.equal(before));
  for (size_t layer = 0; layer < model.weights().layers.size(); ++layer) {
    const auto copies = copies_of_layer(model.weights(), layer), masters = masters_of_layer(model.weights(), layer);
    for (size_t i = 0; i < copies.size(); ++i)
      EXPECT_TRUE(copies[i].equal(masters[i].detach().to(at::kBFloat16))) << layer << " " << i;
  }
}

// Masters and the optimizer's state in files: they go to the device and back through pinned memory.
TEST(DeviceLearning, NumbersInFilesTakeTheSameSteps) {
  const auto learnt = [](bool in_files) {
    Model model = model_of(Family::kQwen2, "bfloat16", true);
    Optimizer optimizer(TestPolicy::parameters(model), make_adamw({}), 0.0, "optim", {},
                        in_files ? StateMemory::kLater : StateMemory::kNow);
    const auto files = std::make_shared<Offload>(Path(MORTISE_BINARY_DIR));
    if (in_files) EXPECT_TRUE(optimizer.offload(files).ok() && model.offload_masters(files).ok());
    std::vector<at::Tensor> out;
    for (uint64_t update = 1; update <= 3; ++update) {
      for (const NamedParameter& one : model.trainable())
        one.tensor.mutable_grad() =
            random_tensor(one.tensor.sizes().vec(), 10 + update, at::kFloat).to(one.tensor.device());
      EXPECT_TRUE(step_if_finite(model, optimizer, 0.5, 0.05, 1.0).ok());
    }
    for (const NamedParameter& one : model.numbers()) out.push_back(on_host(one.tensor.detach()).clone());
    for (const at::Tensor& copy : copies_of_layer(model.weights(), 0)) out.push_back(on_host(copy));
    return out;
  };
  const std::vector<at::Tensor> want = learnt(false), got = learnt(true);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
}

// What is built for a GPU is used there. A build without the kernels says so in the summary of the tests.
TEST(DeviceLearning, TheKernelsOfAGpuAreFound) {
  const bool is_gpu = device_under_test.device.is_cuda();
  if (is_gpu && !why_no_gpu_kernels().empty())
    GTEST_SKIP() << "nothing was tested with kernels: " << why_no_gpu_kernels();
  EXPECT_EQ(device_kernels(device_under_test.device) != nullptr, is_gpu);
}

// The random bits are exact on any device.
TEST(DeviceLearning, StochasticRoundingHasTheBitsOfTheCpu) {
  const at::Tensor numbers = random_tensor({70, 130}, 5, at::kFloat);
  const PhiloxKey key = derive_philox_key(3, RandomPurpose::kRounding, 7);
  DecoderWeights weights;
  weights.layers.resize(1);
  weights.layers[0].o_weight_HQ = numbers;
  allocate_rounded(weights);
  round_stochastically(weights, 0, key);
  const at::Tensor got =
      at::empty_like(weights.rounded[0].o_HQ, weights.rounded[0].o_HQ.options().device(device_under_test.device));
  round_by_operators(numbers.to(device_under_test.device), got, {0, 0, 1, 0}, key);
  EXPECT_TRUE(on_host(got).view(at::kShort).equal(weights.rounded[0].o_HQ.view(at::kShort)));
}

TEST(DeviceLearning, DivergencesEqualTheCpus) {
  for (const double beta : {0.0, 0.3, 1.0}) {
    HeadPair pair = make_head_pair(70, 32, 3000, 0.0, at::kFloat, 0.3);
    const auto compute = [&](const HeadPair& heads) {
      const at::Tensor d_hidden = at::empty_like(heads.policy.hidden_RH),
                       d_weight = at::zeros_like(heads.policy.head.weight_VH);
      const std::vector<double> values =
          head_divergence(heads.policy, heads.other, beta, 1.0, heads.weight, d_hidden, d_weight);
      const at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
      std::ranges::copy(values, all.mutable_data_ptr<double>());
      return std::vector<at::Tensor>{all, on_host(d_hidden), on_host(d_weight)};
    };
    const auto want = compute(pair);
    for (HeadSide* const side : {&pair.policy, &pair.other}) {
      side->hidden_RH = side->hidden_RH.to(device_under_test.device);
      side->head.weight_VH = side->head.weight_VH.to(device_under_test.device);
      side->head.by_operators = true;
    }
    const auto got = compute(pair);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(relative_l2(got[i], want[i]), 1e-4) << beta << " " << i;
  }
}

// What learning and sampling start, by the operators of a device.
void use_operators() {
  const Fixture rows = make_setup(Family::kQwen2, false);
  for (const Family family : {Family::kQwen2, Family::kQwen3, Family::kMistral, Family::kGemma2, Family::kGemma3,
                              Family::kPhi3, Family::kQwen3Moe, Family::kGptOss}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      Model model = model_of(family, dtype, true);
      const PackedBatch batch = *pack_rows(rows.rows(), {.vocab_size = 23});
      const at::Tensor hidden = model.forward_hidden(batch);
      hidden.backward(at::ones_like(hidden));
      auto engine = GenerateEngine::create(model, {}).value();
      GenerateRequest request{.request_id = 1, .prompt_ids = {1, 5, 7}};
      request.sampling.max_new_tokens = 2;
      EXPECT_TRUE(sample_all(*engine, {request}).ok());
    }
  }
  for (const char* loss : {"vanilla", "gspo"})
    learn(true, {std::string("actor.policy_loss.loss_mode=") + loss, "actor.entropy_coeff=0.01"}, nullptr, 1);
  for (const LoraChoice& choice : adapters()) learn(true, {"actor.use_kl_loss=true"}, &choice, 1);
  for (const Rule& rule : optimizer_rules()) stepped(rule, device_under_test.device);
}

// Each of them has a form for CUDA: tests/unit/model/cuda_half_test.cpp looks it up in libtorch's CUDA half.
TEST(DeviceOperators, AreThoseOfTheList) {
  if (device_under_test.device.is_cuda()) GTEST_SKIP() << "the list is of CPU tensors";
  std::string got;
  {
    const test::RecordedOperators recorded;
    use_operators();
    for (const std::string& name : test::RecordedOperators::names()) got += name + "\n";
  }
  const Path path = Path(MORTISE_SOURCE_DIR) / "tests/device/operators.txt";
  if (std::getenv("MORTISE_WRITE_DOCS") != nullptr) ASSERT_OK(write_file(default_env(), path, got));
  ASSERT_OK_AND_ASSIGN(const std::string want, default_env().read_file(path));
  EXPECT_EQ(got, want) << "MORTISE_WRITE_DOCS=1 writes the list";
  // libtorch documents these as without a deterministic form on CUDA, whatever their overload. A deterministic run would
  // only warn of them.
  for (const char* name : {"cumsum", "cumsum_", "put_", "kthvalue", "histc", "bincount", "scatter_reduce",
                           "scatter_reduce_", "median", "nanmedian", "grid_sampler_2d", "grid_sampler_2d_backward",
                           "ctc_loss", "_embedding_bag", "upsample_linear1d", "upsample_bilinear2d"}) {
    const std::string whole = "aten::" + std::string(name);
    EXPECT_THAT("\n" + got, testing::Not(testing::ContainsRegex("\n" + whole + "[.\n]"))) << name;
  }
}

// NCCL on a GPU, Gloo on the CPU: the same promises. NCCL wants a GPU for each rank, so a machine with one GPU has groups of
// one rank.
void on_ranks_of_devices(const std::function<void(Communicator&, const at::Device&)>& body) {
  const bool is_gpu = device_under_test.device.is_cuda();
  const int most = is_gpu ? std::min<int>(2, at::detail::getCUDAHooks().deviceCount()) : 2;
  for (int size = 1; size <= most; ++size) {
    test::in_real_group(size, [&](Communicator& ranks) {
      at::Device device = device_under_test.device;
      if (is_gpu && size > 1) device.set_index(static_cast<c10::DeviceIndex>(ranks.rank()));
      const Result<> carried = carry_device(ranks, device);
      ASSERT_TRUE(carried.ok()) << carried.error().to_string();
      body(ranks, device);
    });
  }
}

TEST(DeviceRanks, AddNumbers) {
  on_ranks_of_devices([](Communicator& ranks, const at::Device& device) {
    test::expect_sums_in_every_type_and_size(ranks, device);
    test::expect_buckets_in_any_order_of_waiting(ranks, device);
    test::expect_the_same_bits_on_every_rank(ranks, device);
    test::expect_each_rank_gets_its_part_of_a_sum(ranks, device);
  });
}

TEST(DeviceRanks, MoveNumbers) {
  on_ranks_of_devices([](Communicator& ranks, const at::Device& device) {
    test::expect_gather_and_broadcast_move_every_type(ranks, device);
    test::expect_all_to_all_moves_parts_of_any_size(ranks, device);
    test::expect_numbers_around_a_ring(ranks, device);
  });
}

// Sequence parallel exchanges heads in groups of ranks, which connect their devices for it.
TEST(DeviceRanks, GroupsMoveNumbers) {
  on_ranks_of_devices([](Communicator& ranks, const at::Device& device) {
    for (const Result<Communicator*>& group : {ranks.neighbours(ranks.size()), ranks.strided(1)}) {
      ASSERT_TRUE(group.ok()) << group.error().to_string();
      test::expect_sums_in_every_type_and_size(**group, device);
      test::expect_all_to_all_moves_parts_of_any_size(**group, device);
    }
  });
}

}  // namespace
}  // namespace mortise

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string name = argc > 1 ? argv[1] : "cuda";
  const auto parsed = mortise::parse_device_name(name);
  if (!parsed || parsed->kind == mortise::DeviceKind::kAuto || parsed->kind == mortise::DeviceKind::kCpu) {
    std::fprintf(stderr, "usage: device_tests [cuda | cuda:N | cpu-as-device]\n");
    return 2;
  }
  auto opened = mortise::open_device(*parsed, /*needs_bfloat16=*/true);
  if (!opened.ok()) {
    std::fprintf(stderr, "no device to test: %s\n", opened.error().to_string().c_str());
    return mortise::kExitNoDevice;
  }
  std::printf("testing on %s\n", opened->text.c_str());
  mortise::device_under_test = *std::move(opened);
  return RUN_ALL_TESTS();
}
