// Models with every kind of layer, and with every kind of adapter in training, for tests that compare layouts of ranks.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layer_kinds.h"
#include "meshes.h"
#include "model/weights/weight_units.h"
#include "support/temp_dir.h"

namespace mortise {

struct Variant {
  std::string name;
  ModelConfig config;
  std::function<void(LearnerOptions&)> options = {};
  std::vector<std::string> adapts = {};  // matrices with an adapter
  bool has_dora = false;
  double dropout = 0.0;
  std::vector<std::string> saves = {};  // modules that are trained as a whole
  LoraBias bias = LoraBias::kNone;
  LoraInit init = LoraInit::kDefault;
  std::vector<std::string> adapts_parameters = {};  // experts and routers
  MicroBatchOptions cut = kCut;
  std::vector<std::string> loss = {"actor.policy_loss.loss_mode=vanilla", "actor.entropy_coeff=0.02"};
  bool has_reference = false;  // the base of the adapter, or random numbers

  [[nodiscard]] bool has_adapter() const { return !adapts.empty() || !adapts_parameters.empty(); }
};

inline void use_plain_layers(LearnerOptions& options) { options.pass.path = LayerPath::kPlain; }

// What an adapter trains as a whole.
inline std::vector<Variant> variants_with_whole_parameters() {
  const ModelConfig three_layers = small_config(kShape.vocab, 3);
  return {
      {"biases", three_layers, {}, {"q_proj", "down_proj"}, false, 0.0, {}, LoraBias::kAll},
      {"biases of adapted matrices, plain layers",
       three_layers,
       [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; },
       {"q_proj", "v_proj"},
       false,
       0.0,
       {},
       LoraBias::kLoraOnly},
      {"whole modules, all layers again",
       three_layers,
       [](LearnerOptions& options) { options.pass.activation_bytes = 0; },
       {"all-linear"},
       false,
       0.0,
       {"embed_tokens", "norm", "input_layernorm"},
       LoraBias::kAll},
      {"the head as a whole", three_layers, {}, {"v_proj"}, false, 0.0, {"lm_head"}},
      {"matrices as a whole", three_layers, {}, {"v_proj"}, false, 0.0, {"q_proj", "o_proj", "up_proj", "down_proj"}},
      {"fused matrices as a whole",
       fused_config(kShape.vocab, 3),
       {},
       {"o_proj"},
       false,
       0.0,
       {"qkv_proj", "gate_up_proj"}},
      {"fused matrices as a whole, plain layers",
       fused_config(kShape.vocab, 3),
       use_plain_layers,
       {"down_proj"},
       false,
       0.0,
       {"qkv_proj", "gate_up_proj", "o_proj"}},
      {"a shared expert as a whole", shared_moe_config(), {}, {"q_proj"}, false, 0.0, {"shared_expert"}},
      {"attention and all biases of gpt-oss",
       stacked_moe_config(),
       {},
       {},
       false,
       0.0,
       {"self_attn"},
       LoraBias::kAll,
       LoraInit::kDefault,
       {"mlp.router.weight"}},
  };
}

// Adapters of experts and routers, and those that begin with a part of the base.
inline std::vector<Variant> variants_of_adapters() {
  const ModelConfig three_layers = small_config(kShape.vocab, 3);
  std::vector<Variant> out{
      {"PiSSA", three_layers, {}, {"all-linear"}},
      {"OLoRA with DoRA, plain layers", three_layers, use_plain_layers, {"q_proj", "v_proj", "o_proj"}, true},
      {"PiSSA, fused projections", fused_config(kShape.vocab, 3), {}, {"all-linear"}},
  };
  out[0].init = out[2].init = LoraInit::kPissa;
  out[1].init = LoraInit::kOlora;
  const std::vector<std::string> experts{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  const auto add = [&](const std::string& name, const ModelConfig& config, const std::string& router,
                       const std::function<void(LearnerOptions&)>& options) {
    Variant& one = out.emplace_back(Variant{name, config, options, {"v_proj"}});
    one.adapts_parameters = experts;
    if (!router.empty()) one.adapts_parameters.push_back(router);
  };
  add("an adapter of experts and routers", shared_moe_config(), "mlp.gate.weight", {});
  add("the same, plain layers", moe_config(), "mlp.gate.weight", use_plain_layers);
  add("an adapter of gpt-oss's experts", stacked_moe_config(), "mlp.router.weight", {});
  add("the same, plain layers, without routers", stacked_moe_config(), "", use_plain_layers);
  return out;
}

inline std::vector<Variant> variants() {
  const ModelConfig three_layers = small_config(kShape.vocab, 3);
  const ModelConfig fused = fused_config(kShape.vocab, 3);
  std::vector<Variant> out;
  for (const auto& [name, config] : layer_kinds(kShape.vocab)) {
    out.push_back({name, config});
    if (config.num_expert_layers() > 0)
      out.back().options = [](LearnerOptions& options) { options.router_losses = {0.3, 0.02}; };
  }
  const std::vector<Variant> more = {
      {"experts in plain layers", moe_config(), [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; }},
      {"the experts of gpt-oss in plain layers", stacked_moe_config(),
       [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; }},
      {"plain layers", three_layers, [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; }},
      {"all layers again", three_layers, [](LearnerOptions& options) { options.pass.activation_bytes = 0; }},
      {"prompts not shared", three_layers, [](LearnerOptions& options) { options.pass.share_prompts = false; }},
      {"an adapter", three_layers, {}, {"all-linear"}},
      {"an adapter of some matrices", three_layers, {}, {"k_proj", "down_proj"}},
      {"an adapter, all layers again",
       three_layers,
       [](LearnerOptions& options) { options.pass.activation_bytes = 0; },
       {"all-linear"}},
      {"an adapter, experts", moe_config(), {}, {"q_proj", "o_proj"}},
      {"an adapter, plain layers",
       three_layers,
       [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; },
       {"all-linear"}},
      {"an adapter, fused projections", fused, {}, {"all-linear"}},
      {"fused projections in plain layers, an adapter",
       fused,
       [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; },
       {"qkv_proj"}},
      {"DoRA", three_layers, {}, {"all-linear"}, true},
      {"dropout", three_layers, {}, {"all-linear"}, false, 0.3},
      {"DoRA and dropout, all layers again",
       three_layers,
       [](LearnerOptions& options) { options.pass.activation_bytes = 0; },
       {"q_proj", "v_proj", "o_proj", "down_proj"},
       true,
       0.3},
      {"DoRA and dropout, plain layers",
       three_layers,
       [](LearnerOptions& options) { options.pass.path = LayerPath::kPlain; },
       {"all-linear"},
       true,
       0.3},
      {"a teacher", three_layers,
       [](LearnerOptions& options) {
         static const Model teacher = Model::random(small_config(kShape.vocab, 3), 6, "float64").value().clone_frozen();
         options.teacher_loss = {&teacher, 0.3, 0.4};
       }},
  };
  out.insert(out.end(), more.begin(), more.end());
  for (const std::vector<Variant>& others : {variants_with_whole_parameters(), variants_of_adapters()})
    out.insert(out.end(), others.begin(), others.end());
  return out;
}

inline const std::vector<std::string> kWholeKl{"actor.use_kl_loss=true", "actor.kl_loss_coef=0.3",
                                               "actor.kl_loss_type=full"};

// Those whose head is compared to that of a reference.
inline std::vector<Variant> variants_with_references() {
  const ModelConfig three_layers = small_config(kShape.vocab, 3);
  std::vector<Variant> out{
      {"a reference", three_layers},
      {"the base of an adapter", three_layers, {}, {"all-linear"}},
      {"the base of an adapter, the head as a whole", three_layers, {}, {"v_proj"}, false, 0.0, {"lm_head"}},
      {"the base of an adapter, embedding and head as a whole",
       three_layers,
       {},
       {"v_proj"},
       false,
       0.0,
       {"embed_tokens", "lm_head"}},
  };
  for (Variant& variant : out) {
    variant.loss = kWholeKl;
    variant.has_reference = true;
  }
  return out;
}

struct Update {
  std::vector<at::Tensor> gradients, weights;  // no gradients with ZeRO: a rank has some of them
  UpdateReport report;
};

// Zeros and ones hide mistakes: every number of the model is random.
inline void randomize(std::span<const NamedParameter> parameters) {
  uint64_t seed = 30;
  for (const NamedParameter& p : parameters) {
    RandomStream stream({seed++, RandomPurpose::kTest, 0, 0, 0});
    const at::Tensor values = at::empty(p.tensor.sizes(), at::kDouble);
    for (double& value : std::span(values.mutable_data_ptr<double>(), static_cast<size_t>(values.numel())))
      value = 0.3 * stream.next_normal();
    p.tensor.detach().copy_(values);
  }
}

// Spread as the policy is.
inline void make_reference(const Variant& variant, const Model& policy, const std::string& dtype,
                           Communicator& communicator, const Mesh& mesh, std::optional<Model>& reference) {
  if (!variant.has_reference) return;
  if (!policy.trains_lora()) {
    reference = Model::random(variant.config, 6, dtype).value();
    if (mesh.device != nullptr) EXPECT_OK(reference->move_to(mesh.device_of(communicator.rank())));
    if (mesh.tensor_size > 1) reference->split_layers(std::make_shared<TensorGroup>(communicator, mesh.tensor_size));
    TestPolicy::spread_model(*reference, {&communicator, mesh.zero_stage}, false, mesh.window_bytes);
    return;
  }
  reference = policy.base_view();
  if (const WeightShards* const shards = shards_of(policy); shards != nullptr) shards->spread_base(*reference);
}

// Bytes of the largest part (embedding, layer or head) of a whole model.
inline int64_t largest_part(const Model& model) {
  int64_t most = 0;
  for (const auto& part : weight_units(model.config(), model.stored_parameters()).parts) {
    int64_t bytes = 0;
    for (const size_t i : part) bytes += static_cast<int64_t>(model.stored_parameters()[i].tensor.nbytes());
    most = std::max(most, bytes);
  }
  return most;
}

// A variant whose numbers are all random, with its adapter, and with layers that are split if the mesh says so.
inline Model model_of(const Variant& variant, Communicator& communicator, const Mesh& mesh, const std::string& dtype) {
  Model model = Model::random(variant.config, 5, dtype).value();
  randomize(model.parameters());
  model.weights_changed();
  if (mesh.device != nullptr) EXPECT_OK(model.move_to(mesh.device_of(communicator.rank())));
  if (variant.has_adapter()) {
    const LoraChoice choice{.rank = 3,
                            .alpha = 6.0,
                            .target_modules = variant.adapts,
                            .target_parameters = variant.adapts_parameters,
                            .dropout = variant.dropout,
                            .use_dora = variant.has_dora,
                            .init = variant.init,
                            .modules_to_save = variant.saves,
                            .bias = variant.bias};
    EXPECT_OK(model.train_lora(choice, 4));
    randomize(model.trainable());
    model.weights_changed();
  }
  if (mesh.tensor_size > 1) model.split_layers(std::make_shared<TensorGroup>(communicator, mesh.tensor_size));
  return model;
}

// Updates of a variant. With trainer.deterministic if `dtype` is not float64.
inline Update update_of(const Variant& variant, Communicator& communicator, const Mesh& mesh, int64_t num_updates = 1,
                        const std::string& dtype = "float64") {
  const RandomRows data(false, kShape);
  LearnerOptions options = cut_by(variant.cut);
  if (variant.options) variant.options(options);
  Model model = model_of(variant, communicator, mesh, dtype);
  ZeroOptions zero = TestPolicy::spread_model(model, {&communicator, mesh.zero_stage},
                                              /*keeps_base=*/options.pass.path == LayerPath::kPlain, mesh.window_bytes);
  if (model.trains_lora()) {  // every rank of a group has the whole adapter
    zero.tensor = nullptr;
    zero.weights = nullptr;
  }
  AdamW optimizer(TestPolicy::parameters(model), AdamWOptions{}, "actor.optim", zero);
  std::optional<Model> reference;
  make_reference(variant, model, dtype, communicator, mesh, reference);
  if (reference) options.reference = &*reference;
  const auto objective = objective_of(variant.loss);
  options.grad_clip = 0.0;
  if (dtype != "float64") options.head.window_bytes = mesh.window_bytes;
  share(options, communicator, /*deterministic=*/dtype != "float64", mesh.sequence_size, mesh.tensor_size);
  ActorLearner learner(model, optimizer, objective->objective, options);
  Update out;
  for (int64_t update = 1; update <= num_updates; ++update) {
    auto done = learner.update(data.batch, all_rows(data.batch), {.lr = 1e-3, .update_index = update});
    EXPECT_OK(done);
    if (!done.ok()) return out;
    out.report = *std::move(done);
  }
  if (mesh.zero_stage == 0) out.gradients = gradients_of(model, optimizer);
  const auto whole = WholeWeights::gather({&model}).value();
  out.weights = weights_of(model);
  return out;
}

// With an adapter: the merged matrices.
inline void expect_same_weights(const Update& got, const Update& expected) {
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (size_t i = 0; i < got.weights.size(); ++i)
    EXPECT_LE((on_host(got.weights[i]) - on_host(expected.weights[i])).abs().max().item<double>(), 1e-8) << i;
}

// Two updates on a mesh of ranks give the numbers of one rank. The second one reads what the first one has changed.
inline void expect_numbers_of_one_rank(const Variant& variant, const Mesh& mesh) {
  const Update expected = update_of(variant, alone(), {}, 2);
  test::on_ranks(mesh.num_ranks, [&](Communicator& communicator) {
    SCOPED_TRACE(variant.name + ", " + name_of(mesh));  // a thread has its own
    const Update got = update_of(variant, communicator, mesh, 2);
    expect_same_reports(got.report, expected.report, 1e-10);
    expect_same_weights(got, expected);
  });
}

}  // namespace mortise
