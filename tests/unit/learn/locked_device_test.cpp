// A model on a device whose memory the host cannot touch (support/locked_device.h): sampling never reads it from the host,
// never mixes tensors of host and device, and draws the tokens of CPU tensors.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <map>

#include "generate/engine.h"
#include "learn/optim/rules.h"
#include "learn/optim/weight_shards.h"
#include "learn/update/critic_learner.h"
#include "learn/update/finite_step.h"
#include "learn/update/owned_gradient.h"
#include "learn/update/packed_forward.h"
#include "learner_fixture.h"
#include "model/layers/lora_dropout.h"
#include "model/tensor/storage_memory.h"
#include "support/as_device.h"
#include "support/locked_device.h"
#include "support/temp_dir.h"
#include "support/this_build.h"
#include "support/thread_ranks.h"
#include "train/loop/reference_refresh.h"
#include "unit/model/gradient_fixture.h"

namespace mortise {
namespace {

ComputeDevice locked() { return {.device = test::locked_device(), .by_operators = true, .text = "locked memory"}; }

// A policy whose optimizer is made where the model already lies.
struct PlacedPolicy {
  Model model;
  AdamW optimizer;
  explicit PlacedPolicy(const ComputeDevice& device, const std::string& dtype = "float32")
      : model(place(two_layer_model(29, dtype), device)), optimizer(TestPolicy::parameters(model), {}) {
    at::set_num_threads(1);
  }
  static Model place(Model model, const ComputeDevice& device) {
    const auto moved = model.move_to(device);
    EXPECT_TRUE(moved.ok()) << moved.error().to_string();
    return model;
  }
};

// A new adapter whose numbers are not those of its start, as after some updates.
void start_adapter_by_copies(Model& model, const LoraChoice& choice) {
  const auto started = model.train_lora(choice, 5);
  ASSERT_TRUE(started.ok()) << started.error().to_string();
  const at::NoGradGuard no_grad;
  uint64_t seed = 300;
  for (const NamedParameter& p : model.trainable()) {
    const at::Tensor more = random_tensor(p.tensor.sizes().vec(), seed++, p.tensor.scalar_type(), 0.3);
    p.tensor.detach().copy_(on_host(p.tensor.detach()) + more);
  }
  model.weights_changed();
}

// The tokens of three requests with two samples each.
std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> sample(const Model& model) {
  EngineOptions options;
  options.max_num_seqs = 3;
  options.max_batch_tokens = 4;  // the last prompt enters in two passes
  auto engine = GenerateEngine::create(model, options).value();
  std::vector<GenerateRequest> requests;
  for (int64_t id = 1; id <= 3; ++id) {
    GenerateRequest& request = requests.emplace_back();
    request.request_id = id;
    request.prompt_ids = {id, 5, 7};
    if (id == 3) request.prompt_ids.insert(request.prompt_ids.end(), {2, 4, 6});
    request.num_samples = 2;
    request.sampling.max_new_tokens = 4 + id;
  }
  EXPECT_TRUE(engine->submit(requests).ok());
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> ids;
  const auto left = engine->poll(
      [&](const GeneratedSequence& one) {
        ids[{one.request_id, one.sample_index}] = one.ids;
        return true;
      },
      std::chrono::nanoseconds(-1));
  EXPECT_TRUE(left.ok()) << left.error().to_string();
  EXPECT_EQ(ids.size(), 6U);
  return ids;
}

// Dense layers, and mixtures of experts: of both forms, one with sinks and windows.
TEST(LockedDevice, SamplingDrawsTheSameTokens) {
  for (const Family family : {Family::kQwen2, Family::kQwen3Moe, Family::kGptOss}) {
    const auto tokens = [&](const ComputeDevice& device) {
      return sample(PlacedPolicy::place(*Model::random(small_config(family, false), 5), device));
    };
    EXPECT_EQ(tokens(locked()), tokens(kAsDevice));
  }
}

// A pass through experts waits once in each layer, however many experts there are.
TEST(LockedDevice, APassWaitsOnceInALayerForItsExperts) {
  ModelConfig config = small_config(Family::kQwen3Moe, false);
  config.moe.num_experts = 6;
  const Model model = PlacedPolicy::place(*Model::random(config, 5), locked());
  const std::vector<int64_t> prompt = {1, 5, 7, 9}, response = {2, 4};
  const PackRow row{prompt, response, -1};
  PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = config.vocab_size});
  const auto there = [](at::Tensor& tensor) { tensor = tensor.to(test::locked_device()); };
  there(batch.token_ids_N);
  there(batch.positions_N);
  const c10::InferenceMode inference;
  const c10::OptionalDeviceGuard guard(test::locked_device());
  const long before = test::waits_for_locked_device();
  const at::Tensor hidden = model.forward_hidden(batch);
  EXPECT_EQ(hidden.size(0), 5);  // the last token predicts nothing
  EXPECT_EQ(test::waits_for_locked_device() - before, config.num_expert_layers());
}

// Adapters begin, are merged, sample and give log-probs there: with every start, with magnitudes, with a head of their own,
// and those of experts and routers. Saved, they have the bytes of CPU tensors.
TEST(LockedDevice, AdaptersHaveTheNumbersOfCpuTensors) {
  Env& env = default_env();
  const Path dir = Path(MORTISE_BINARY_DIR) / "scratch" / "locked_adapter";
  std::filesystem::remove_all(dir);
  LoraChoice plain{.rank = 2, .alpha = 8.0}, dora = plain, pissa = plain, whole = plain;
  dora.use_dora = true;
  pissa.init = LoraInit::kPissa;
  whole.modules_to_save = {"lm_head"};
  LoraChoice experts = plain, stacks = plain;
  experts.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"};
  stacks.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.router.weight"};
  for (const auto& [family, choice] :
       {std::pair{Family::kQwen2, plain}, std::pair{Family::kQwen2, dora}, std::pair{Family::kQwen2, pissa},
        std::pair{Family::kQwen2, whole}, std::pair{Family::kMixtral, experts}, std::pair{Family::kGptOss, stacks}}) {
    const auto adapted = [&, family = family, &choice = choice](const ComputeDevice& device) {
      Model model = PlacedPolicy::place(*Model::random(small_config(family, false), 5), device);
      start_adapter_by_copies(model, choice);
      return model;
    };
    const Model on_device = adapted(locked()), on_cpu = adapted(kAsDevice);
    EXPECT_FALSE(on_device.trainable().front().tensor.is_cpu());
    EXPECT_EQ(sample(on_device), sample(on_cpu));
    for (const auto& [model, name] : {std::pair{&on_device, "device"}, std::pair{&on_cpu, "cpu"}}) {
      const auto saved = model->save(env, dir / name, {.lora = LoraSave::kApart, .base_model = "base"});
      ASSERT_TRUE(saved.ok()) << saved.error().to_string();
    }
    EXPECT_EQ(env.read_file(dir / "device/adapter_model.safetensors").value(),
              env.read_file(dir / "cpu/adapter_model.safetensors").value());
  }
}

// A pass of an update drops the same features there. Products of views add in another order than on the CPU.
TEST(LockedDevice, DropoutDropsTheFeaturesOfCpuTensors) {
  const std::vector<int64_t> prompt{3, 9, 4}, response{7, 1, 12, 20};
  const PackRow row{prompt, response, -1};
  const PackedBatch batch = *pack_rows({&row, 1}, {.vocab_size = 23});
  const auto hidden = [&](const ComputeDevice& device, double dropout) {
    Model model = PlacedPolicy::place(*Model::random(small_config(Family::kQwen2, false), 5), device);
    start_adapter_by_copies(model, {.rank = 2, .alpha = 8.0});
    const at::NoGradGuard no_grad;
    ForwardOptions options;
    if (dropout > 0.0)
      options.lora_dropout =
          LoraDropout{dropout, 17, 3, batch.owners_N.to(device.device), batch.positions_N.to(device.device)};
    return on_host(model.forward_hidden(batch, options));
  };
  EXPECT_LT(max_difference(hidden(locked(), 0.4), hidden(kAsDevice, 0.4)), 1e-5);
  const at::Tensor x = random_tensor({batch.num_tokens(), 203}, 8, at::kFloat);
  const auto dropped = [&](const c10::Device& device) {
    return on_host(
        lora_dropped(x.to(device), {0.4, 17, 3, batch.owners_N.to(device), batch.positions_N.to(device)}, 2));
  };
  EXPECT_TRUE(dropped(test::locked_device()).equal(dropped(at::kCPU)));
  EXPECT_GT(max_difference(hidden(kAsDevice, 0.4), hidden(kAsDevice, 0.0)), 1e-3);
}

// A critic on the policy's base, with a new head.
TEST(LockedDevice, ACriticOnThePolicysBaseGivesItsValues) {
  const auto values = [](const ComputeDevice& device) {
    Model policy = PlacedPolicy::place(*Model::random(small_config(Family::kQwen2, false), 5), device);
    start_adapter_by_copies(policy, {.rank = 2, .alpha = 8.0});
    Model critic = policy.base_as_classifier(*as_classifier(policy.config(), 1), 7);
    EXPECT_TRUE(critic.move_to(device).ok());
    start_adapter_by_copies(critic, {.rank = 2, .alpha = 8.0, .modules_to_save = {"score"}});
    std::vector<OptimizedParameter> trained;
    for (const NamedParameter& p : critic.trainable()) trained.push_back({p.name, p.tensor, true});
    AdamW optimizer(trained, {});
    const CriticLearner learner(critic, optimizer, {});
    const RandomRows rows(false, {.vocab = 23});
    const auto out = learner.values(rows.batch);
    EXPECT_TRUE(out.ok()) << out.error().to_string();
    return out.ok() ? *out : std::vector<float>();
  };
  const std::vector<float> want = values(kAsDevice), got = values(locked());
  EXPECT_FALSE(want.empty());
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5F) << i;
}

// Optimizers whose rules are operators there.
TEST(LockedDevice, OptimizersTakeTheStepsOfTheCpu) {
  const auto steps = [](std::unique_ptr<const UpdateRule> rule, const c10::Device& device, bool in_files = false) {
    std::vector<OptimizedParameter> parameters;
    for (const auto& [name, shape] : {std::pair{"model.layers.0.mlp.up_proj.weight", std::vector<int64_t>{6, 4}},
                                      {"model.norm.weight", std::vector<int64_t>{5}}}) {
      parameters.push_back({name, random_tensor(shape, 1, at::kFloat).to(device).requires_grad_(true), true});
    }
    Optimizer optimizer(parameters, std::move(rule), 0.1, "optim", {},
                        in_files ? StateMemory::kLater : StateMemory::kNow);
    if (in_files) EXPECT_OK(optimizer.offload(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
    for (uint64_t step = 1; step <= 3; ++step) {
      for (OptimizedParameter& one : parameters)
        one.tensor.mutable_grad() = random_tensor(one.tensor.sizes().vec(), 10 + step, at::kFloat).to(device);
      EXPECT_TRUE(optimizer.step(0.05, 0.5).ok());
    }
    std::vector<at::Tensor> out;
    for (const OptimizedParameter& one : parameters) out.push_back(on_host(one.tensor.detach()));
    return out;
  };
  SgdOptions sgd;
  sgd.momentum = 0.9;
  sgd.dampening = 0.1;
  SgdOptions nesterov;
  nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  const std::vector<std::function<std::unique_ptr<const UpdateRule>()>> rules = {
      [] { return make_adamw({}); },      [] { return make_lion({}); },
      [&] { return make_sgd(sgd); },      [] { return make_sgd({}); },
      [&] { return make_sgd(nesterov); }, [] { return make_adafactor({}); },
      [] { return make_muon({}); },       [] {
        return make_adamw_8bit({.min_size = 16, .embeddings_too = true}); }};
  for (size_t i = 0; i < rules.size(); ++i) {
    const auto want = steps(rules[i](), at::kCPU), got = steps(rules[i](), test::locked_device());
    for (size_t p = 0; p < want.size(); ++p) {
      EXPECT_LT((got[p] - want[p]).abs().max().item<float>(), 1e-6F) << "rule " << i << ", parameter " << p;
      EXPECT_GT((want[p] - random_tensor(want[p].sizes().vec(), 1, at::kFloat)).abs().max().item<float>(), 1e-3F);
    }
    const auto from_files = steps(rules[i](), test::locked_device(), /*in_files=*/true);
    for (size_t p = 0; p < want.size(); ++p) EXPECT_TRUE(from_files[p].equal(got[p])) << "rule " << i << " from files";
  }
}

// Ranks that share the optimizer exchange weights and gradients there.
TEST(LockedDevice, RanksOfZeroTakeTheStepsOfOne) {
  const std::vector<int64_t> sizes{Shards::kBlock + 11, 37, Shards::kBlock + 3};
  const auto steps = [&](Communicator& ranks, const c10::Device& device) {
    std::vector<OptimizedParameter> parameters;
    for (size_t i = 0; i < sizes.size(); ++i)
      parameters.push_back({"p" + std::to_string(i), random_tensor({sizes[i]}, 50 + i, at::kFloat).to(device), i != 1});
    AdamW optimizer(parameters, {}, "actor.optim", {&ranks, 1});
    for (uint64_t update = 1; update <= 3; ++update) {
      std::vector<at::Tensor> gradients;
      for (size_t i = 0; i < sizes.size(); ++i)
        gradients.push_back(random_tensor({sizes[i]}, 100 * update + i, at::kFloat).to(device));
      if (optimizer.is_sharded()) {
        ShardUnit& unit = optimizer.units().front();
        unit.own_gradient = at::empty({unit.shards.of(ranks.rank()).size()}, gradients[0].options());
        std::vector<RankGradient> terms;  // rank 0 has the gradient, and the others add nothing
        for (int rank = 0; rank < ranks.size(); ++rank) {
          terms.push_back({rank, gradients});
          for (at::Tensor& one : terms.back().tensors) {
            if (rank > 0) one = at::zeros_like(one);
          }
        }
        const AddTerms add = [](const std::vector<at::Tensor>& list, const at::Tensor& own) {
          own.zero_();
          for (const at::Tensor& one : list) own.add_(one);
        };
        EXPECT_TRUE(reduce_to_owned(ranks, unit.shards, terms, add, unit.own_gradient).ok());
      } else {
        for (size_t i = 0; i < sizes.size(); ++i) parameters[i].tensor.mutable_grad() = gradients[i];
      }
      EXPECT_TRUE(optimizer.step(1e-2, clip_factor(optimizer.grad_norm().value(), 1.0)).ok());
    }
    std::vector<at::Tensor> out;
    for (const OptimizedParameter& one : parameters) out.push_back(on_host(one.tensor.detach()));
    return out;
  };
  const std::vector<at::Tensor> want = steps(alone(), at::kCPU);
  test::on_ranks(2, [&](Communicator& ranks) {
    const std::vector<at::Tensor> got = steps(ranks, test::locked_device());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(max_difference(got[i], want[i]), 1e-6) << i;
  });
}

// Spread weights are gathered there, and ranks that share tokens exchange heads there.
TEST(LockedDevice, RanksThatShareWeightsOrTokensGiveTheValuesOfOne) {
  const RandomRows rows(false, {.vocab = 23});
  const auto values = [&](const ComputeDevice& device, Communicator& ranks, int stage, int sequence_size) {
    const ModelConfig config = *as_classifier(small_config(Family::kQwen2, false), 1);
    Model critic = PlacedPolicy::place(*Model::random(config, 5), device);
    if (stage == 3) WeightShards::spread(critic, ranks, ShardCut::kBlocks);
    AdamW optimizer(TestPolicy::parameters(critic), {});
    CriticOptions options;
    options.learner.ranks.communicator = &ranks;
    if (sequence_size > 1) options.learner.share_tokens(std::make_shared<SequenceGroup>(ranks, sequence_size));
    const CriticLearner learner(critic, optimizer, options);
    const auto out = learner.values(rows.batch);
    EXPECT_TRUE(out.ok()) << out.error().to_string();
    return out.ok() ? *out : std::vector<float>();
  };
  const std::vector<float> want = values(kAsDevice, alone(), 0, 1);
  ASSERT_FALSE(want.empty());
  for (const auto& [stage, sequence_size] : std::vector<std::pair<int, int>>{{3, 1}, {0, 2}, {3, 2}}) {
    SCOPED_TRACE("ZeRO " + std::to_string(stage) + ", sp " + std::to_string(sequence_size));
    test::on_ranks(2, [&, stage = stage, sequence_size = sequence_size](Communicator& ranks) {
      const std::vector<float> got = values(locked(), ranks, stage, sequence_size);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5F) << i;
    });
  }
}

// A frozen model whose matrices lie in files of the host: a pass has one part of them there. Its numbers can be read.
TEST(LockedDevice, AModelInFilesGivesTheSameValues) {
  const RandomRows rows(false, {.vocab = 23});
  const auto numbers_of = [](const Model& model) {
    std::vector<at::Tensor> out;
    for (const NamedParameter& one : model.numbers()) out.push_back(on_host(one.tensor.detach()).clone());
    return out;
  };
  const ModelConfig config = *as_classifier(small_config(Family::kQwen2, false), 1);
  Model critic = PlacedPolicy::place(*Model::random(config, 5), locked());
  AdamW optimizer({}, {});
  const CriticLearner learner(critic, optimizer, {});
  const std::vector<float> want = learner.values(rows.batch).value();
  Model rounded = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
  rounded.drop_masters();
  for (Model* const model : {&critic, &rounded}) {
    const std::vector<at::Tensor> numbers = numbers_of(*model);
    ASSERT_OK(model->offload_weights(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
    EXPECT_FALSE(model->is_whole());
    for (const at::Tensor& matrix : {model->weights().embedding_VH, model->weights().head_VH,
                                     model->weights().matrices(0).qkv_QH, model->weights().matrices(1).down_HI})
      EXPECT_FALSE(has_memory(matrix));
    const std::vector<at::Tensor> after = numbers_of(*model);
    for (size_t i = 0; i < numbers.size(); ++i) EXPECT_TRUE(after[i].equal(numbers[i])) << i;
  }
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(learner.values(rows.batch).value(), want);
    EXPECT_FALSE(has_memory(critic.weights().head_VH));
  }
}

// The same of this rank's part of the layers.
TEST(LockedDevice, SplitLayersInFilesGiveTheSameHiddenStates) {
  const RandomRows rows(false);
  for (const char* const dtype : {"float32", "bfloat16"}) {
    test::on_ranks(2, [&](Communicator& ranks) {
      const c10::NoGradGuard no_grad;
      Model model = PlacedPolicy::place(two_layer_model(29, dtype), locked());
      model.split_layers(std::make_shared<TensorGroup>(ranks, 2));
      if (model.has_rounded_matrices()) model.drop_masters();
      const auto hidden = [&] {
        const PackedForward forward = forward_rows(model, rows.batch, all_rows(rows.batch), {}).value();
        return on_host(forward.hidden_RH);
      };
      const at::Tensor want = hidden();
      EXPECT_OK(model.offload_weights(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
      EXPECT_FALSE(has_memory(model.model_part()->weights().matrices(1).down_HI)) << dtype;
      for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(hidden().equal(want)) << dtype;
      EXPECT_FALSE(has_memory(model.model_part()->weights().matrices(0).qkv_QH)) << dtype;
    });
  }
}

std::vector<at::Tensor> host_copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& one : tensors) out.push_back(on_host(one.detach()).clone());
  return out;
}

// The numbers of a model, and what passes read of its layers if that is rounded.
std::vector<at::Tensor> all_numbers(const Model& model) {
  std::vector<at::Tensor> out;
  for (const NamedParameter& one : model.numbers()) out.push_back(one.tensor);
  for (size_t layer = 0; layer < model.weights().rounded.size(); ++layer) {
    for (const at::Tensor& copy : copies_of_layer(model.weights(), layer)) {
      if (has_memory(copy)) out.push_back(copy);
    }
  }
  return host_copies(out);
}

void expect_same_numbers(const Model& got, const Model& want) {
  const std::vector<at::Tensor> numbers = all_numbers(got), expected = all_numbers(want);
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_TRUE(numbers[i].equal(expected[i])) << i;
}

// Masters of a bfloat16 model that lie in files with their optimizer's state: a step has one of them on the device, and the
// copies follow. A skipped update changes nothing.
TEST(LockedDevice, MastersInFilesTakeTheSameSteps) {
  for (const bool is_adamw : {true, false}) {
    SCOPED_TRACE(is_adamw ? "adamw" : "adafactor");
    const auto rule = [&] { return is_adamw ? make_adamw({}) : make_adafactor({}); };
    Model model = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
    Model in_files = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
    Optimizer optimizer(TestPolicy::parameters(model), rule(), 0.0);
    Optimizer from_files(TestPolicy::parameters(in_files), rule(), 0.0, "actor.optim", {}, StateMemory::kLater);
    const auto files = std::make_shared<Offload>(Path(MORTISE_BINARY_DIR));
    ASSERT_OK(from_files.offload(files));
    ASSERT_OK(in_files.offload_masters(files));
    const auto step = [](Model& of, Optimizer& by, uint64_t update) {
      for (const NamedParameter& one : of.parameters()) {
        at::Tensor gradient = random_tensor(one.tensor.sizes().vec(), 10 + update, at::kFloat);
        if (update == 2) gradient.view({-1})[0] = std::numeric_limits<float>::infinity();
        one.tensor.mutable_grad() = gradient.to(one.tensor.device());
      }
      EXPECT_OK(step_if_finite(of, by, 0.5, 0.05, 1.0));
    };
    const std::vector<at::Tensor> before = all_numbers(model);
    for (uint64_t update = 1; update <= 3; ++update) {
      const auto version = in_files.parameters().back().tensor._version();
      step(model, optimizer, update);
      step(in_files, from_files, update);
      expect_same_numbers(in_files, model);
      if (update != 2) EXPECT_GT(in_files.parameters().back().tensor._version(), version);
      for (const at::Tensor& master : masters_of_layer(in_files.weights(), 1)) EXPECT_FALSE(has_memory(master));
    }
    EXPECT_FALSE(all_numbers(model)[1].equal(before[1]));
  }
}

// Masters that are in the host's memory between the steps leave the device, and take the same steps. A reference that moves
// reads them there.
TEST(LockedDevice, MastersThatRestTakeTheSameSteps) {
  Model model = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
  Model rests = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
  Model moved = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
  Model expected = PlacedPolicy::place(two_layer_model(29, "bfloat16"), locked());
  Optimizer optimizer(TestPolicy::parameters(model), make_adafactor({}), 0.0);
  Optimizer of_resting(TestPolicy::parameters(rests), make_adafactor({}), 0.0);
  size_t of_masters = 0;
  for (size_t layer = 0; layer < 2; ++layer) {
    for (const at::Tensor& master : masters_of_layer(rests.weights(), layer)) of_masters += master.nbytes();
  }
  const size_t before = test::bytes_on_locked_device();
  ASSERT_OK(rests.rest_masters_on_host());
  EXPECT_LE(test::bytes_on_locked_device() + of_masters, before);
  const auto step = [](Model& of, Optimizer& by, uint64_t update) {
    for (const NamedParameter& one : of.parameters())
      one.tensor.mutable_grad() = random_tensor(one.tensor.sizes().vec(), 10 + update, at::kFloat).to(locked().device);
    EXPECT_OK(step_if_finite(of, by, 0.5, 0.05, 1.0));
    of.zero_grad();
  };
  for (uint64_t step_of_run = 1; step_of_run <= 2; ++step_of_run) {
    rests.fetch_masters();
    for (const at::Tensor& master : masters_of_layer(rests.weights(), 1)) EXPECT_TRUE(has_memory(master));
    for (uint64_t update = 1; update <= 2; ++update) {
      step(model, optimizer, 2 * step_of_run + update);
      step(rests, of_resting, 2 * step_of_run + update);
      expect_same_numbers(rests, model);  // a save inside a step
    }
    rests.rest_masters();
    for (const at::Tensor& master : masters_of_layer(rests.weights(), 1)) EXPECT_FALSE(has_memory(master));
    expect_same_numbers(rests, model);
    refresh_reference(model, expected, 0.5);
    refresh_reference(rests, moved, 0.5);
    expect_same_numbers(moved, expected);
  }
}

// A reference in files that moves towards the policy, whose masters lie in files too.
TEST(LockedDevice, AReferenceInFilesMovesAsOneInMemory) {
  for (const char* const dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const auto other = [&] {
      Model model = PlacedPolicy::place(two_layer_model(29, dtype), locked());
      const at::NoGradGuard no_grad;
      for (const NamedParameter& one : model.parameters()) one.tensor.detach().mul_(1.25);
      model.weights_changed();
      return model;
    };
    Model policy = other();
    const Model moved = other();
    Model in_files = PlacedPolicy::place(two_layer_model(29, dtype), locked());
    Model in_memory = PlacedPolicy::place(two_layer_model(29, dtype), locked());
    ASSERT_OK(in_files.offload_weights(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
    for (const double alpha : {0.6, 1.0}) {
      refresh_reference(policy, in_memory, alpha);
      refresh_reference(policy, in_files, alpha);
      EXPECT_FALSE(has_memory(in_files.weights().matrices(1).down_HI));
      in_files.gate()->open(2, GatePass::kForward);
      EXPECT_TRUE(on_host(in_files.weights().matrices(1).down_HI.detach())
                      .equal(on_host(in_memory.weights().matrices(1).down_HI.detach())));
      in_files.gate()->close(2, GatePass::kForward);
      const std::vector<NamedParameter> got = in_files.numbers(), want = in_memory.numbers();
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(on_host(got[i].tensor.detach()).equal(on_host(want[i].tensor.detach()))) << i;
      ASSERT_OK(policy.offload_masters(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
    }
    EXPECT_TRUE(on_host(in_files.numbers()[3].tensor.detach()).equal(on_host(moved.numbers()[3].tensor.detach())));
  }
}

// A tied head is the embedding: it has memory while either is open.
TEST(LockedDevice, ATiedHeadInFilesIsTheEmbedding) {
  Model model = PlacedPolicy::place(*Model::random(small_config(Family::kQwen2, true), 5), locked());
  const at::Tensor numbers = on_host(model.weights().head_VH.detach()).clone();
  ASSERT_OK(model.offload_weights(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
  WeightGate& gate = *model.gate();
  const auto has_both = [&] { return has_memory(model.weights().embedding_VH) && has_memory(model.weights().head_VH); };
  EXPECT_FALSE(has_both());
  gate.open(0, GatePass::kForward);
  EXPECT_TRUE(has_both());
  gate.close(0, GatePass::kForward);
  EXPECT_FALSE(has_both());
  gate.open(model.config().num_layers + 1, GatePass::kForward);
  EXPECT_TRUE(on_host(model.weights().head_VH.detach()).equal(numbers));
  gate.finish_forward();
  EXPECT_FALSE(has_both());
}

TEST(LockedDevice, TheHostCannotReadItsMemory) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const PlacedPolicy policy(locked());
        const auto* const data =
            static_cast<const volatile float*>(policy.model.parameters().front().tensor.const_data_ptr());
        static_cast<void>(*data);
      },
      "");
}

}  // namespace
}  // namespace mortise
