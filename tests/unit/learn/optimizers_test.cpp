// What holds for every optimizer: the same bits after a resume, on any number of ranks, with any number of threads, and
// for a gradient that was clipped; and the size of its state.
#include "learn/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <span>

#include "drawn_once.h"
#include "foundation/formats/safetensors.h"
#include "optimizer_cases.h"
#include "support/joined_state.h"
#include "support/temp_dir.h"
#include "support/thread_ranks.h"

namespace mortise {
namespace {

using test::on_ranks;
using test::RuleCase;

at::Tensor random_of(const std::vector<int64_t>& shape, uint64_t seed, at::ScalarType type) {
  return test::drawn_once(shape, seed, type, [&] {
    uint64_t random = 88172645463325252ULL ^ (seed << 20);  // xorshift: these are millions of numbers
    const at::Tensor tensor = at::empty(shape, at::kDouble);
    for (double& value : std::span(tensor.mutable_data_ptr<double>(), static_cast<size_t>(tensor.numel()))) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      value = 0.2 * (static_cast<double>(random >> 11) * 0x1p-53 - 0.5);
    }
    return tensor.to(type);
  });
}

// Parameters of every kind; one has more numbers than a block of shards.h, and one is a stack of matrices.
struct RuleProblem {
  std::vector<OptimizedParameter> parameters;

  RuleProblem(const RuleCase& one, at::ScalarType type) {
    const std::pair<const char*, std::vector<int64_t>> shapes[] = {{"embedding", {120, 40}}, {"large", {40, 27500}},
                                                                   {"wide", {60, 80}},       {"stack", {3, 20, 16}},
                                                                   {"norm", {40}},           {"bias", {7}}};
    for (const auto& [name, shape] : shapes)
      parameters.push_back(
          {name, random_of(shape, parameters.size(), type), test::decays(one, name), test::role_named(name)});
  }

  [[nodiscard]] std::vector<at::Tensor> gradients(uint64_t update) const {
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& tensor = parameters[i].tensor;
      out.push_back(random_of(tensor.sizes().vec(), 100 * update + i, tensor.scalar_type()));
    }
    return out;
  }

  // Every rank has the same whole gradient; a sharded optimizer takes its range.
  void update(Optimizer& optimizer, int rank, uint64_t number, double lr) const {
    const std::vector<at::Tensor> whole = gradients(number);
    if (optimizer.is_sharded()) {
      ShardUnit& unit = optimizer.units().front();
      const FlatRange own = unit.shards.of(rank);
      unit.own_gradient = at::empty({own.size()}, whole[0].options());
      copy_from_tensors(unit.shards, whole, own, unit.own_gradient);
    } else {
      for (size_t i = 0; i < whole.size(); ++i) parameters[i].tensor.mutable_grad() = whole[i];
    }
    ASSERT_OK(optimizer.step(lr, 0.75));
  }
};

std::vector<at::Tensor> stepped(const RuleCase& one, at::ScalarType type, uint64_t num_updates) {
  const RuleProblem problem(one, type);
  Optimizer optimizer(problem.parameters, one.rule(), one.weight_decay);
  for (uint64_t update = 1; update <= num_updates; ++update) problem.update(optimizer, 0, update, one.lr);
  std::vector<at::Tensor> out;
  for (const OptimizedParameter& parameter : problem.parameters) out.push_back(parameter.tensor);
  return out;
}

void expect_equal(const RuleProblem& problem, const std::vector<at::Tensor>& expected, const std::string& label) {
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(problem.parameters[i].tensor.equal(expected[i])) << label << ": " << problem.parameters[i].name;
}

class EveryOptimizer : public ::testing::TestWithParam<RuleCase> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_P(EveryOptimizer, ResumesWithTheSameBits) {
  const RuleCase& one = GetParam();
  const std::vector<at::Tensor> expected = stepped(one, at::kFloat, 4);
  const RuleProblem problem(one, at::kFloat);
  StateSnapshot snapshot;
  Optimizer before(problem.parameters, one.rule(), one.weight_decay);
  for (uint64_t update = 1; update <= 2; ++update) problem.update(before, 0, update, one.lr);
  StatefulRegistry saved, loaded;
  ASSERT_OK(saved.add(before));
  snapshot = saved.save().value();
  Optimizer after(problem.parameters, one.rule(), one.weight_decay);
  ASSERT_OK(loaded.add(after));
  ASSERT_OK(loaded.load(snapshot, "test"));
  for (uint64_t update = 3; update <= 4; ++update) problem.update(after, 0, update, one.lr);
  expect_equal(problem, expected, one.name);
}

// The state in files: the numbers, what a checkpoint has of it, and a resume from the state of a run in memory.
TEST_P(EveryOptimizer, OffloadedStateHasTheSameBits) {
  const RuleCase& one = GetParam();
  const std::vector<at::Tensor> expected = stepped(one, at::kFloat, 4);
  const test::TempDir dir;
  const auto save = [&](const Optimizer& optimizer, const char* name) {
    StateSnapshot snapshot;
    StateWriter writer("actor.optim", &snapshot);
    EXPECT_OK(optimizer.save_state(writer));
    EXPECT_OK(write_safetensors_file(default_env(), dir / name, snapshot.tensors));
  };
  const auto in_files = [&](const RuleProblem& problem) {
    Optimizer optimizer(problem.parameters, one.rule(), one.weight_decay, "actor.optim", {}, StateMemory::kLater);
    EXPECT_OK(optimizer.offload(std::make_shared<Offload>(Path(MORTISE_BINARY_DIR))));
    return optimizer;
  };
  const RuleProblem problem(one, at::kFloat), same(one, at::kFloat);
  Optimizer before(problem.parameters, one.rule(), one.weight_decay);
  Optimizer offloaded = in_files(same);
  for (uint64_t update = 1; update <= 2; ++update) {
    problem.update(before, 0, update, one.lr);
    same.update(offloaded, 0, update, one.lr);
  }
  save(before, "memory");
  save(offloaded, "files");
  EXPECT_TRUE(dir.read("memory") == dir.read("files"));
  StatefulRegistry saved, loaded;
  ASSERT_OK(saved.add(before));
  const StateSnapshot snapshot = saved.save().value();
  Optimizer after = in_files(problem);
  ASSERT_OK(loaded.add(after));
  ASSERT_OK(loaded.load(snapshot, "test"));
  for (uint64_t update = 3; update <= 4; ++update) problem.update(after, 0, update, one.lr);
  expect_equal(problem, expected, one.name);
}

TEST_P(EveryOptimizer, RanksHaveTheBitsOfOneProcess) {
  const RuleCase& one = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const std::vector<at::Tensor> expected = stepped(one, type, 3);
    for (const int size : {2, 3}) {
      if (type == at::kDouble && size > 2) continue;
      on_ranks(size, [&](Communicator& ranks) {
        const RuleProblem problem(one, type);
        Optimizer optimizer(problem.parameters, one.rule(), one.weight_decay, "actor.optim", {&ranks, 1});
        ASSERT_EQ(optimizer.units().size(), 1U);
        for (uint64_t update = 1; update <= 3; ++update) problem.update(optimizer, ranks.rank(), update, one.lr);
        expect_equal(problem, expected, one.name + " on " + std::to_string(size) + " ranks");
      });
    }
  }
}

TEST_P(EveryOptimizer, SavedStateDoesNotDependOnTheRanks) {
  const RuleCase& one = GetParam();
  std::map<std::string, std::string> expected;
  for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {2, 1}, {3, 2}}) {
    test::JoinedState joined;
    on_ranks(size, [&, stage = stage](Communicator& ranks) {
      const RuleProblem problem(one, at::kFloat);
      Optimizer optimizer(problem.parameters, one.rule(), one.weight_decay, "actor.optim", {&ranks, stage});
      for (uint64_t update = 1; update <= 2; ++update) problem.update(optimizer, ranks.rank(), update, one.lr);
      StateSnapshot snapshot;
      StateWriter writer("actor.optim", &snapshot);
      ASSERT_OK(optimizer.save_state(writer));
      ASSERT_OK(writer.status());
      joined.add(snapshot);
    });
    std::map<std::string, std::string> saved;
    uint64_t bytes = 0;
    const StateSnapshot snapshot = joined.snapshot();
    for (const TensorView& view : snapshot.tensors) {
      saved[view.name] = {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()};
      bytes += view.bytes.size();
    }
    const RuleProblem problem(one, at::kFloat);
    EXPECT_EQ(static_cast<uint64_t>(state_bytes(*one.rule(), problem.parameters)), bytes);
    if (size == 1) expected = saved;
    EXPECT_EQ(saved == expected, true) << size << " ranks, stage " << stage;
  }
}

// One case for each code path: the others differ in the reference only.
std::vector<RuleCase> distinct_cases() {
  std::vector<RuleCase> cases = test::rule_cases();
  std::erase_if(cases, [](const RuleCase& one) {
    return one.name == "lion_bitsandbytes" || one.name == "adamw_8bit_table" || one.name == "sgd_nesterov";
  });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryOptimizer, ::testing::ValuesIn(distinct_cases()),
                         [](const auto& one) { return one.param.name; });

TEST(Optimizers, ElementwiseRulesDoNotDependOnThreads) {
  for (const RuleCase& one : test::rule_cases()) {
    if (!one.name.starts_with("sgd") && !one.name.starts_with("lion") && one.name != "adamw_8bit_all") continue;
    at::set_num_threads(1);
    const std::vector<at::Tensor> expected = stepped(one, at::kFloat, 2);
    at::set_num_threads(3);
    const std::vector<at::Tensor> threads = stepped(one, at::kFloat, 2);
    at::set_num_threads(1);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(threads[i].equal(expected[i])) << one.name << i;
  }
}

TEST(Optimizers, StatesHaveTheSizesOfTheirPapers) {
  const std::vector<OptimizedParameter> matrix{{"w", at::empty({1000, 500}, at::kFloat)}};
  constexpr int64_t kNumbers = 500'000, kBlocks = 1954;  // blocks of 256 numbers
  EXPECT_EQ(state_bytes(*make_adamw({}), matrix), 8 * kNumbers);
  EXPECT_EQ(state_bytes(*make_adamw_8bit({}), matrix), 2 * kNumbers + 8 * kBlocks);
  EXPECT_EQ(state_bytes(*make_lion({}), matrix), 4 * kNumbers);
  EXPECT_EQ(state_bytes(*make_sgd({}), matrix), 0);
  EXPECT_EQ(state_bytes(*make_sgd({.momentum = 0.9}), matrix), 4 * kNumbers);
  EXPECT_EQ(state_bytes(*make_muon({}), matrix), 4 * kNumbers);
  EXPECT_EQ(state_bytes(*make_adafactor({}), matrix), 4 * 1500);
  std::vector<OptimizedParameter> embedding = matrix;
  embedding[0].role = ParameterRole::kEmbedding;
  EXPECT_EQ(state_bytes(*make_adamw_8bit({}), embedding), 8 * kNumbers) << "in full";
  EXPECT_EQ(state_bytes(*make_muon({}), embedding), 8 * kNumbers) << "AdamW's";
  const std::vector<OptimizedParameter> biases{
      {"model.layers.0.mlp.experts.gate_up_proj_bias", at::empty({5, 64}, at::kFloat)}};
  EXPECT_EQ(state_bytes(*make_muon({}), biases), 8 * 5 * 64) << "AdamW steps the biases of all experts";
}

// What the first update of Muon at a rate of 1 makes of zeros.
at::Tensor muon_step(const std::string& name, const at::Tensor& gradient, const MuonOptions& options) {
  const std::vector<OptimizedParameter> parameters{{name, at::zeros_like(gradient)}};
  Optimizer optimizer(parameters, make_muon(options), 0.0);
  parameters[0].tensor.mutable_grad() = gradient.clone();
  EXPECT_OK(optimizer.step(1.0, 1.0));
  return parameters[0].tensor;
}

// gpt-oss stores an expert as [in, out]: its step is that of the same matrix as [out, in].
TEST(Optimizers, MuonTurnsTheStackedExpertsOfGptOss) {
  at::set_num_threads(1);
  for (const auto& [name, shape] : {std::pair{"mlp.experts.gate_up_proj", std::vector<int64_t>{3, 16, 64}},
                                    std::pair{"mlp.experts.down_proj", std::vector<int64_t>{3, 64, 16}}}) {
    for (const bool match_rms : {false, true}) {
      MuonOptions options;
      options.match_rms_adamw = match_rms;
      const at::Tensor gradient = random_of(shape, 7, at::kFloat);
      const at::Tensor got = muon_step(std::string("model.layers.0.") + name, gradient, options);
      const at::Tensor turned = muon_step("stack", gradient.transpose(1, 2).contiguous(), options).transpose(1, 2);
      // Muon computes in bfloat16. Without the turn one of the two is twice the other.
      EXPECT_LT(got.sub(turned).norm().item<double>(), 0.02 * turned.norm().item<double>()) << name << match_rms;
    }
  }
}

}  // namespace
}  // namespace mortise
