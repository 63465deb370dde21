// Dropout of adapters: masks that depend on the token alone, gradients of both layer paths, and PEFT's numbers under the
// same masks. PEFT's test needs a Python with it in MORTISE_ORACLES_PYTHON; without it the test is skipped, aloud.
#include "model/layers/lora_dropout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <filesystem>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "gradient_fixture.h"
#include "support/python_scripts.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

constexpr double kProbability = 0.3;

Fixture adapted(Family family, bool tied, double probability = kProbability) {
  Fixture setup = make_setup(family, tied);
  start_adapter(setup.model, {.rank = 3, .alpha = 6.0, .dropout = probability});
  return setup;
}

// Rows with their places in the step.
std::vector<PackRow> numbered(const Fixture& setup) {
  std::vector<PackRow> rows = setup.rows();
  for (size_t i = 0; i < rows.size(); ++i) rows[i].row_id = static_cast<int64_t>(i);
  return rows;
}

LoraDropout dropout_of(const PackedBatch& batch, uint64_t update = 1) {
  return {kProbability, 17, update, batch.owners_N, batch.positions_N};
}

struct Pass {
  LayerPath path = LayerPath::kFast;
  int64_t recomputed_layers = 0;
  int64_t first_target = 0;  // the batch's first target among the targets of all rows
};

// Adds the gradients of sum(probe * hidden of the predictors), with a probe of its own for each target.
void add_gradients(Model& model, const PackedBatch& batch, const Pass& pass) {
  ForwardOptions options;
  options.path = pass.path;
  options.recomputed_layers = pass.recomputed_layers;
  options.lora_dropout = dropout_of(batch);
  const at::Tensor rows = model.forward_hidden(batch, options).index_select(0, batch.predict_index_R);
  rows.backward(random_tensor({64, rows.size(1)}, 77).narrow(0, pass.first_target, rows.size(0)));
}

std::vector<at::Tensor> take_gradients(Model& model) {
  std::vector<at::Tensor> out;
  for (const NamedParameter& p : model.trainable()) out.push_back(p.tensor.grad().clone());
  model.zero_grad();
  return out;
}

std::vector<at::Tensor> gradients(Model& model, const PackedBatch& batch, const Pass& pass = {}) {
  model.zero_grad();
  add_gradients(model, batch, pass);
  return take_gradients(model);
}

double worst_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_GT(b[i].abs().max().item<double>(), 0.0) << i;
    worst = std::max(worst, relative_l2(a[i], b[i]));
  }
  return worst;
}

at::Tensor filled(int64_t size, int64_t value) { return at::full({size}, value, at::kLong); }

TEST(LoraDropout, DropsTheShareAndKeepsTheMean) {
  const at::Tensor x = at::ones({400, 203}, at::kDouble);  // not a multiple of the blocks
  at::Tensor positions = filled(400, 0);
  for (int64_t i = 0; i < 400; ++i) positions.mutable_data_ptr<int64_t>()[i] = i;
  const LoraDropout dropout{kProbability, 3, 8, filled(400, 5), positions};
  const at::Tensor dropped = lora_dropped(x, dropout, 2);
  const double num = static_cast<double>(x.numel());
  const double share = dropped.eq(0.0).sum().item<double>() / num;
  const double five_deviations = 5.0 * std::sqrt(kProbability * (1.0 - kProbability) / num);
  EXPECT_NEAR(share, kProbability, five_deviations);
  EXPECT_NEAR(dropped.mean().item<double>(), 1.0, five_deviations / (1.0 - kProbability));
  EXPECT_EQ(dropped.max().item<double>(), 1.0 / (1.0 - kProbability));
  EXPECT_CLOSE(lora_dropout_change(x, dropout, 2), dropped - x, 1e-15);
  // No row and no feature is treated unlike the others.
  const at::Tensor by_feature = dropped.eq(0.0).to(at::kDouble).mean(0),
                   by_row = dropped.eq(0.0).to(at::kDouble).mean(1);
  EXPECT_LT((by_feature - kProbability).abs().max().item<double>(), 5.0 * std::sqrt(0.21 / 400));
  EXPECT_LT((by_row - kProbability).abs().max().item<double>(), 5.0 * std::sqrt(0.21 / 203));
}

// Ranks that share a matrix have some of its features each.
TEST(LoraDropout, SomeFeaturesHaveTheMaskThatTheyHaveAmongAll) {
  const at::Tensor x = at::ones({6, 203}, at::kDouble);
  const LoraDropout dropout{kProbability, 3, 8, filled(6, 5), filled(6, 2)};
  const at::Tensor all = lora_dropped(x, dropout, 2);
  for (const int64_t begin : {0, 1, 31, 32, 33, 64, 100, 202}) {
    for (const int64_t width : {1, 31, 32, 70, 203}) {
      if (begin + width > 203) continue;
      const at::Tensor some = x.narrow(1, begin, width).contiguous();
      EXPECT_CLOSE(lora_dropped(some, dropout, 2, begin), all.narrow(1, begin, width), 0.0);
      EXPECT_CLOSE(lora_dropout_change(some, dropout, 2, begin), (all - x).narrow(1, begin, width), 1e-15);
    }
  }
}

TEST(LoraDropout, EveryPartOfTheCountMatters) {
  const at::Tensor x = at::ones({1, 256}, at::kDouble);
  const auto mask = [&](uint64_t seed, uint64_t update, int64_t owner, int64_t position, int64_t module) {
    return lora_dropped(x, {0.5, seed, update, filled(1, owner), filled(1, position)}, module).eq(0.0).to(at::kDouble);
  };
  const at::Tensor first = mask(1, 1, 1, 1, 1);
  EXPECT_CLOSE(first, mask(1, 1, 1, 1, 1), 0.0);
  for (const at::Tensor& other : {mask(2, 1, 1, 1, 1), mask(1, 2, 1, 1, 1), mask(1, 1, 2, 1, 1), mask(1, 1, 1, 2, 1),
                                  mask(1, 1, 1, 1, 2), mask(1, 1, (int64_t{1} << 32) + 1, 1, 1)}) {
    const double differ = (first - other).abs().mean().item<double>();
    EXPECT_NEAR(differ, 0.5, 0.16);  // five deviations
  }
  // A wider input has the same mask where both are.
  const at::Tensor wide = lora_dropped(at::ones({1, 300}, at::kDouble), {0.5, 1, 1, filled(1, 1), filled(1, 1)}, 1);
  EXPECT_CLOSE(wide.narrow(1, 0, 256).eq(0.0).to(at::kDouble), first, 0.0);
}

// The product is linear in the mask, so its mean over updates is the product without dropout.
TEST(LoraDropout, TheMeanOverManyUpdatesIsTheProductWithoutDropout) {
  LoraMatrix part;
  part.a_RI = random_tensor({4, 40}, 1);
  part.b_OR = random_tensor({24, 4}, 2);
  part.base_OI = random_tensor({24, 40}, 3);
  part.scale = 0.5;
  const at::Tensor merged = part.base_OI + part.b_OR.matmul(part.a_RI) * part.scale;
  const at::Tensor x = random_tensor({3, 40}, 4);
  at::Tensor sum = at::zeros({3, 24}, at::kDouble), squares = at::zeros({3, 24}, at::kDouble);
  const at::Tensor none = lora_linear(x, merged, merged, {}, std::span(&merged, 1), {}, std::span(&part, 1));
  constexpr int kUpdates = 3000;
  for (int update = 1; update <= kUpdates; ++update) {
    const LoraDropout dropout{kProbability, 9, static_cast<uint64_t>(update), filled(3, 1), filled(3, 0)};
    const at::Tensor change =
        lora_linear(x, merged, merged, {}, std::span(&merged, 1), {}, std::span(&part, 1), &dropout) - none;
    sum += change;
    squares += change * change;
  }
  const at::Tensor deviation = (squares / kUpdates).sqrt();
  EXPECT_GT(deviation.min().item<double>(), 0.1);
  EXPECT_LT((sum / kUpdates / deviation).abs().max().item<double>(), 5.0 / std::sqrt(kUpdates));
}

class DropoutFamilies : public testing::TestWithParam<std::pair<Family, bool>> {};

TEST_P(DropoutFamilies, FastEqualsPlain) {
  Fixture setup = adapted(GetParam().first, GetParam().second);
  const PackedBatch batch = *pack_rows(numbered(setup), {.vocab_size = 23});
  ForwardOptions fast, plain, none;
  fast.lora_dropout = plain.lora_dropout = dropout_of(batch);
  plain.path = LayerPath::kPlain;
  const at::Tensor hidden = setup.model.forward_hidden(batch, fast);
  EXPECT_CLOSE(hidden, setup.model.forward_hidden(batch, plain), 1e-10);
  EXPECT_GT(max_difference(hidden, setup.model.forward_hidden(batch, none)), 1e-3);
  {
    const at::NoGradGuard no_grad;  // log-probs of a whole update are measured so
    EXPECT_CLOSE(setup.model.forward_hidden(batch, fast), hidden, 0.0);
  }
  EXPECT_LT(worst_difference(gradients(setup.model, batch), gradients(setup.model, batch, {LayerPath::kPlain})), 1e-10);
}

// One micro-batch or one for each row; prompts shared or apart; layers kept or computed again.
TEST_P(DropoutFamilies, GradientsDoNotDependOnTheSplit) {
  Fixture setup = adapted(GetParam().first, GetParam().second);
  const std::vector<PackRow> rows = numbered(setup);
  const PackedBatch shared = *pack_rows(rows, {.vocab_size = 23});
  const auto whole = gradients(setup.model, shared);
  const PackedBatch apart = *pack_rows(rows, {.share_prefix = false, .vocab_size = 23});
  EXPECT_LT(worst_difference(gradients(setup.model, apart), whole), 1e-12);
  setup.model.zero_grad();
  Pass pass;
  for (const PackRow& row : rows) {
    const PackedBatch one = *pack_rows(std::span(&row, 1), {.vocab_size = 23});
    add_gradients(setup.model, one, pass);
    pass.first_target += one.num_targets();
  }
  EXPECT_LT(worst_difference(take_gradients(setup.model), whole), 1e-12);
  const auto again = gradients(setup.model, shared, {LayerPath::kFast, 2});
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_CLOSE(again[i], whole[i], 0.0);
}

INSTANTIATE_TEST_SUITE_P(Families, DropoutFamilies,
                         testing::Values(std::pair{Family::kQwen2, true}, std::pair{Family::kGemma3, false},
                                         std::pair{Family::kPhi3, false}));

// rsLoRA: alpha / sqrt(rank); the reader of adapters merges by what the file says.
TEST(LoraDropout, AScaleByTheRootOfTheRankIsSavedToo) {
  const Path base = Path(MORTISE_SOURCE_DIR) / "tests/golden/models/qwen2_tied";
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch/lora_dropout_test/rslora";
  fs::remove_all(folder);
  Model model = *Model::load(default_env(), base);
  ASSERT_TRUE(model.train_lora({.rank = 4, .alpha = 3.0, .use_rslora = true}, 1).ok());
  {
    const at::NoGradGuard no_grad;
    for (const NamedParameter& p : model.trainable())
      p.tensor.add_(random_tensor(p.tensor.sizes().vec(), 3, p.tensor.scalar_type(), 0.2));
    model.weights_changed();
  }
  const Model before = *Model::load(default_env(), base);
  const at::Tensor a = model.trainable()[0].tensor.detach(), b = model.trainable()[1].tensor.detach();
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_CLOSE(model.find_parameter(name)->tensor, before.find_parameter(name)->tensor + b.matmul(a) * 1.5, 1e-5);
  ASSERT_TRUE(model.save(default_env(), folder, {.lora = LoraSave::kApart, .base_model = base.string()}).ok());
  const Model merged = *Model::load(default_env(), folder);
  EXPECT_CLOSE(merged.find_parameter(name)->tensor, model.find_parameter(name)->tensor, 1e-6);
}

TEST(LoraDropout, IsSavedAndReadBack) {
  const Path base = Path(MORTISE_SOURCE_DIR) / "tests/golden/models/qwen2_tied";
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch/lora_dropout_test/saved";
  fs::remove_all(folder);
  Model model = *Model::load(default_env(), base);
  EXPECT_EQ(model.lora_dropout(), 0.0);
  ASSERT_TRUE(model.train_lora({.rank = 2, .alpha = 4.0, .dropout = 0.05}, 1).ok());
  EXPECT_EQ(model.lora_dropout(), 0.05);
  ASSERT_TRUE(model.save(default_env(), folder, {.lora = LoraSave::kApart, .base_model = base.string()}).ok());
  EXPECT_EQ((*read_json_file(default_env(), folder / "adapter_config.json"))["lora_dropout"], 0.05);
  Model again = *Model::load(default_env(), base);
  ASSERT_TRUE(again.train_lora(default_env(), folder).ok());
  EXPECT_EQ(again.lora_dropout(), 0.05);
}

// What the script gets: the rows, the probes, and for every row and matrix what the input of A is multiplied by.
class OracleCase {
 public:
  explicit OracleCase(const Fixture& setup) {
    int64_t target = 0;
    const std::vector<PackRow> rows = numbered(setup);
    for (const PackRow& row : rows) {
      const std::string at = "row" + std::to_string(row.row_id) + "/";
      const auto prompt = static_cast<int64_t>(row.prompt_ids.size());
      const auto response = static_cast<int64_t>(row.response_ids.size());
      std::vector<int64_t> ids(row.prompt_ids.begin(), row.prompt_ids.end());
      ids.insert(ids.end(), row.response_ids.begin(), row.response_ids.end());
      add(at + "ids", at::tensor(ids, at::kLong));
      add(at + "probe", random_tensor({64}, 77).narrow(0, target, response).contiguous());
      target += response;
      LoraDropout dropout{kProbability, 17, 1, {}, {}};
      dropout.owners_N = at::cat({filled(prompt, token_owner(row, true)), filled(response, token_owner(row, false))});
      dropout.positions_N = at::arange(prompt + response, at::kLong);
      const std::vector<NamedParameter>& adapter = setup.model.trainable();
      for (size_t i = 0; i < adapter.size(); i += 2) {
        const at::Tensor ones = at::ones({prompt + response, adapter[i].tensor.size(1)}, at::kDouble);
        const std::string module = adapter[i].name.substr(0, adapter[i].name.find(".lora_A"));
        add(at + module, lora_dropped(ones, dropout, static_cast<int64_t>(i / 2)));
      }
    }
  }

  void write(const Path& path) const {
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors_) {
      const bool is_ids = tensor.scalar_type() == at::kLong;
      const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
      views.push_back({name, is_ids ? DType::kI64 : DType::kF64, tensor.sizes().vec(), {bytes, tensor.nbytes()}});
    }
    ASSERT_TRUE(write_safetensors_file(default_env(), path, views).ok());
  }

 private:
  void add(const std::string& name, at::Tensor tensor) { tensors_.emplace_back(name, std::move(tensor)); }
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

TEST(LoraDropout, GivesPeftsGradientsUnderTheSameMasks) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: PEFT did not check the gradients";
  const Path folder = Path(MORTISE_BINARY_DIR) / "scratch/lora_dropout_test/oracle";
  fs::remove_all(folder);
  Fixture setup = adapted(Family::kQwen2, true);
  const Model base = setup.model.base_view();
  ASSERT_TRUE(base.save(default_env(), folder / "base", {.dtype = "float64"}).ok());
  const SaveOptions apart{.dtype = "float64", .lora = LoraSave::kApart, .base_model = (folder / "base").string()};
  ASSERT_TRUE(setup.model.save(default_env(), folder / "adapter", apart).ok());
  OracleCase(setup).write(folder / "case.safetensors");
  const Path script = Path(MORTISE_SOURCE_DIR) / "tests/unit/model/peft_dropout_oracle.py";
  ASSERT_EQ(test::PythonScripts::run(python, script, folder), 0);

  const PackedBatch batch = *pack_rows(numbered(setup), {.vocab_size = 23});
  ForwardOptions options;
  options.lora_dropout = dropout_of(batch);
  const at::Tensor rows = setup.model.forward_hidden(batch, options).index_select(0, batch.predict_index_R);
  const LogProbs probs = head_log_prob(rows.detach().contiguous(), setup.model.head(), batch.targets_R, 1.0, false);
  const at::Tensor d_rows = at::empty_like(rows);
  const at::Tensor probe = random_tensor({64}, 77).narrow(0, 0, batch.num_targets()).contiguous();
  head_backward(rows.detach().contiguous(), setup.model.head(), batch.targets_R, 1.0, probe, {}, d_rows,
                setup.model.head_grad());
  rows.backward(d_rows);
  const auto theirs = SafetensorsFile::open(default_env(), folder / "theirs.safetensors").value();
  const auto tensor = [&](const std::string& name) {
    const TensorView view = theirs.get(name).value();
    return at::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, at::TensorOptions().dtype(at::kDouble));
  };
  EXPECT_LT(relative_l2(probs.log_prob_R, tensor("log_prob")), 1e-11);
  for (const NamedParameter& p : setup.model.trainable())
    EXPECT_LT(relative_l2(p.tensor.grad(), tensor(p.name)), 1e-10) << p.name;
}

}  // namespace
}  // namespace mortise
