// Every optimizer over 50 updates against its reference implementation: torch, transformers, bitsandbytes, and the
// paper's formula for Lion. Needs a Python with them in MORTISE_ORACLES_PYTHON; without it the test is skipped, aloud.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "foundation/formats/safetensors.h"
#include "learn/optim/rules/dynamic_map.h"
#include "optimizer_cases.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::RuleCase;

constexpr int kNumUpdates = 50;
const std::vector<std::string> kNames{"embedding", "wide", "tall", "small", "norm", "bias"};

class OptimizersOracle : public ::testing::Test {
 protected:
  // The reference runs once for all tests.
  static void SetUpTestSuite() {
    const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
    if (python == nullptr || *python == '\0') return;
    dir_ = std::make_unique<test::TempDir>();
    const Path out = *dir_ / "out.safetensors";
    const std::string command = "'" + std::string(python) + "' '" + MORTISE_SOURCE_DIR +
                                "/tests/unit/learn/optimizers_oracle.py' '" + out.string() + "' 2>/dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    auto opened = SafetensorsFile::open(default_env(), out);
    ASSERT_OK(opened);
    file_ = std::make_unique<SafetensorsFile>(std::move(opened).value());
  }
  static void TearDownTestSuite() {
    file_.reset();
    dir_.reset();
  }
  void SetUp() override {
    if (file_ == nullptr)
      GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: no reference implementation judged the optimizers";
    at::set_num_threads(1);
  }

  static at::Tensor read(const std::string& name) {
    for (const TensorView& view : file_->tensors()) {
      if (view.name != name) continue;
      const at::Tensor tensor = at::empty(view.shape, at::kFloat);
      std::memcpy(tensor.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
      return tensor;
    }
    ADD_FAILURE() << "the oracle gave no " << name;
    return at::empty({0});
  }

  static void step_all(Optimizer& optimizer, double lr) {
    for (int update = 1; update <= kNumUpdates; ++update) {
      for (const OptimizedParameter& parameter : optimizer.parameters())
        parameter.tensor.mutable_grad() = read("gradient." + std::to_string(update) + "." + parameter.name);
      ASSERT_OK(optimizer.step(lr * (1.0 - (update - 1) / (2.0 * kNumUpdates))));
    }
  }

  static void expect_near(const std::vector<OptimizedParameter>& parameters, const std::string& label,
                          double tolerance) {
    for (const OptimizedParameter& parameter : parameters) {
      const at::Tensor expected = read(label + "." + parameter.name), start = read("start." + parameter.name);
      const double moved = at::linalg_vector_norm(expected - start).item<double>();
      const double off = at::linalg_vector_norm(parameter.tensor - expected).item<double>();
      EXPECT_GT(moved, 0.0) << parameter.name;
      EXPECT_LT(off / moved, tolerance) << label << " " << parameter.name;
    }
  }

  static std::unique_ptr<test::TempDir> dir_;
  static std::unique_ptr<SafetensorsFile> file_;
};

std::unique_ptr<test::TempDir> OptimizersOracle::dir_;
std::unique_ptr<SafetensorsFile> OptimizersOracle::file_;

TEST_F(OptimizersOracle, FiftyUpdatesAreTheirs) {
  for (const RuleCase& one : test::rule_cases()) {
    std::vector<OptimizedParameter> parameters;
    for (const std::string& name : kNames)
      parameters.push_back({name, read("start." + name), test::decays(one, name), test::role_named(name)});
    Optimizer optimizer(parameters, one.rule(), one.weight_decay);
    step_all(optimizer, one.lr);
    expect_near(parameters, one.name, one.tolerance);
  }
}

// The parameter groups of torch: own learning rates and weight decays, and a parameter that is left out.
TEST_F(OptimizersOracle, GroupsAreThoseOfTorch) {
  std::vector<OptimizedParameter> parameters;
  for (const std::string& name : kNames) {
    if (name == "tall") continue;  // frozen
    OptimizedParameter& one = parameters.emplace_back(OptimizedParameter{name, read("start." + name)});
    one.decay = name != "norm" && name != "bias";
    if (name == "embedding") one.lr_scale = 0.1, one.weight_decay = 0.0;
    if (name == "wide" || name == "small") one.lr_scale = 0.5, one.weight_decay = 0.3;
  }
  Optimizer optimizer(parameters, make_adamw({0.9, 0.99, 1e-6}), 0.1);
  step_all(optimizer, 1e-2);
  expect_near(parameters, "groups", 2e-6);
}

TEST_F(OptimizersOracle, TheMapsOf8BitsAreThoseOfBitsandbytes) {
  for (const bool is_signed : {true, false}) {
    const at::Tensor expected = read(is_signed ? "map.signed" : "map.unsigned");
    const DynamicMap& map = is_signed ? signed_map() : unsigned_map();
    ASSERT_EQ(expected.numel(), 256);
    for (size_t i = 0; i < 256; ++i) {
      const float value = expected.const_data_ptr<float>()[i];
      EXPECT_FLOAT_EQ(map.values[i], value) << i;
      EXPECT_EQ(map.nearest(value), i);
    }
  }
}

}  // namespace
}  // namespace mortise
