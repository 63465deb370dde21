// Losses and estimators that take tensors of the run's device: what the engine gives them there, and what comes back. The
// packs are the built-in ones, whose CUDA builds the emulator runs; the device's memory cannot be used by the host.
#include <filesystem>

#include "foundation/metrics/registry.h"
#include "mortise/kinds/policy_loss.h"
#include "plugin/host/devices.h"
#include "plugin/host/kinds/kl_estimator.h"
#include "plugin/host/kinds/policy_loss.h"
#include "support/close_to.h"
#include "support/locked_area.h"
#include "test_packs.h"

namespace mortise {
namespace {

using nlohmann::ordered_json;
using test::error_of;
using test::LockedArea;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// Faults of a device.
enum class Fault { kNone, kNoMemory, kFailsAfterwards, kWritesBehind };

class LockedBytes final : public MirroredBytes {
 public:
  LockedBytes(size_t size, Fault fault) : fault_(fault), size_(size) {
    host_ = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
    device_ = static_cast<std::byte*>(LockedArea::instance().allocate(size));
  }
  ~LockedBytes() override {
    std::free(host_);
    LockedArea::instance().release(device_);
  }
  std::byte* host() override { return host_; }
  std::byte* device() override { return device_; }
  void* stream() override { return const_cast<test::EmulatedStream*>(LockedArea::stream()); }
  Result<> send() override {
    LockedArea::instance().copy(device_, host_, size_);
    return {};
  }
  Result<> receive(size_t from, size_t size) override {
    if (fault_ == Fault::kFailsAfterwards) return Error{ErrorKind::kInternal, "an illegal address", "", ""};
    LockedArea::instance().copy(host_ + from, device_ + from, size);
    if (fault_ == Fault::kWritesBehind) host_[from + size - 64] ^= std::byte{1};
    return {};
  }

 private:
  Fault fault_;
  size_t size_;
  std::byte *host_ = nullptr, *device_ = nullptr;
};

class LockedDevice final : public PluginDevice {
 public:
  explicit LockedDevice(Fault fault = Fault::kNone) : fault_(fault) {}
  int32_t type() const override { return MORTISE_CUDA; }
  int32_t index() const override { return 0; }
  Result<std::unique_ptr<MirroredBytes>> mirror(size_t size) override {
    ++num_calls;
    if (fault_ == Fault::kNoMemory) return Error{ErrorKind::kInternal, "the GPU has no memory left", "", ""};
    return std::unique_ptr<MirroredBytes>(std::make_unique<LockedBytes>(size, fault_));
  }
  int num_calls = 0;

 private:
  Fault fault_;
};

PluginRegistry& emulated_packs() {
  static PluginRegistry registry = [] {
    RegistryOptions options;
    options.use_environment = options.use_user_packs = false;
    options.builtin_dir = std::filesystem::path(MORTISE_BINARY_DIR) / "tests/emulated_packs";
    return PluginRegistry::open(options).value();
  }();
  return registry;
}

// Rows of 300, 0, 5 and 40 tokens with holes, and NaN in them.
struct Rows {
  std::vector<int64_t> offsets{0, 300, 300, 305, 345}, ids{0, 1, 2, 3}, groups{0, 0, 1, 1};
  std::vector<float> log_prob, old, advantages, weight, rollout, reference;
  std::vector<uint8_t> mask;

  Rows() {
    for (int t = 0; t < 345; ++t) {
      const auto wave = [t](double step) { return static_cast<float>(std::sin(step * (t + 1))); };
      const bool counts = t % 7 != 3;
      mask.push_back(counts ? 1 : 0);
      old.push_back(counts ? -1.5F + wave(0.7) : NAN);
      log_prob.push_back(old.back() + 0.4F * wave(1.3));
      advantages.push_back(2 * wave(2.1));
      weight.push_back(t % 11 == 0 ? 0.0F : 1.0F / 345);
      rollout.push_back(old.back() + 0.1F * wave(3.7));
      reference.push_back(old.back() + 0.3F * wave(0.3));
    }
  }
  [[nodiscard]] StepView view() const {
    StepView out;
    out.layout = {offsets, ids, groups};
    out.set<column::LogProb>(log_prob).set<column::OldLogProb>(old).set<column::Advantages>(advantages);
    out.set<column::Weight>(weight).set<column::RolloutLogProb>(rollout).set<column::RefLogProb>(reference);
    return out.set<column::ResponseMask>(mask);
  }
};

struct Computed {
  std::vector<float> value, grad;
  MetricSet metrics;
};

Result<Computed> loss_of(const std::string& name, const RunKey& key,
                         const ordered_json& params = ordered_json::object()) {
  const Rows rows;
  PolicyLoss loss = TRY(PolicyLoss::create(emulated_packs(), name, params, key));
  Computed out{std::vector<float>(345, 7), std::vector<float>(345, 7), {}};
  TRY(loss.compute(rows.view(), {out.value, out.grad, {}}, &out.metrics));
  return out;
}

Result<Computed> kl_of(const std::string& name, const RunKey& key) {
  const Rows rows;
  KlEstimator kl = TRY(KlEstimator::create(emulated_packs(), name, ordered_json::object(), key));
  Computed out{std::vector<float>(345, 7), std::vector<float>(345, 7), {}};
  TRY(kl.compute(rows.view(), {out.value, out.grad}, &out.metrics));
  return out;
}

RunKey on(LockedDevice& device, bool check_writes = false) {
  RunKey key;
  key.device = &device;
  key.check_writes = check_writes;
  return key;
}

void expect_same(const Computed& host, const Computed& device) {
  for (size_t t = 0; t < host.value.size(); ++t) {
    ASSERT_NEAR(host.value[t], device.value[t], 2e-6 * (1 + std::abs(host.value[t]))) << t;
    ASSERT_NEAR(host.grad[t], device.grad[t], 2e-6 * std::abs(host.grad[t]) + 1e-9) << t;
  }
  const auto expected = host.metrics.values(), found = device.metrics.values();
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].name, found[i].name);
    EXPECT_NEAR(expected[i].value, found[i].value, 1e-5 * (1 + std::abs(expected[i].value))) << expected[i].name;
  }
}

TEST(DeviceCallTest, NotesNameTheDevices) {
  std::vector<std::string> losses, estimators;
  for (const Candidate& candidate : emulated_packs().candidates()) {
    for (const PluginInfo& plugin : candidate.info.plugins) {
      if (plugin.devices.empty()) continue;
      EXPECT_THAT(plugin.devices, ElementsAre("cpu", "cuda")) << plugin.name;
      (plugin.kind == MORTISE_KIND_POLICY_LOSS ? losses : estimators).push_back(plugin.name);
    }
  }
  EXPECT_THAT(losses, UnorderedElementsAre("aipo", "cispo", "decoupled", "dppo_kl", "dppo_tv", "dro", "gpg", "gspo",
                                           "gspo_token", "luspo", "reinforce", "sapo", "vanilla"));
  EXPECT_THAT(estimators, UnorderedElementsAre("abs", "k1", "k2", "k3", "k3_ratio", "kl", "mse", "low_var_kl"));
}

TEST(DeviceCallTest, LossesWithACudaBuildComputeOnTheDevice) {
  for (const char* name : {"vanilla", "cispo", "gspo", "aipo", "gpg"}) {
    SCOPED_TRACE(name);
    LockedDevice device;
    ASSERT_OK_AND_ASSIGN(const Computed host, loss_of(name, {}));
    ASSERT_OK_AND_ASSIGN(const Computed there, loss_of(name, on(device)));
    EXPECT_EQ(device.num_calls, 1);
    expect_same(host, there);
  }
  EXPECT_EQ(LockedArea::instance().num_allocations(), 0U);
}

TEST(DeviceCallTest, BothGradientsOfASequence) {
  const ordered_json params = {{"gradient", "row"}};
  LockedDevice device;
  ASSERT_OK_AND_ASSIGN(const Computed host, loss_of("gspo", {}, params));
  ASSERT_OK_AND_ASSIGN(const Computed there, loss_of("gspo", on(device), params));
  expect_same(host, there);
}

TEST(DeviceCallTest, KlEstimatorsToo) {
  for (const char* name : {"k1", "k2", "k3", "abs", "k3_ratio", "k3+"}) {
    SCOPED_TRACE(name);
    LockedDevice device;
    ASSERT_OK_AND_ASSIGN(const Computed host, kl_of(name, {}));
    ASSERT_OK_AND_ASSIGN(const Computed there, kl_of(name, on(device)));
    EXPECT_EQ(device.num_calls, 1);
    expect_same(host, there);
  }
}

TEST(DeviceCallTest, WithoutACudaBuildTheyGetHostMemory) {
  LockedDevice device;
  ASSERT_OK_AND_ASSIGN(const Computed host, loss_of("clip_cov", {}));
  ASSERT_OK_AND_ASSIGN(const Computed same, loss_of("clip_cov", on(device)));
  ASSERT_OK(kl_of("k3_row_ratio", on(device)));
  EXPECT_EQ(device.num_calls, 0);
  EXPECT_EQ(host.value, same.value);
  EXPECT_EQ(host.grad, same.grad);
}

TEST(DeviceCallTest, OutputsAreBetweenGuardWords) {
  LockedDevice device, writes_behind(Fault::kWritesBehind);
  ASSERT_OK_AND_ASSIGN(const Computed plain, loss_of("vanilla", on(device)));
  ASSERT_OK_AND_ASSIGN(const Computed guarded, loss_of("vanilla", on(device, true)));
  EXPECT_EQ(plain.value, guarded.value);
  EXPECT_EQ(plain.grad, guarded.grad);
  EXPECT_THAT(error_of(loss_of("vanilla", on(writes_behind, true))),
              AllOf(HasSubstr("behind the end of output 'grad_log_prob'"), HasSubstr("vanilla@mortise.policy_loss")));
}

TEST(DeviceCallTest, FaultsOfTheDeviceAreErrors) {
  LockedDevice full(Fault::kNoMemory), broken(Fault::kFailsAfterwards);
  EXPECT_THAT(error_of(loss_of("vanilla", on(full))), HasSubstr("no memory left"));
  EXPECT_THAT(error_of(loss_of("vanilla", on(broken))),
              AllOf(HasSubstr("an illegal address"), HasSubstr("vanilla@mortise.policy_loss")));
}

TEST(DeviceCallTest, TheLastBitsAreTheSameInEachCall) {
  LockedDevice device;
  for (const char* name : {"vanilla", "gspo"}) {
    ASSERT_OK_AND_ASSIGN(const Computed first, loss_of(name, on(device)));
    ASSERT_OK_AND_ASSIGN(const Computed second, loss_of(name, on(device)));
    EXPECT_EQ(first.value, second.value);
    EXPECT_EQ(first.grad, second.grad);
    EXPECT_EQ(first.metrics.value("actor/ppo_kl"), second.metrics.value("actor/ppo_kl"));
  }
}

}  // namespace
}  // namespace mortise
