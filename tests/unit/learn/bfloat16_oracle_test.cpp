// Fifty updates of AdamW with model.dtype = "bfloat16" against torch: a bfloat16 model of transformers with float32
// masters, and autocast. Needs a Python with them in MORTISE_ORACLES_PYTHON; without it the test is skipped, aloud.
//
// No two of these round in the same places, so their runs drift apart. The scale of that is how far torch's own two
// are from its float32 run. Mortise rounds what enters the products of the layers; torch rounds their results too, and
// as a bfloat16 model also norms, the residual sums and the logits. Mortise must therefore be the nearest to float32,
// and no further from either of torch's than these are from float32 and each other.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "learn/update/sft_learner.h"
#include "learner_fixture.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

constexpr int64_t kOracleUpdates = 50, kOracleVocab = 61, kPrompt = 4, kRowTokens = 20, kRows = 6;

using Weights = std::map<std::string, at::Tensor>;

struct Trained {
  std::vector<double> losses;
  Weights weights;
};

std::vector<std::vector<int64_t>> oracle_tokens() {
  RandomStream stream({13, RandomPurpose::kTest, 0, 0, 0});
  std::vector<std::vector<int64_t>> rows(kRows);
  for (auto& row : rows) {
    for (int64_t t = 0; t < kRowTokens; ++t) row.push_back(static_cast<int64_t>(stream.next_below(kOracleVocab)));
  }
  return rows;
}

StepTable oracle_table(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<TableRow> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const int64_t> ids = rows[i];
    out.push_back({ids.first(kPrompt), ids.subspan(kPrompt), static_cast<int64_t>(i)});
  }
  StepTable table(std::move(out));
  table.put<column::ResponseMask>(std::vector<uint8_t>(kRows * (kRowTokens - kPrompt), 1));
  return table;
}

Trained run_updates(const Path& folder, const std::string& dtype) {
  Model model = Model::load(default_env(), folder, dtype).value();
  AdamW optimizer(TestPolicy::parameters(model), {});
  const auto rows = oracle_tokens();
  const StepTable table = oracle_table(rows);
  LearnerOptions options;
  options.grad_clip = 0.0;
  Trained out;
  for (int64_t update = 1; update <= kOracleUpdates; ++update)
    out.losses.push_back(sft_update(model, optimizer, table, options, {1e-3, update}).value().loss);
  for (const NamedParameter& p : model.parameters()) out.weights[p.name] = p.tensor.detach().clone();
  return out;
}

// || all weights of a - those of b || / || those of b - the start ||.
double weight_distance(const Weights& a, const Weights& b, const Weights& origin) {
  double off = 0.0, moved = 0.0;
  for (const auto& [name, weights] : b) {
    off += std::pow(at::linalg_vector_norm(a.at(name) - weights).item<double>(), 2);
    moved += std::pow(at::linalg_vector_norm(weights - origin.at(name)).item<double>(), 2);
  }
  return std::sqrt(off / moved);
}

double largest_gap(const Trained& a, const Trained& b) {
  double gap = 0.0;
  for (size_t i = 0; i < a.losses.size(); ++i) gap = std::max(gap, std::abs(a.losses[i] - b.losses[i]));
  return gap;
}

std::map<std::string, Trained> read_oracle(const Path& file, const Weights& names) {
  const SafetensorsFile opened = SafetensorsFile::open(default_env(), file).value();
  std::map<std::string, Trained> out;
  for (const TensorView& view : opened.tensors()) {
    const size_t dot = view.name.find('.');
    Trained& way = out[view.name.substr(0, dot)];
    const std::string name = view.name.substr(dot + 1);
    std::vector<float> numbers(view.bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), view.bytes.data(), view.bytes.size());
    if (name == "losses") {
      way.losses.assign(numbers.begin(), numbers.end());
    } else if (names.contains(name)) {
      way.weights[name] = at::empty(view.shape, at::kFloat);
      std::memcpy(way.weights[name].mutable_data_ptr(), numbers.data(), view.bytes.size());
    }
  }
  return out;
}

TEST(Bfloat16Oracle, FiftyUpdatesStayAsNearToFloat32AsTorchs) {
  const char* const python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: torch has not judged training in bfloat16";
  at::set_num_threads(1);
  const test::TempDir dir;
  const Model origin_model = two_layer_model(kOracleVocab, "float32");
  ASSERT_OK(origin_model.save(default_env(), dir.path() / "model", {}));
  Weights origin;
  for (const NamedParameter& p : origin_model.parameters()) origin[p.name] = p.tensor.detach().clone();
  Json problem;
  problem["prompt_length"] = kPrompt;
  problem["rows"] = oracle_tokens();
  ASSERT_OK(write_file(default_env(), dir.path() / "rows.json", dump_json(problem)));
  const std::string command = "'" + std::string(python) + "' '" + MORTISE_SOURCE_DIR +
                              "/tests/unit/learn/bfloat16_oracle.py' '" + (dir.path() / "model").string() + "' '" +
                              (dir.path() / "rows.json").string() + "' '" + (dir.path() / "out.safetensors").string() +
                              "' 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto theirs = read_oracle(dir.path() / "out.safetensors", origin);
  const Trained exact = run_updates(dir.path() / "model", "float32"),
                rounded = run_updates(dir.path() / "model", "bfloat16");
  const Trained& float32 = theirs.at("float32");
  ASSERT_EQ(float32.losses.size(), exact.losses.size());
  ASSERT_EQ(float32.weights.size(), origin.size());
  // The problem is the same, and it is learnt.
  EXPECT_LT(weight_distance(exact.weights, float32.weights, origin), 1e-3);
  EXPECT_LT(rounded.losses.back(), 0.5 * rounded.losses.front());

  const double ours = weight_distance(rounded.weights, exact.weights, origin);
  EXPECT_GT(ours, 1e-4) << "nothing was rounded";
  double widest = 0.0;
  for (const char* way : {"bfloat16", "autocast"}) {
    const Trained& other = theirs.at(way);
    const double its_own = weight_distance(other.weights, float32.weights, origin);
    const double between = weight_distance(rounded.weights, other.weights, origin);
    EXPECT_LT(ours, its_own) << way;
    EXPECT_LT(between, 1.5 * its_own) << way;  // two independent errors: at most the root of the sum of their squares
    EXPECT_LT(largest_gap(rounded, other), 2.0 * largest_gap(other, float32) + 1e-3) << way;
    widest = std::max(widest, its_own);
  }
  EXPECT_LT(widest, 0.5) << "torch's own distance says nothing";
}

}  // namespace
}  // namespace mortise
