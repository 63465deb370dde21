// The cases of tests/golden/replay in bfloat16. A run with bfloat16 weights does not keep to TRL's numbers, but the models
// that both end with give the samples' tokens much the same probabilities: the mean difference is a share of how far the
// run moved them. MORTISE_TEST_DEVICE=NAME runs them on that model.device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "foundation/formats/safetensors.h"
#include "replay_run.h"
#include "support/test_device.h"

namespace mortise {
namespace {

namespace fs = std::filesystem;

// `most` is about three times what a CPU gives. gspo clips at 3e-4, less than bfloat16 resolves.
struct Bfloat16Case {
  const char* name;
  double most;
};
void PrintTo(const Bfloat16Case& test, std::ostream* out) { *out << test.name; }

class ReplayBfloat16 : public testing::TestWithParam<Bfloat16Case> {
 protected:
  void SetUp() override {
    folder_ = fs::path(MORTISE_SOURCE_DIR) / "tests/golden/replay" / GetParam().name;
    run_dir_ = test::fresh_run_folder(std::string(GetParam().name) + "_bfloat16");
    params_ = read_json_file(default_env(), folder_ / "params.json").value();
    write_tokens();
  }

  // The samples as rows of a matrix, padded at the end.
  void write_tokens() {
    std::vector<std::vector<int64_t>> rows;
    size_t width = 0;
    for (const Json& sample : test::read_lines(folder_ / "samples.jsonl")) {
      const auto prompt = sample["prompt_token_ids"].get<std::vector<int64_t>>();
      for (const Json& completion : sample["completions"]) {
        std::vector<int64_t>& row = rows.emplace_back(prompt);
        for (const Json& id : completion) row.push_back(id.get<int64_t>());
        width = std::max(width, row.size());
        prompt_sizes_.push_back(prompt.size());
        sizes_.push_back(row.size());
      }
    }
    std::vector<int64_t> ids, mask;
    for (std::vector<int64_t>& row : rows) {
      for (size_t t = 0; t < width; ++t) {
        ids.push_back(t < row.size() ? row[t] : 0);
        mask.push_back(t < row.size() ? 1 : 0);
      }
    }
    const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(width)};
    const std::vector<TensorView> tensors = {view_of<int64_t>("in.attention_mask", mask, shape),
                                             view_of<int64_t>("in.input_ids", ids, shape)};
    ASSERT_TRUE(write_safetensors_file(default_env(), run_dir_ / "in.safetensors", tensors).ok());
  }

  // The probabilities that a model gives the tokens of the completions.
  [[nodiscard]] std::vector<double> probabilities(const fs::path& model) {
    const fs::path out = run_dir_ / "out.safetensors";
    EXPECT_EQ(test::run_program("model logprob --model " + model.string() + " --inputs " +
                                    (run_dir_ / "in.safetensors").string() + " --outputs " + out.string(),
                                run_dir_ / "logprob.txt"),
              "");
    const auto file = SafetensorsFile::open(default_env(), out).value();
    const TensorView log_prob = file.get("log_prob").value();
    const auto width = static_cast<size_t>(log_prob.shape.back());
    std::vector<double> values;
    for (size_t row = 0; row < sizes_.size(); ++row) {
      // Column t is the token t + 1: the first token has no log-prob.
      for (size_t t = prompt_sizes_[row]; t < sizes_[row]; ++t)
        values.push_back(std::exp(static_cast<double>(log_prob.as<float>()[row * width + t - 1])));
    }
    return values;
  }

  static double mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
    return sum / static_cast<double>(a.size());
  }

  fs::path folder_, run_dir_;
  Json params_;
  std::vector<size_t> prompt_sizes_, sizes_;
};

TEST_P(ReplayBfloat16, EndsWithTrlsProbabilities) {
  const test::ReplayCase run{GetParam().name, 3, true};
  ASSERT_EQ(test::write_run(run, params_, folder_, run_dir_), "");
  const std::string device = test::named_device().empty() ? "" : " model.device=" + test::named_device();
  ASSERT_EQ(test::run_program("train " + (run_dir_ / "run.toml").string() + " model.dtype=bfloat16" + device,
                              run_dir_ / "console.txt"),
            "");
  const fs::path theirs = run_dir_ / "theirs";
  fs::copy(folder_ / "model", theirs);
  fs::copy_file(folder_ / "final.safetensors", theirs / "model.safetensors", fs::copy_options::overwrite_existing);
  const std::string step = "global_step_" + params_["derived"]["generation_batches"].dump();

  const std::vector<double> expected = probabilities(theirs);
  const double moved = mean_difference(probabilities(folder_ / "model"), expected);
  const double away = mean_difference(probabilities(run_dir_ / "out" / step / "huggingface"), expected);
  std::printf("%s: the run moved probabilities by %.2e on average; bfloat16 differs by %.2e\n", GetParam().name, moved,
              away);
  EXPECT_GT(moved, 1e-3);
  EXPECT_LT(away, GetParam().most * moved);
}

// Those whose final parameters are kept whole.
INSTANTIATE_TEST_SUITE_P(Cases, ReplayBfloat16,
                         testing::Values(Bfloat16Case{"grpo", 0.05}, Bfloat16Case{"dapo_accumulation", 0.05},
                                         Bfloat16Case{"grpo_kl", 0.2}, Bfloat16Case{"gspo", 0.5}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace mortise
