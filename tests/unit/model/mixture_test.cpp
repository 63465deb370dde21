// Mixtures of experts: what config.json may say, how the experts are stored, which experts a pass takes.
#include <ATen/ops/equal.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <fstream>

#include "foundation/base/env.h"
#include "foundation/formats/safetensors.h"
#include "gradient_fixture.h"
#include "model/layers/experts.h"
#include "support/golden_models.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

std::string config_with(const std::string& name, const std::string& key, const Json& value) {
  Json json = *parse_json(*default_env().read_file(test::golden_model(name) / "config.json"), "config.json");
  json[key] = value;
  return dump_json(json, 2);
}

Result<ModelConfig> read_with(const std::string& name, const std::string& key, const Json& value) {
  return parse_model_config(config_with(name, key, value), "", "m/config.json");
}

TEST(Mixture, ConfigIsCheckedByName) {
  const std::tuple<const char*, const char*, Json, const char*> bad[] = {
      {"qwen3_moe", "num_local_experts", 1000000000, "num_local_experts"},
      {"qwen3_moe", "num_experts", 9, "num_experts"},  // num_local_experts is 8
      {"qwen2_moe", "num_experts", int64_t{1} << 40, "num_experts"},
      {"qwen2_moe", "num_experts", -1, "num_experts"},
      {"qwen2_moe", "num_experts", 2.5, "num_experts"},
      {"qwen2_moe", "num_experts_per_tok", 0, "num_experts_per_tok"},
      {"qwen2_moe", "num_experts_per_tok", 7, "num_experts_per_tok"},
      {"qwen2_moe", "moe_intermediate_size", int64_t{1} << 40, "moe_intermediate_size"},
      {"qwen2_moe", "moe_intermediate_size", 0, "moe_intermediate_size"},
      {"qwen2_moe", "shared_expert_intermediate_size", int64_t{1} << 40, "shared_expert_intermediate_size"},
      {"qwen2_moe", "decoder_sparse_step", 0, "decoder_sparse_step"},
      {"qwen2_moe", "mlp_only_layers", "all", "mlp_only_layers"},
      {"qwen2_moe", "mlp_only_layers", Json::array({0.5}), "mlp_only_layers"},
      {"qwen2_moe", "norm_topk_prob", 1, "norm_topk_prob"},
      {"qwen2_moe", "router_aux_loss_coef", -1, "router_aux_loss_coef"},
      {"mixtral", "num_local_experts", 0, "num_local_experts"},
      {"mixtral", "num_local_experts", 40000, "num_local_experts"},
      {"mixtral", "num_experts", 5, "num_experts"},
      {"mixtral", "hidden_act", "relu", "hidden_act"},
      {"gpt_oss", "num_experts", 4, "num_experts"},
      {"gpt_oss", "num_experts_per_tok", 6, "num_experts_per_tok"},
      {"gpt_oss", "swiglu_limit", 0, "swiglu_limit"},
      {"gpt_oss", "sliding_window", nullptr, "sliding_window"},
      {"gpt_oss", "quantization_config", Json{{"quant_method", "gptq"}}, "quantization_config.quant_method"},
      {"mixtral", "quantization_config", Json{{"quant_method", "mxfp4"}}, "quantization_config.quant_method"}};
  for (const auto& [name, key, value, expected] : bad) {
    const auto read = read_with(name, key, value);
    ASSERT_FALSE(read.ok()) << name << " " << key << " " << dump_json(value);
    EXPECT_NE(read.error().to_string().find(expected), std::string::npos) << read.error().to_string();
  }
  // Each size is possible, their product is not.
  Json json = *parse_json(config_with("qwen2_moe", "num_experts", 32768), "config.json");
  json["moe_intermediate_size"] = 1 << 20;
  EXPECT_FALSE(parse_model_config(dump_json(json), "", "m/config.json").ok());
}

TEST(Mixture, LayersMayBeDense) {
  const ModelConfig some = *read_model_config(default_env(), test::golden_model("qwen3_moe_layers"));
  EXPECT_EQ(some.moe.is_dense, (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(some.num_expert_layers(), 1);
  EXPECT_EQ(read_with("qwen2_moe", "mlp_only_layers", Json::array({0, 1, 9}))->num_expert_layers(), 0);
  EXPECT_EQ(read_with("qwen2_moe", "num_experts", 0)->num_expert_layers(), 0);
  for (const ModelConfig& config : {some, *read_with("qwen2_moe", "num_experts", 0)}) {
    int64_t count = 0;
    const Model model = *Model::random(config, 1);
    for (const NamedParameter& p : model.parameters()) count += p.tensor.numel();
    EXPECT_EQ(count, config.num_parameters());
  }
}

// The published files have no swiglu_alpha; transformers' defaults stand in for absent keys.
TEST(Mixture, GptOssTakesTheDefaultsOfTransformers) {
  Json json = *parse_json(*default_env().read_file(test::golden_model("gpt_oss") / "config.json"), "config.json");
  for (const char* key : {"attention_bias", "head_dim", "layer_types", "num_local_experts", "num_experts_per_tok",
                          "rope_scaling", "rope_theta", "router_aux_loss_coef", "sliding_window", "swiglu_limit"})
    json.erase(key);
  const ModelConfig config = *parse_model_config(dump_json(json), "", "m/config.json");
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.attention_sinks);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.windows, (std::vector<int64_t>{128, 0}));
  EXPECT_EQ(config.moe.num_experts, 128);
  EXPECT_EQ(config.moe.experts_per_token, 4);
  EXPECT_EQ(config.moe.swiglu_limit, 7.0);
  EXPECT_EQ(config.moe.swiglu_alpha, 1.702);
  EXPECT_EQ(config.rope.type, RopeType::kYarn);
  EXPECT_EQ(config.rope.theta, 150000.0);
  EXPECT_EQ(config.rope.factor, 32.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 4096.0);
  EXPECT_NEAR(config.rope.attention_factor, 1.3465735902799727, 1e-15);  // 0.1 log(32) + 1
  EXPECT_FALSE(config.rope.truncate);
  const Model model = *Model::random(*read_model_config(default_env(), test::golden_model("gpt_oss")), 1);
  int64_t count = 0;
  for (const NamedParameter& p : model.parameters()) count += p.tensor.numel();
  EXPECT_EQ(count, model.config().num_parameters());
}

TEST(Mixture, NoiseIsRefusedForTrainingOnly) {
  const auto config = read_with("mixtral", "router_jitter_noise", 0.1);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  const auto trainable = check_trainable(*config, "m");
  ASSERT_FALSE(trainable.ok());
  EXPECT_NE(trainable.error().to_string().find("'router_jitter_noise' = 0.1"), std::string::npos);
}

// The folder with one tensor for all experts of a layer, as transformers 5 holds them.
Path stack_experts(const std::string& name, const Model& model) {
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch" / ("stacked_" + name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy(test::golden_model(name) / "config.json", folder);
  std::vector<TensorView> views;
  const auto add = [&](std::string tensor_name, const at::Tensor& tensor) {
    const auto size = static_cast<size_t>(tensor.numel());
    views.push_back({std::move(tensor_name), DType::kF32, tensor.sizes().vec(),
                     std::as_bytes(std::span(tensor.const_data_ptr<float>(), size))});
  };
  for (const NamedParameter& p : model.parameters()) {
    const size_t block = p.name.find("block_sparse_moe");
    if (p.name.find(".experts.") != std::string::npos) continue;
    std::string tensor_name = p.name;
    if (block != std::string::npos) tensor_name.replace(block, std::string("block_sparse_moe").size(), "mlp");
    add(tensor_name, p.tensor);
  }
  for (size_t i = 0; i < model.weights().layers.size(); ++i) {
    const ExpertWeights& experts = model.weights().layers[i].experts;
    if (!experts.defined()) continue;
    const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.experts.";
    add(prefix + "gate_up_proj", experts.gate_up_E2IH);
    add(prefix + "down_proj", experts.down_EHI);
  }
  EXPECT_TRUE(write_safetensors_file(default_env(), folder / "model.safetensors", views).ok());
  return folder;
}

TEST(Mixture, StackedExpertsAreTheSameModel) {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe_layers"}) {
    const Model model = *Model::load(default_env(), test::golden_model(name));
    const auto stacked = Model::load(default_env(), stack_experts(name, model));
    ASSERT_TRUE(stacked.ok()) << stacked.error().to_string();
    for (size_t i = 0; i < model.parameters().size(); ++i)
      EXPECT_TRUE(at::equal(model.parameters()[i].tensor, stacked->parameters()[i].tensor)) << name;
    // A save writes the experts one by one.
    const Path again = Path(MORTISE_BINARY_DIR) / "scratch" / ("unstacked_" + std::string(name));
    ASSERT_TRUE(stacked->save(default_env(), again, {.dtype = "stored"}).ok());
    const auto reread = Model::load(default_env(), again);
    ASSERT_TRUE(reread.ok()) << reread.error().to_string();
    for (size_t i = 0; i < model.parameters().size(); ++i)
      EXPECT_TRUE(at::equal(model.parameters()[i].tensor, reread->parameters()[i].tensor)) << name;
  }
}

TEST(Mixture, StackedExpertsOfAnotherShapeAreRefused) {
  const Model model = *Model::load(default_env(), test::golden_model("qwen2_moe"));
  const Path folder = stack_experts("qwen2_moe", model);
  const std::string text = config_with("qwen2_moe", "moe_intermediate_size", 12);
  std::ofstream(folder / "config.json") << text;
  const auto read = Model::load(default_env(), folder);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().to_string().find("mlp.experts"), std::string::npos) << read.error().to_string();
}

TEST(Mixture, AdaptersThatPeftDoesNotHaveAreRefusedByName) {
  const std::vector<std::string> down = {"experts.down_proj"};
  const std::tuple<const char*, LoraChoice, const char*> cases[] = {
      {"mixtral", {.target_modules = {"w1"}}, "w1 and w3"},
      {"qwen3_moe", {.target_modules = {"gate_proj"}}, "gate_proj and up_proj"},
      {"qwen3_moe", {.target_modules = {"mlp.gate"}}, "name it in target_parameters"},
      {"qwen3_moe", {.target_modules = {"experts.0.up_proj"}}, "name it in target_parameters"},
      {"gpt_oss", {.target_modules = {"down_proj"}}, "name it in target_parameters"},
      {"gpt_oss", {.target_modules = {"router"}}, "name it in target_parameters"},
      {"gpt_oss", {.target_parameters = {"mlp.gate.weight"}}, "'mlp.gate.weight'"},
      {"qwen2_tied", {.target_parameters = {"q_proj.weight"}}, "target_modules"},
      {"mixtral", {.target_parameters = down, .dropout = 0.1}, "lora_dropout"},
      {"mixtral", {.target_parameters = down, .use_dora = true}, "use_dora"},
      {"mixtral", {.target_parameters = down, .init = LoraInit::kPissa}, "init_lora_weights"},
      {"mixtral", {.target_parameters = down, .layers_to_transform = {1}}, "layers_to_transform"},
      {"mixtral", {.target_parameters = {"gate.weight"}, .modules_to_save = {"gate"}}, "modules_to_save"},
  };
  for (const auto& [name, choice, text] : cases) {
    Model model = *Model::load(default_env(), test::golden_model(name));
    const auto trained = model.train_lora(choice, 1);
    ASSERT_FALSE(trained.ok()) << name << " " << text;
    EXPECT_NE(trained.error().to_string().find(text), std::string::npos) << trained.error().to_string();
  }
}

ForwardOptions with_pass(LayerPath path, const std::shared_ptr<RouterPass>& pass) {
  ForwardOptions options;
  options.path = path;
  options.routing = pass;
  return options;
}

// The experts that a pass took, given back in another order, give the same states; others give others.
TEST(Mixture, GivenExpertsAreTaken) {
  for (const Family family : {Family::kQwen2Moe, Family::kQwen3Moe, Family::kMixtral, Family::kGptOss}) {
    const Fixture setup = make_setup(family, false);
    const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
    const at::NoGradGuard no_grad;
    auto free = std::make_shared<RouterPass>();
    make_room(setup.model.config(), batch.num_tokens(), *free);
    const at::Tensor plain = setup.model.forward_hidden(batch, with_pass(LayerPath::kFast, free));
    EXPECT_TRUE(at::equal(plain, setup.model.forward_hidden(batch)));
    auto same = std::make_shared<RouterPass>();
    same->given_LNK = at::flip(free->taken_LNK, {2});
    EXPECT_TRUE(at::equal(plain, setup.model.forward_hidden(batch, with_pass(LayerPath::kFast, same))));
    auto other = std::make_shared<RouterPass>();
    other->given_LNK = (free->taken_LNK + 1) % 3;
    const at::Tensor changed = setup.model.forward_hidden(batch, with_pass(LayerPath::kFast, other));
    EXPECT_FALSE(at::equal(plain, changed));
    EXPECT_CLOSE(changed, setup.model.forward_hidden(batch, with_pass(LayerPath::kPlain, other)), 1e-10);
    other->given_LNK.select(2, 0).fill_(-1);  // the router's own choice
    EXPECT_TRUE(at::equal(plain, setup.model.forward_hidden(batch, with_pass(LayerPath::kFast, other))));
  }
}

// As on a rank whose share of a pass has no tokens.
TEST(Mixture, OperatorsTakeNoTokens) {
  ModelConfig config;
  config.moe.num_experts = 3;
  LayerMatrices matrices;
  matrices.expert_gate_up_E2IH = random_tensor({3, 8, 5}, 1);
  matrices.expert_down_EHI = random_tensor({3, 5, 4}, 2);
  ExpertLeaves leaves;
  for (int64_t e = 0; e < 3; ++e) {
    for (const at::Tensor& half : matrices.expert_gate_up_E2IH[e].chunk(2, 0)) leaves.gate_up.push_back(half);
    leaves.down.push_back(matrices.expert_down_EHI[e]);
  }
  for (at::Tensor& leaf : leaves.down) leaf.set_requires_grad(true);
  const at::Tensor x = at::zeros({0, 5}, at::kDouble);
  const Routing routing{at::zeros({0, 2}, at::kLong), at::zeros({0, 2}, at::kDouble)};
  const at::Tensor out = mixture_operators(x, routing, matrices, leaves, config);
  EXPECT_EQ(out.sizes(), x.sizes());
  out.sum().backward();
  EXPECT_TRUE(at::equal(leaves.down[2].grad(), at::zeros({5, 4}, at::kDouble)));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(mixture_operators(x, routing, matrices, leaves, config).sizes(), x.sizes());
}

}  // namespace
}  // namespace mortise
