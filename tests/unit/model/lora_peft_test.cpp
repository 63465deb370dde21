// Variants of LoRA against PEFT: the same log-probs and gradients at the start, the same numbers after steps of
// gradient descent, folders that PEFT loads, and folders of PEFT that we load. Needs a Python with PEFT in
// MORTISE_ORACLES_PYTHON; without it the test is skipped, aloud.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "gradient_fixture.h"
#include "support/golden_models.h"
#include "support/python_scripts.h"

namespace mortise {
namespace {

constexpr double kRate = 0.02;
constexpr int kSteps = 4;

struct PeftCase {
  std::string name;
  LoraChoice choice;
  bool tied = false;
  Json fresh = {};          // PEFT's own start; null: PEFT loads our adapter
  double tolerance = 1e-9;  // PEFT computes some starts in float32
  std::string golden = {};  // the base is this golden model; empty: the fixture's
  bool one_by_one = false;  // our adapter is a folder with tensors of single experts
};

std::vector<PeftCase> peft_cases() {
  const Json linear = Json::array({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"});
  return {
      {"dora", {.rank = 3, .alpha = 6.0, .use_dora = true}},
      {"bias_all", {.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "o_proj"}, .bias = LoraBias::kAll}},
      {"bias_lora_only",
       {.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "o_proj"}, .bias = LoraBias::kLoraOnly}},
      {"saved", {.rank = 2, .alpha = 4.0, .modules_to_save = {"lm_head", "embed_tokens", "layernorm"}}},
      {"saved_in_stack",
       {.rank = 2, .alpha = 4.0, .target_modules = {"q_proj", "up_proj"}, .modules_to_save = {"v_proj"}}},
      {"saved_tied", {.rank = 2, .alpha = 4.0, .modules_to_save = {"embed_tokens"}}, true},
      {"patterns",
       {.rank = 4,
        .alpha = 8.0,
        .use_rslora = true,
        .layers_to_transform = {1},
        .rank_pattern = {{"q_proj", 2}, {"^model.layers.1.mlp.up_proj", 5}},
        .alpha_pattern = {{"(o|q)_proj", 3.0}}}},
      {"pissa",
       {.rank = 3, .alpha = 4.0, .init = LoraInit::kPissa},
       false,
       {{"r", 3}, {"lora_alpha", 4}, {"target_modules", linear}, {"init_lora_weights", "pissa"}},
       2e-5},
      {"olora",
       {.rank = 3, .alpha = 4.0, .init = LoraInit::kOlora},
       false,
       {{"r", 3}, {"lora_alpha", 4}, {"target_modules", linear}, {"init_lora_weights", "olora"}},
       2e-5},
      {"pissa_ours", {.rank = 3, .alpha = 4.0, .use_dora = true, .init = LoraInit::kPissa}},
  };
}

// Experts and routers. The tolerance of gpt-oss is that of transformers' norms, which are float32.
std::vector<PeftCase> mixture_cases() {
  const auto experts = [](const char* name, const char* golden, LoraChoice choice, double tolerance = 1e-9) {
    PeftCase out{name, std::move(choice)};
    out.golden = golden;
    out.tolerance = tolerance;
    return out;
  };
  std::vector<PeftCase> out = {
      experts("qwen3_experts", "qwen3_moe",
              {.rank = 3,
               .alpha = 6.0,
               .target_modules = {"q_proj"},
               .target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"}}),
      experts("qwen3_down", "qwen3_moe",
              {.rank = 2,
               .alpha = 6.0,
               .target_modules = {},
               .target_parameters = {"experts.down_proj"},
               .use_rslora = true,
               .rank_pattern = {{"experts.down_proj", 3}}}),
      experts("qwen3_dense", "qwen3_moe_layers",
              {.rank = 2, .alpha = 4.0, .target_parameters = {"1.mlp.experts.gate_up_proj"}}),
      experts("qwen3_dense_patterns", "qwen3_moe_layers",
              {.rank = 2,
               .alpha = 4.0,
               .rank_pattern = {{"down_proj", 3}, {"q_proj", 4}},
               .alpha_pattern = {{"mlp.up_proj", 8.0}}}),
      experts("qwen3_dense_pissa", "qwen3_moe_layers", {.rank = 2, .alpha = 4.0, .init = LoraInit::kPissa}),
      experts("qwen2_shared", "qwen2_moe",
              {.rank = 2,
               .alpha = 4.0,
               .target_modules = {"all-linear", "shared_expert_gate"},
               .target_parameters = {"gate.weight", "experts.gate_up_proj"}}),
      experts("mixtral_names", "mixtral",
              {.rank = 2, .alpha = 4.0, .target_modules = {"w1", "w2", "w3", "gate", "o_proj"}}),
      experts("gpt_oss", "gpt_oss",
              {.rank = 2,
               .alpha = 4.0,
               .target_parameters = {"1.mlp.experts.gate_up_proj", "mlp.experts.down_proj", "router.weight"}},
              1e-5),
  };
  for (const char* const golden : {"qwen3_moe", "mixtral"}) {
    PeftCase one = experts("", golden, {});
    one.name = std::string(golden) + "_one_by_one";
    one.one_by_one = true;
    out.push_back(one);
  }
  return out;
}

Path peft_scratch();

Path base_of(const PeftCase& one) {
  if (!one.golden.empty()) return test::golden_model(one.golden);
  return peft_scratch() / (one.tied ? "tied" : "apart");
}

Path peft_scratch() { return Path(MORTISE_BINARY_DIR) / "scratch/lora_peft_test"; }

void write_rows(const Fixture& setup, const Path& path) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  int64_t target = 0;
  const std::vector<PackRow> rows = setup.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<int64_t> ids(rows[i].prompt_ids.begin(), rows[i].prompt_ids.end());
    ids.insert(ids.end(), rows[i].response_ids.begin(), rows[i].response_ids.end());
    const auto response = static_cast<int64_t>(rows[i].response_ids.size());
    tensors.emplace_back("row" + std::to_string(i) + "/ids", at::tensor(ids, at::kLong));
    tensors.emplace_back("row" + std::to_string(i) + "/probe",
                         random_tensor({64}, 77).narrow(0, target, response).contiguous());
    target += response;
  }
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    views.push_back({name,
                     tensor.scalar_type() == at::kLong ? DType::kI64 : DType::kF64,
                     tensor.sizes().vec(),
                     {bytes, tensor.nbytes()}});
  }
  ASSERT_TRUE(write_safetensors_file(default_env(), path, views).ok());
}

// Log-probs at temperature 1; with `backward` also the gradients of sum(probe * log_prob).
at::Tensor peft_pass(Model& model, const PackedBatch& batch, bool backward) {
  const at::Tensor rows = model.forward_hidden(batch).index_select(0, batch.predict_index_R);
  const at::Tensor hidden = rows.detach().contiguous();
  const LogProbs probs = head_log_prob(hidden, model.head(), batch.targets_R, 1.0, false);
  if (!backward) return probs.log_prob_R;
  const at::Tensor d_rows = at::empty_like(hidden);
  const at::Tensor probe = random_tensor({64}, 77).narrow(0, 0, batch.num_targets()).contiguous();
  model.zero_grad();
  head_backward(hidden, model.head(), batch.targets_R, 1.0, probe, {}, d_rows, model.head_grad());
  rows.backward(d_rows);
  return probs.log_prob_R;
}

void descend(Model& model, const PackedBatch& batch) {
  for (int step = 0; step < kSteps; ++step) {
    peft_pass(model, batch, true);
    const at::NoGradGuard no_grad;
    for (const NamedParameter& p : model.trainable()) p.tensor.detach().sub_(p.tensor.grad(), kRate);
    model.weights_changed();
  }
}

// A trained state that is not the start: B is not zero, and biases and norms have moved.
void disturb(Model& model) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 300;
  for (const NamedParameter& p : model.trainable())
    p.tensor.add_(random_tensor(p.tensor.sizes().vec(), seed++, p.tensor.scalar_type(), 0.1));
  model.weights_changed();
}

class PeftOracle {
 public:
  explicit PeftOracle(const Path& file) : file_(SafetensorsFile::open(default_env(), file).value()) {}
  at::Tensor tensor(const std::string& name) const {
    const auto view = file_.get(name);
    EXPECT_TRUE(view.ok()) << name;
    if (!view.ok()) return at::tensor({0.0}, at::kDouble);
    return at::from_blob(const_cast<std::byte*>(view->bytes.data()), view->shape,
                         at::TensorOptions().dtype(at::kDouble));
  }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

 private:
  SafetensorsFile file_;
};

Model adapted_model(const PeftCase& one) {
  Model model = *Model::load(default_env(), base_of(one), "float64");
  const auto started = one.one_by_one ? model.train_lora(default_env(), peft_scratch() / one.name / "ours")
                                      : model.train_lora(one.choice, 5);
  EXPECT_TRUE(started.ok()) << started.error().to_string();
  if (one.one_by_one) return model;
  if (one.fresh.is_null()) disturb(model);
  return model;
}

void compare_with_peft(const PeftCase& one, const Fixture& setup) {
  SCOPED_TRACE(one.name);
  const Path here = peft_scratch() / one.name;
  const PeftOracle theirs(here / "theirs.safetensors");
  Model model = adapted_model(one);
  const PackedBatch batch = *pack_rows(setup.rows(), {.vocab_size = 23});
  EXPECT_LT(relative_l2(peft_pass(model, batch, true), theirs.tensor("before/log_prob")), one.tolerance);
  for (const NamedParameter& p : model.trainable()) {
    // The factors of a singular value decomposition have free signs; a converted adapter has other factors.
    if (changes_base(one.choice.init)) break;
    EXPECT_LT(relative_l2(p.tensor.grad(), theirs.tensor("before/" + p.name)), one.tolerance) << p.name;
  }
  // An adapter of twice the rank descends on other paths.
  if (!changes_base(one.choice.init) || !one.fresh.is_null()) {
    descend(model, batch);
    EXPECT_LT(relative_l2(peft_pass(model, batch, false), theirs.tensor("after/log_prob")), one.tolerance);
  }
  // Their folder, merged and continued.
  Model merged = Model::load(default_env(), here / "theirs", "float64").value();
  EXPECT_LT(relative_l2(peft_pass(merged, batch, false), theirs.tensor("after/log_prob")), one.tolerance);
  Model again = *Model::load(default_env(), base_of(one), "float64");
  const auto loaded = again.train_lora(default_env(), here / "theirs");
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_LT(relative_l2(peft_pass(again, batch, false), theirs.tensor("after/log_prob")), one.tolerance);
}

// An adapter as PEFT saved it with transformers 4: A and B of every expert, and of the router.
void save_one_by_one(const PeftCase& one, const Model& base, const Path& folder) {
  const bool is_mixtral = one.golden == "mixtral";
  const Json modules = is_mixtral ? Json::array({"q_proj", "w1", "w2", "w3", "gate"})
                                  : Json::array({"q_proj", "gate_proj", "up_proj", "down_proj"});
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  uint64_t seed = 900;
  for (const NamedParameter& p : base.parameters()) {
    const std::string module = p.name.substr(0, p.name.rfind('.'));
    const std::string last = module.substr(module.rfind('.') + 1);
    const bool is_dense = !is_mixtral && last != "q_proj" && module.find(".experts.") == std::string::npos;
    if (is_dense || std::find(modules.begin(), modules.end(), Json(last)) == modules.end() || p.tensor.dim() != 2)
      continue;
    tensors.emplace_back("base_model.model." + module + ".lora_A.weight",
                         random_tensor({2, p.tensor.size(1)}, seed++, at::kDouble, 0.3));
    tensors.emplace_back("base_model.model." + module + ".lora_B.weight",
                         random_tensor({p.tensor.size(0), 2}, seed++, at::kDouble, 0.3));
  }
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    views.push_back({name, DType::kF64, tensor.sizes().vec(), {bytes, tensor.nbytes()}});
  }
  const Json config = {
      {"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}, {"base_model_name_or_path", (base_of(one)).string()}, {"r", 2},
      {"lora_alpha", 4},     {"target_modules", modules}};
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(write_file(default_env(), folder / "adapter_config.json", dump_json(config, 1)).ok());
  ASSERT_TRUE(write_safetensors_file(default_env(), folder / "adapter_model.safetensors", views).ok());
}

void train_as_peft(const std::vector<PeftCase>& all) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: PEFT did not check the variants";
  const Path folder = peft_scratch();
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  Json cases = Json::array();
  for (const PeftCase& one : all) {
    const Fixture setup = make_setup(Family::kQwen2, one.tied);
    if (one.golden.empty()) {
      ASSERT_TRUE(setup.model.save(default_env(), base_of(one), {.dtype = "float64"}).ok());
    }
    if (cases.empty()) write_rows(setup, folder / "rows.safetensors");
    std::filesystem::create_directories(folder / one.name);
    cases.push_back({{"name", one.name},
                     {"base", base_of(one).string()},
                     {"fresh", one.fresh},
                     {"rate", kRate},
                     {"steps", kSteps}});
    if (!one.fresh.is_null()) continue;
    if (one.one_by_one) {
      save_one_by_one(one, *Model::load(default_env(), base_of(one)), folder / one.name / "ours");
      continue;
    }
    const Model model = adapted_model(one);
    const SaveOptions save{.dtype = "float64", .lora = LoraSave::kApart, .base_model = base_of(one).string()};
    ASSERT_TRUE(model.save(default_env(), folder / one.name / "ours", save).ok());
  }
  ASSERT_TRUE(write_file(default_env(), folder / "cases.json", dump_json(cases, 1)).ok());
  const Path script = Path(MORTISE_SOURCE_DIR) / "tests/unit/model/peft_variants_oracle.py";
  ASSERT_EQ(test::PythonScripts::run(python, script, folder), 0);
  for (const PeftCase& one : all) compare_with_peft(one, make_setup(Family::kQwen2, one.tied));
}

TEST(LoraPeft, VariantsAndExpertsTrainAsInPeft) {
  std::vector<PeftCase> all = peft_cases();
  for (PeftCase& one : mixture_cases()) all.push_back(std::move(one));
  train_as_peft(all);
}

}  // namespace
}  // namespace mortise
