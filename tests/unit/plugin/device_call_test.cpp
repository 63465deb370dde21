// Losses and estimators that take tensors of the run's device: what the engine gives them there, and what comes back.
// The packs are the built-in ones, whose CUDA builds the emulator runs; the device's memory cannot be used by the host.
#include <fstream>
#include <map>

#include "device_rows.h"
#include "mortise/kinds/policy_loss.h"
#include "plugin/host/devices.h"
#include "plugin/host/kinds/held_columns.h"
#include "support/locked_area.h"
#include "test_packs.h"

namespace mortise {
namespace {

using nlohmann::ordered_json;
using test::Computed;
using test::emulated_packs;
using test::error_of;
using test::expect_same;
using test::kl_of;
using test::LockedArea;
using test::loss_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// Faults of a device.
enum class Fault { kNone, kNoMemory, kNotSent, kNoMemoryInCall, kFailsAfterwards, kWritesBehind };

// How often the outputs of a call came back, or would have.
int num_received = 0;  // NOLINT
// Bytes that went to the device.
size_t num_sent = 0;  // NOLINT

class LockedBytes final : public MirroredBytes {
 public:
  LockedBytes(size_t size, Fault fault) : fault_(fault) {
    host_ = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
    device_ = static_cast<std::byte*>(LockedArea::instance().allocate(size));
  }
  ~LockedBytes() override {
    std::free(host_);
    LockedArea::instance().release(device_);
  }
  std::byte* host() override { return host_; }
  std::byte* device() override { return device_; }
  void* stream() override {
    static test::EmulatedStream full = [] {
      test::EmulatedStream out = *LockedArea::stream();
      out.allocate = [](size_t) -> void* { return nullptr; };
      return out;
    }();
    return fault_ == Fault::kNoMemoryInCall ? &full : const_cast<test::EmulatedStream*>(LockedArea::stream());
  }
  Result<> send(size_t size) override {
    if (fault_ == Fault::kNotSent) return Error{ErrorKind::kInternal, "no copy", "", "try again"};
    num_sent += size;
    LockedArea::instance().copy(device_, host_, size);
    return {};
  }
  Result<> receive(size_t from, size_t size) override {
    ++num_received;
    if (fault_ == Fault::kFailsAfterwards) return Error{ErrorKind::kInternal, "an illegal address", "", ""};
    LockedArea::instance().copy(host_ + from, device_ + from, size);
    if (fault_ == Fault::kWritesBehind) host_[from + size - 64] ^= std::byte{1};
    return {};
  }

 private:
  Fault fault_;
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

RunKey on(LockedDevice& device, bool check_writes = false) {
  RunKey key;
  key.device = &device;
  key.check_writes = check_writes;
  return key;
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
  EXPECT_THAT(losses,
              UnorderedElementsAre("aipo", "cispo", "cispo_sequence", "clip_cov", "decoupled", "dppo_kl", "dppo_tv",
                                   "dro", "fipo", "geo_mean", "gpg", "gspo", "gspo_token", "kl_cov", "luspo", "m2po",
                                   "real", "reinforce", "sapo", "sapo_sequence", "topr", "vanilla", "vespo"));
  EXPECT_THAT(estimators,
              UnorderedElementsAre("abs", "k1", "k2", "k3", "k3_ratio", "k3_row_ratio", "kl", "mse", "low_var_kl"));
}

// Losses of tokens, of rows, of groups, and of the update.
TEST(DeviceCallTest, LossesWithACudaBuildComputeOnTheDevice) {
  for (const char* name : {"vanilla", "cispo", "gspo", "aipo", "gpg", "topr", "vespo", "fipo", "geo_mean", "real",
                           "cispo_sequence", "sapo_sequence", "clip_cov", "kl_cov", "m2po"}) {
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
  for (const char* name : {"k1", "k2", "k3", "abs", "k3_ratio", "k3_row_ratio", "k3+"}) {
    SCOPED_TRACE(name);
    LockedDevice device;
    ASSERT_OK_AND_ASSIGN(const Computed host, kl_of(name, {}));
    ASSERT_OK_AND_ASSIGN(const Computed there, kl_of(name, on(device)));
    EXPECT_EQ(device.num_calls, 1);
    expect_same(host, there);
  }
}

// The rows of docs/cuda.md that say how many launches a call takes, by the name of the plugin.
std::map<std::string, int64_t> launches_in_the_docs() {
  std::map<std::string, int64_t> out;
  std::ifstream page(Path(MORTISE_SOURCE_DIR) / "docs/cuda.md");
  for (std::string line; std::getline(page, line);) {
    const size_t end = line.starts_with("| `") ? line.find('|', 1) : std::string::npos;
    if (end == std::string::npos) continue;
    for (const auto& [words, count] :
         {std::pair{" One launch", 1}, {" Two launches", 2}, {" Three launches", 3}, {" Four launches", 4}}) {
      if (!line.substr(end + 1).starts_with(words)) continue;
      for (size_t at = line.find('`'); at < end; at = line.find('`', line.find('`', at + 1) + 1))
        out[line.substr(at + 1, line.find('`', at + 1) - at - 1)] = count;
    }
  }
  return out;
}

TEST(DeviceCallTest, LaunchesAreThoseOfTheDocs) {
  const std::map<std::string, int64_t> docs = launches_in_the_docs();
  EXPECT_EQ(docs.at("vanilla"), 1);
  for (const Candidate& pack : emulated_packs().candidates()) {
    for (const PluginInfo& plugin : pack.info.plugins) {
      if (plugin.kind == MORTISE_KIND_POLICY_LOSS) EXPECT_TRUE(docs.contains(plugin.name)) << plugin.name;
    }
  }
  for (const auto& [name, count] : docs) {
    LockedDevice device;
    const int64_t before = LockedArea::instance().num_launches();
    const ordered_json params = name == "dro" ? ordered_json{{"dro_beta", 0.3}} : ordered_json::object();
    const bool is_loss = emulated_packs().find(MORTISE_KIND_POLICY_LOSS, name).ok();
    ASSERT_OK(is_loss ? loss_of(name, on(device), params) : kl_of(name, on(device)));
    EXPECT_EQ(device.num_calls, 1) << name;
    EXPECT_EQ(LockedArea::instance().num_launches() - before, count) << name;
  }
}

// The packs that the host compiler alone has made.
TEST(DeviceCallTest, WithoutACudaBuildTheyGetHostMemory) {
  PluginRegistry packs = test::open_registry({"apart"});
  LockedDevice device;
  const auto params = ordered_json::object();
  ASSERT_OK_AND_ASSIGN(PolicyLoss loss, PolicyLoss::create(packs, "apart", params, on(device)));
  ASSERT_OK_AND_ASSIGN(KlEstimator kl, KlEstimator::create(packs, "apart", params, on(device)));
  const test::Rows rows;
  std::vector<float> value(345), grad(345);
  ASSERT_OK(loss.compute(rows.view(), {value, grad, {}}, nullptr));
  ASSERT_OK(kl.compute(rows.view(), {value, grad}, nullptr));
  EXPECT_EQ(device.num_calls, 0);
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
  const auto loss = HasSubstr("policy_loss vanilla@mortise.policy_loss");
  LockedDevice full(Fault::kNoMemory), no_copy(Fault::kNotSent), broken(Fault::kFailsAfterwards);
  EXPECT_THAT(error_of(loss_of("vanilla", on(full))), AllOf(HasSubstr("no memory left"), loss));
  EXPECT_THAT(error_of(loss_of("vanilla", on(no_copy))), AllOf(HasSubstr("no copy"), HasSubstr("try again"), loss));
  EXPECT_THAT(error_of(loss_of("vanilla", on(broken))), AllOf(HasSubstr("an illegal address"), loss));
  EXPECT_EQ(loss_of("vanilla", on(full)).error().kind, ErrorKind::kInternal);
}

// A loss and an estimator read one copy of the columns that they share.
TEST(DeviceCallTest, HeldColumnsGoToTheDeviceOnce) {
  LockedDevice device;
  const test::Rows rows;
  const StepView view = rows.view();
  const auto params = ordered_json::object();
  ASSERT_OK_AND_ASSIGN(PolicyLoss loss, PolicyLoss::create(emulated_packs(), "vanilla", params, on(device)));
  ASSERT_OK_AND_ASSIGN(KlEstimator kl, KlEstimator::create(emulated_packs(), "k3", params, on(device)));
  Computed of_loss{std::vector<float>(345), std::vector<float>(345), {}}, of_kl = of_loss;
  const auto compute = [&](const StepView& columns) {
    num_sent = 0;
    EXPECT_OK(loss.compute(columns, {of_loss.value, of_loss.grad, {}}, nullptr));
    EXPECT_OK(kl.compute(columns, {of_kl.value, of_kl.grad}, nullptr));
    return num_sent;
  };
  EXPECT_GT(compute(view), 345U * (2 * 4 * 4 + 2)) << "both send masks, weights and log-probs";
  const Computed loss_apart = of_loss, kl_apart = of_kl;

  StepView given = view;
  given.set<column::LogProb>({});
  num_sent = 0;
  ASSERT_OK_AND_ASSIGN(const HeldColumns held, hold_columns({{&loss.instance(), &given}, {&kl.instance(), &given}}));
  EXPECT_EQ(num_sent, 5U * 22 * 64 + 6 * 64) << "five columns of numbers and the mask, padded to 64 bytes";
  EXPECT_EQ(compute(view), 2U * 22 * 64) << "log_prob alone, which is not held";
  EXPECT_EQ(of_loss.value, loss_apart.value);
  EXPECT_EQ(of_loss.grad, loss_apart.grad);
  EXPECT_EQ(of_kl.value, kl_apart.value);
  EXPECT_EQ(of_kl.grad, kl_apart.grad);
  ASSERT_OK_AND_ASSIGN(const HeldColumns rest, hold_columns({{&loss.instance(), &view}, {&kl.instance(), &view}}));
  EXPECT_EQ(compute(view), 0U);
  ASSERT_OK_AND_ASSIGN(const HeldColumns nothing, hold_columns({{&loss.instance(), &view}, {nullptr, nullptr}}));
  EXPECT_EQ(nothing, nullptr);
}

TEST(DeviceCallTest, PartsOfHeldColumnsAreFoundIfTheyAreAligned) {
  LockedDevice device;
  const std::vector<float> column(345);
  const auto part = [&](size_t begin, size_t size) { return std::as_bytes(std::span(column).subspan(begin, size)); };
  {
    const auto whole = part(0, 345);
    ASSERT_OK_AND_ASSIGN(const HeldColumns held, HeldBytes::send(device, {&whole, 1}));
    std::byte* const there = device.find_held(whole);
    ASSERT_NE(there, nullptr);
    EXPECT_EQ(device.find_held(part(64, 281)), there + 64 * 4);
    EXPECT_EQ(device.find_held(part(5, 16)), nullptr);
    const std::vector<float> other(345);
    EXPECT_EQ(device.find_held(std::as_bytes(std::span(other))), nullptr);
  }
  EXPECT_EQ(device.find_held(part(0, 345)), nullptr);
  EXPECT_EQ(LockedArea::instance().num_allocations(), 0U);
}

// What the loss started before it failed has ended before its tensors are gone.
TEST(DeviceCallTest, TheStreamIsAwaitedAfterALossThatFails) {
  LockedDevice full(Fault::kNoMemoryInCall);
  num_received = 0;
  EXPECT_THAT(error_of(loss_of("vanilla", on(full))), HasSubstr("out of memory"));
  EXPECT_EQ(num_received, 1);
  EXPECT_EQ(LockedArea::instance().num_allocations(), 0U);
}

TEST(DeviceCallTest, TheLastBitsAreTheSameInEachCall) {
  LockedDevice device;
  for (const char* name : {"vanilla", "gspo", "vespo", "fipo", "kl_cov"}) {
    ASSERT_OK_AND_ASSIGN(const Computed first, loss_of(name, on(device)));
    ASSERT_OK_AND_ASSIGN(const Computed second, loss_of(name, on(device)));
    EXPECT_EQ(first.value, second.value);
    EXPECT_EQ(first.grad, second.grad);
    EXPECT_EQ(first.metrics.value("actor/ppo_kl"), second.metrics.value("actor/ppo_kl"));
  }
}

}  // namespace
}  // namespace mortise
