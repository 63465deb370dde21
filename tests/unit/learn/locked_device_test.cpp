// A run's model on a device whose memory the host cannot touch (support/locked_device.h): learning, sampling, saving and
// resuming never read it from the host, never mix tensors of host and device, and give the bits of CPU tensors.
#include <filesystem>

#include "generate/engine.h"
#include "learn/update/critic_learner.h"
#include "learner_fixture.h"
#include "support/locked_device.h"

namespace mortise {
namespace {

ComputeDevice locked() { return {.device = test::locked_device(), .by_operators = true, .text = "locked memory"}; }
ComputeDevice as_device() { return {.by_operators = true, .text = "the CPU, as a device"}; }

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
  [[nodiscard]] std::vector<at::Tensor> numbers() const {
    std::vector<at::Tensor> out;
    for (const NamedParameter& p : model.parameters()) out.push_back(on_host(p.tensor.detach()).clone());
    return out;
  }
};

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << "parameter " << i;
}

// Three updates; returns log-probs and entropies before them.
std::vector<float> learn(PlacedPolicy& policy, const std::vector<std::string>& settings) {
  const RandomRows rows(false);
  TestObjective objective(settings);
  LearnerOptions options = cut_by({4, 0});
  options.pass.activation_bytes = 0;  // layers are computed again
  ActorLearner learner(policy.model, policy.optimizer, objective.objective, options);
  std::vector<float> entropy;
  auto numbers = learner.log_probs(policy.model.clone_frozen(), rows.batch, nullptr, &entropy);
  EXPECT_TRUE(numbers.ok()) << numbers.error().to_string();
  for (int64_t step = 1; step <= 3; ++step) {
    const auto done =
        learner.update(rows.batch, all_rows(rows.batch), {.lr = 0.01, .step = step, .update_index = step});
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    EXPECT_GT(done->grad_norm, 0.0);
  }
  numbers->insert(numbers->end(), entropy.begin(), entropy.end());
  return *std::move(numbers);
}

TEST(LockedDevice, UpdatesHaveTheBitsOfCpuTensors) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const char* loss : {"vanilla", "gspo"}) {
      const std::vector<std::string> settings{std::string("actor.policy_loss.loss_mode=") + loss,
                                              "actor.entropy_coeff=0.01"};
      PlacedPolicy on_cpu(as_device(), dtype), on_device(locked(), dtype);
      EXPECT_FALSE(on_device.model.parameters().front().tensor.is_cpu());
      const long before = test::operators_on_locked_device();
      const std::vector<float> want = learn(on_cpu, settings), got = learn(on_device, settings);
      EXPECT_GT(test::operators_on_locked_device(), before + 1000);
      if (dtype == std::string("bfloat16")) {  // products of the CPU and of the stand-in add in other orders
        for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.02) << loss;
        continue;
      }
      EXPECT_EQ(got, want) << loss;
      expect_equal(on_device.numbers(), on_cpu.numbers());
    }
  }
}

TEST(LockedDevice, ACriticLearns) {
  const auto values = [](const ComputeDevice& device) {
    ModelConfig config = two_layer_model(29, "float32").config();
    Model model = PlacedPolicy::place(*Model::random(*as_classifier(std::move(config), 1), 3), device);
    AdamW optimizer(TestPolicy::parameters(model), {});
    CriticLearner learner(model, optimizer, {});
    RandomRows rows(false);
    rows.batch.put<column::Values>(learner.values(rows.batch).value());
    rows.batch.put<column::Returns>(std::vector<float>(rows.batch.get<column::Values>().size(), 1.0F));
    const auto done = learner.update(rows.batch, all_rows(rows.batch), 0.01);
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    return learner.values(rows.batch).value();
  };
  EXPECT_EQ(values(locked()), values(as_device()));
}

TEST(LockedDevice, SamplingDrawsTheSameTokens) {
  const auto sample = [](const ComputeDevice& device) {
    const PlacedPolicy policy(device);
    EngineOptions options;
    options.max_num_seqs = 3;
    auto engine = GenerateEngine::create(policy.model, options).value();
    std::vector<GenerateRequest> requests;
    for (int64_t id = 1; id <= 3; ++id) {
      GenerateRequest& request = requests.emplace_back();
      request.request_id = id;
      request.prompt_ids = {id, 5, 7};
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
  };
  EXPECT_EQ(sample(locked()), sample(as_device()));
}

// Files, digests and states of a checkpoint, in both directions.
TEST(LockedDevice, SavesAndLoadsThroughTheHost) {
  Env& env = default_env();
  const Path dir = Path(MORTISE_BINARY_DIR) / "scratch" / "locked_device";
  std::filesystem::remove_all(dir);
  PlacedPolicy on_cpu(as_device()), on_device(locked()), resumed(locked());
  learn(on_cpu, {});
  learn(on_device, {});
  for (const char* dtype : {"", "bfloat16"}) {
    ASSERT_TRUE(on_cpu.model.save(env, dir / "cpu", {.dtype = dtype}).ok());
    ASSERT_TRUE(on_device.model.save(env, dir / "device", {.dtype = dtype}).ok());
    EXPECT_EQ(env.read_file(dir / "cpu/model.safetensors").value(),
              env.read_file(dir / "device/model.safetensors").value());
  }

  StatefulRegistry saved, loaded;
  ASSERT_TRUE(saved.add(on_device.optimizer).ok());
  ASSERT_TRUE(loaded.add(resumed.optimizer).ok());
  StateSnapshot snapshot = saved.save().value();
  std::deque<std::string> bytes;  // what a checkpoint's file would hold
  for (TensorView& view : snapshot.tensors) {
    if (view.source == nullptr) continue;
    std::string& text =
        bytes.emplace_back(dtype_bytes(view.dtype) * static_cast<size_t>(num_elements(view.shape).value()), '\0');
    ASSERT_TRUE(view.source->read(0, std::as_writable_bytes(std::span(text))).ok());
    view.bytes = std::as_bytes(std::span(text));
  }
  EXPECT_FALSE(bytes.empty());
  const auto restored = loaded.load(snapshot, "memory");
  ASSERT_TRUE(restored.ok()) << restored.error().to_string();
  resumed.model.copy_numbers(on_device.model);
  expect_equal(resumed.numbers(), on_device.numbers());
  learn(on_device, {});
  learn(resumed, {});
  expect_equal(resumed.numbers(), on_device.numbers());
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
