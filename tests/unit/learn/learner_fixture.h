// What the tests of the learner share: a tiny model, random rows in groups, and the gradient of one update.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "config/load.h"
#include "foundation/base/rng.h"
#include "learn/optim/adamw.h"
#include "learn/optim/weight_shards.h"
#include "learn/update/actor_learner.h"
#include "learn/update/tensor_group.h"
#include "small_config.h"

namespace mortise {

inline const MicroBatchOptions kAll{1000, 0};

inline LearnerOptions cut_by(const MicroBatchOptions& cut) {
  LearnerOptions options;
  options.micro_batch = cut;
  return options;
}

inline Model two_layer_model(int64_t vocab_size, const std::string& dtype) {
  return Model::random(make_qwen2_config({.vocab_size = vocab_size,
                                          .hidden_size = 64,
                                          .intermediate_size = 96,
                                          .num_layers = 2,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .initializer_range = 0.1})
                           .value(),
                       5, dtype)
      .value();
}

struct RowsShape {
  int64_t vocab = 29;
  int64_t groups = 4;
  int64_t samples = 3;
  uint64_t max_length = 9;  // longest response; one of them is empty
};

// Rows of random lengths, with holes in their masks; every second group has no advantage.
struct RandomRows {
  std::vector<std::vector<int64_t>> prompts, responses;
  StepTable batch;

  explicit RandomRows(bool on_policy, const RowsShape& shape = {}) {
    RandomStream stream({7, RandomPurpose::kTest, 0, 0, 0});
    const auto ids = [&](size_t n) {
      std::vector<int64_t> out(n);
      for (int64_t& id : out) id = static_cast<int64_t>(stream.next_below(static_cast<uint64_t>(shape.vocab)));
      return out;
    };
    for (int64_t g = 0; g < shape.groups; ++g) {
      const std::vector<int64_t> prompt = ids(2 + static_cast<size_t>(g));
      for (int64_t s = 0; s < shape.samples; ++s) {
        prompts.push_back(prompt);
        responses.push_back(ids(g == 2 && s == 1 ? 0 : 1 + stream.next_below(shape.max_length)));
      }
    }
    std::vector<TableRow> rows;
    for (size_t i = 0; i < prompts.size(); ++i)
      rows.push_back({prompts[i], responses[i], static_cast<int64_t>(i) / shape.samples});
    std::vector<uint8_t> mask;
    std::vector<float> advantages, old, reference;
    for (const TableRow& row : rows) {
      const double advantage = row.group % 2 == 0 ? stream.next_normal() : 0.0;
      for (size_t t = 0; t < row.response_ids.size(); ++t) {
        mask.push_back(stream.next_below(5) == 0 ? 0 : 1);
        advantages.push_back(static_cast<float>(advantage));
        const double log_prob = -3.3 + 0.3 * stream.next_normal();
        if (!on_policy) old.push_back(static_cast<float>(log_prob));
        reference.push_back(static_cast<float>(log_prob - 0.1));
      }
    }
    batch = StepTable(std::move(rows));
    batch.put<column::ResponseMask>(std::move(mask));
    batch.put<column::Advantages>(std::move(advantages));
    batch.put<column::OldLogProb>(std::move(old));
    batch.put<column::RefLogProb>(std::move(reference));
  }
};

// All objectives of a program share them: to read and hash the files of the packs takes longer than a small update.
inline PluginRegistry& shared_builtin_packs() {
  static PluginRegistry registry = [] {
    RegistryOptions options;
    options.use_environment = options.use_user_packs = false;
    options.builtin_dir = std::filesystem::path(MORTISE_BINARY_DIR) / "lib/mortise/packs";
    return PluginRegistry::open(options).value();
  }();
  return registry;
}

// An objective as configured.
struct TestObjective {
  LoadedConfig loaded;
  ActorObjective objective;

  explicit TestObjective(const std::vector<std::string>& overrides, PluginRegistry& packs = shared_builtin_packs(),
                         const RunKey& key = {})
      : loaded(load_config(default_env(), "", overrides).value()),
        objective(ActorObjective::create(packs, loaded, key).value()) {}
};

// A tiny decoder with its optimizer.
struct TestPolicy {
  Model model;
  AdamW optimizer;

  // `tensor_size`: ranks of the communicator of `zero` that share the layers.
  explicit TestPolicy(const std::string& dtype, int64_t vocab = 29, int64_t num_layers = 2, uint64_t seed = 5,
                      const ZeroOptions& zero = {}, int tensor_size = 1, int64_t window_bytes = 0)
      : TestPolicy(small_config(vocab, num_layers), dtype, seed, zero, tensor_size, window_bytes) {}
  TestPolicy(ModelConfig config, const std::string& dtype, uint64_t seed, const ZeroOptions& zero = {},
             int tensor_size = 1, int64_t window_bytes = 0)
      : model(make_model(std::move(config), dtype, seed, zero, tensor_size)),
        optimizer(parameters(model), {}, "actor.optim", spread_model(model, zero, false, window_bytes)) {
    at::set_num_threads(1);  // the tensors are tiny
  }

  static Model make_model(ModelConfig config, const std::string& dtype, uint64_t seed, const ZeroOptions& zero,
                          int tensor_size) {
    Model model = Model::random(std::move(config), seed, dtype).value();
    if (tensor_size > 1) model.split_layers(std::make_shared<TensorGroup>(*zero.communicator, tensor_size));
    return model;
  }

  // With ZeRO 3 the model's weights are spread before the optimizer is made.
  static ZeroOptions spread_model(Model& model, ZeroOptions zero, bool keeps_base = false, int64_t window_bytes = 0) {
    zero.tensor = model.model_part();
    zero.bucket_bytes = 4096;  // several units a layer
    if (zero.tensor != nullptr && zero.stage > 0)
      zero.communicator = zero.communicator->strided(zero.tensor->ranks()->size()).value();
    const ShardCut cut = zero.tensor != nullptr ? ShardCut::kTensors : ShardCut::kBlocks;
    if (zero.stage >= 3 && zero.communicator->size() > 1)
      zero.weights = WeightShards::spread(model, *zero.communicator, cut, keeps_base, window_bytes).get();
    return zero;
  }

  static std::vector<OptimizedParameter> parameters(Model& model) {
    std::vector<OptimizedParameter> out;
    for (const NamedParameter& p : model.trainable()) out.push_back({p.name, p.tensor, true});
    return out;
  }

  // The gradient of every parameter after one update with learning rate 0 and without clipping.
  std::vector<at::Tensor> gradients(ActorObjective& objective, const StepTable& batch, LearnerOptions options,
                                    UpdateReport* report = nullptr, bool old_is_current = false) {
    options.grad_clip = 0.0;
    ActorLearner learner(model, optimizer, objective, options);
    auto done = learner.update(batch, all_rows(batch), {.old_is_current = old_is_current});
    EXPECT_TRUE(done.ok()) << done.error().to_string();
    if (report != nullptr && done.ok()) *report = std::move(done).value();
    std::vector<at::Tensor> grads;
    for (const NamedParameter& p : model.parameters()) grads.push_back(p.tensor.grad().clone());
    return grads;
  }
};

// max over the parameters of |a - b| / |b|; every b must have something to compare.
inline double worst_relative_l2(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double norm = b[i].norm().item<double>();
    EXPECT_GT(norm, 0.0) << "parameter " << i << " got no gradient, so nothing is compared";
    worst = std::max(worst, (a[i] - b[i]).norm().item<double>() / norm);
  }
  return worst;
}

// |a - b| / |b| over all parameters together, of which some b may be zeros.
inline double relative_l2_of_all(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).pow(2).sum().item<double>();
    norm += b[i].pow(2).sum().item<double>();
  }
  EXPECT_GT(norm, 0.0) << "there is no gradient, so nothing is compared";
  return std::sqrt(difference / norm);
}

}  // namespace mortise
