// The gradient of an update, its loss and its metrics do not depend on the split of its rows. Tests every built-in
// policy loss x every aggregation x every split, in float32 to 1e-5 and in float64 to 1e-12 relative L2 of each
// parameter.
//
// docs/split_invariance.md shows the results. MORTISE_WRITE_DOCS=1 writes its table (with MORTISE_LONG=1: over all
// splits of every cell). A plain run checks that the table has all losses and aggregations.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "foundation/batch/token_weight.h"
#include "learn/update/sft_learner.h"
#include "learner_fixture.h"

namespace mortise {
namespace {

// The 9 rows with an advantage are two groups, so passes of 3 contain parts of both.
constexpr RowsShape kShape{.vocab = 17, .groups = 3, .samples = 5, .max_length = 12};
constexpr double kTolerance32 = 1e-5, kTolerance64 = 1e-12;

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string_view(value) != "" && std::string_view(value) != "0";
}

struct Split {
  const char* name;
  MicroBatchOptions cut;
  bool padded = false;        // rows of one length, masked at their ends
  bool share_prompts = true;  // false: the prompt of a group is computed for each of its rows
  bool small_chunks = false;  // the head's chunks end inside rows
  bool recompute = false;     // layers are computed again in backward
};

const Split kWhole{"all rows", {1000, 0}};
const Split kSplits[] = {
    {"1 row", {1, 0}},
    {"2 rows", {2, 0}},
    {"3 rows, groups cut", {3, 0}},
    {"6 rows, computed again", {6, 0}, false, true, false, true},
    {"24 tokens", {0, 24}},
    {"60 tokens, small chunks", {0, 60}, false, true, true},
    {"all rows, padded", {1000, 0}, true},
    {"3 rows, padded, prompts apart", {3, 0}, true, false},
    {"all rows, prompts apart, small chunks", {1000, 0}, false, false, true},
};

struct LossCase {
  std::string name;
  std::vector<std::string> overrides;
  bool on_policy = false;
};

// Settings under which so few rows reach every branch of a loss.
std::vector<std::string> own_settings(const std::string& loss) {
  const std::string table = "actor.policy_loss.";
  if (loss == "dro") return {table + "dro_beta=0.2"};
  if (loss == "clip_cov") return {table + "clip_cov_ratio=0.2", table + "clip_cov_lb=0.02"};
  if (loss == "kl_cov") return {table + "kl_cov_ratio=0.1"};
  if (loss == "m2po") return {table + "m2_threshold=0.01"};
  return {};
}

std::vector<LossCase> all_cases() {
  std::vector<LossCase> cases;
  const PluginRegistry& registry = shared_builtin_packs();
  for (const Candidate& pack : registry.candidates()) {
    for (const PluginInfo& plugin : pack.info.plugins) {
      if (short_kind(plugin.kind) != "policy_loss") continue;
      LossCase& loss = cases.emplace_back();
      loss.name = plugin.name;
      loss.overrides = own_settings(plugin.name);
      loss.overrides.push_back("actor.policy_loss.loss_mode=" + plugin.name);
    }
  }
  std::sort(cases.begin(), cases.end(), [](const LossCase& a, const LossCase& b) { return a.name < b.name; });
  cases.push_back({"vanilla, on-policy", {"actor.policy_loss.loss_mode=vanilla"}, true});
  cases.push_back({"gspo, on-policy", {"actor.policy_loss.loss_mode=gspo"}, true});
  cases.push_back({"vanilla, KL and entropy terms",
                   {"actor.policy_loss.loss_mode=vanilla", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.3",
                    "actor.entropy_coeff=0.05"}});
  // This term, together with losses that look at single tokens and with losses that look at the whole update.
  for (const char* loss : {"vanilla", "kl_cov"}) {
    LossCase& full = cases.emplace_back();
    full.name = std::string(loss) + ", KL over the whole vocabulary";
    full.overrides = own_settings(loss);
    full.overrides.insert(full.overrides.end(),
                          {std::string("actor.policy_loss.loss_mode=") + loss, "actor.use_kl_loss=true",
                           "actor.kl_loss_coef=0.3", "actor.kl_loss_type=full"});
  }
  // Counts all rows, also the empty one, and divides only by a constant.
  cases.push_back({"vanilla, loss_agg_rows all, not by rows",
                   {"actor.policy_loss.loss_mode=vanilla", "actor.loss_agg_rows=all", "actor.loss_scale_by_rows=false",
                    "actor.loss_scale_factor=7"}});
  cases.push_back({"reinforce, corrected in each update",
                   {"actor.policy_loss.loss_mode=reinforce", "algorithm.rollout_correction.bypass_mode=true",
                    "algorithm.rollout_correction.loss_type=reinforce", "algorithm.rollout_correction.rollout_is=token",
                    "algorithm.rollout_correction.rollout_is_batch_normalize=true",
                    "algorithm.rollout_correction.rollout_rs=seq_mean_k3",
                    "algorithm.rollout_correction.rollout_rs_threshold=0.02"}});
  cases.push_back(
      {"vanilla, top_entropy_quantile 0.4", {"actor.policy_loss.loss_mode=vanilla", "actor.top_entropy_quantile=0.4"}});
  cases.push_back({"vanilla, off_policy_mask_threshold 0.02",
                   {"actor.policy_loss.loss_mode=vanilla", "actor.off_policy_mask_threshold=0.02"}});
  cases.push_back({"vanilla, masks, KL and entropy terms together",
                   {"actor.policy_loss.loss_mode=vanilla", "actor.top_entropy_quantile=0.4",
                    "actor.off_policy_mask_threshold=0.02", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.3",
                    "actor.kl_loss_type=k3_ratio", "actor.entropy_coeff=0.05"}});
  for (LossCase& loss : cases) loss.overrides.emplace_back("actor.clip_ratio=0.1");
  return cases;
}

// The rows with log-probs near those of this policy, flat and padded to one length.
class Data {
 public:
  Data(TestPolicy& policy, bool on_policy) : flat_(true, kShape) {
    TestObjective any(std::vector<std::string>{});
    const ActorLearner learner(policy.model, policy.optimizer, any.objective, {});
    const std::vector<float> now = learner.log_probs(policy.model, flat_.batch).value();
    RandomStream stream({11, RandomPurpose::kTest, 0, 0, 0});
    std::vector<float> old_log_prob, sampler, reference;
    for (const float log_prob : now) {
      const double old = static_cast<double>(log_prob) + 0.15 * stream.next_normal();
      old_log_prob.push_back(static_cast<float>(old));
      sampler.push_back(static_cast<float>(old + 0.05 * stream.next_normal()));
      reference.push_back(static_cast<float>(old - 0.1));
    }
    if (!on_policy) flat_.batch.put<column::OldLogProb>(std::move(old_log_prob));
    flat_.batch.put<column::RolloutLogProb>(std::move(sampler));
    flat_.batch.put<column::RefLogProb>(std::move(reference));
    pad();
  }

  [[nodiscard]] const StepTable& batch(bool padded) const { return padded ? padded_ : flat_.batch; }

 private:
  // Values at padding must not matter.
  void pad() {
    const StepTable& from = flat_.batch;
    int64_t width = 0;
    for (int64_t row = 0; row < from.num_rows(); ++row) width = std::max(width, from.row_tokens(row));
    for (const std::vector<int64_t>& ids : flat_.responses) {
      padded_ids_.push_back(ids);
      padded_ids_.back().resize(static_cast<size_t>(width), 3);
    }
    std::vector<TableRow> rows;
    for (int64_t row = 0; row < from.num_rows(); ++row)
      rows.push_back({from.row(row).prompt_ids, padded_ids_[static_cast<size_t>(row)], from.row(row).group});
    padded_ = StepTable(std::move(rows));
    extend<column::ResponseMask>(width, 0);
    extend<column::Advantages>(width, 2.0F);
    extend<column::OldLogProb>(width, -50.0F);
    extend<column::RolloutLogProb>(width, -1.0F);
    extend<column::RefLogProb>(width, -40.0F);
  }

  template <class C>
  void extend(int64_t width, typename C::Value filler) {
    if (!flat_.batch.has<C>()) return;
    std::vector<typename C::Value> out;
    for (int64_t row = 0; row < flat_.batch.num_rows(); ++row) {
      const auto values = flat_.batch.of_row<C>(row);
      out.insert(out.end(), values.begin(), values.end());
      out.resize(static_cast<size_t>((row + 1) * width), filler);
    }
    padded_.put<C>(std::move(out));
  }

  RandomRows flat_;
  std::vector<std::vector<int64_t>> padded_ids_;
  StepTable padded_;
};

struct Bench {
  explicit Bench(const std::string& dtype)
      : policy(dtype, kShape.vocab, /*num_layers=*/1),
        reference(dtype, kShape.vocab, /*num_layers=*/1, /*seed=*/6),
        tolerance(dtype == "float64" ? kTolerance64 : kTolerance32),
        off_policy(policy, false),
        on_policy(policy, true) {}

  static LearnerOptions options_of(const Split& split) {
    LearnerOptions options;
    options.micro_batch = split.cut;
    options.pass.share_prompts = split.share_prompts;
    if (split.recompute) options.pass.activation_bytes = 0;
    if (split.small_chunks) options.head.chunk_bytes = 1;
    return options;
  }

  std::vector<at::Tensor> gradients(ActorObjective& objective, const LossCase& loss, const Split& split,
                                    UpdateReport& report) {
    LearnerOptions options = options_of(split);
    options.reference = &reference.model;
    const Data& data = loss.on_policy ? on_policy : off_policy;
    return policy.gradients(objective, data.batch(split.padded), options, &report);
  }

  TestPolicy policy, reference;
  double tolerance;
  Data off_policy, on_policy;
};

void expect_same_numbers(const UpdateReport& part, const UpdateReport& whole, double tolerance) {
  const auto near = [&](double a, double b, const std::string& name) {
    EXPECT_NEAR(a, b, tolerance * (1.0 + std::abs(b))) << name;
  };
  near(part.sums.loss, whole.sums.loss, "loss");
  near(part.sums.kl, whole.sums.kl, "kl");
  near(part.sums.entropy, whole.sums.entropy, "entropy");
  near(part.grad_norm, whole.grad_norm, "grad_norm");
  EXPECT_EQ(part.sums.num_tokens, whole.sums.num_tokens);
  const auto a = part.metrics.values(), b = whole.metrics.values();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].name, b[i].name);
    near(a[i].value, b[i].value, a[i].name);
  }
}

// The worst split of one cell of the table.
double worst_of_splits(Bench& bench, ActorObjective& objective, const LossCase& loss, size_t turn) {
  UpdateReport whole_report, part_report;
  const auto whole = bench.gradients(objective, loss, kWhole, whole_report);
  const bool all = is_set("MORTISE_LONG");
  double worst = 0.0;
  for (size_t i = 0; i < std::size(kSplits); ++i) {
    // A short run takes a third of the splits for each cell, each of them with every loss and every aggregation.
    if (!all && (i + turn) % 3 != 0) continue;
    SCOPED_TRACE(kSplits[i].name);
    const double deviation = worst_relative_l2(bench.gradients(objective, loss, kSplits[i], part_report), whole);
    EXPECT_LE(deviation, bench.tolerance);
    expect_same_numbers(part_report, whole_report, 10.0 * bench.tolerance);
    worst = std::max(worst, deviation);
  }
  return worst;
}

// --- the table in the docs ---

constexpr std::string_view kBegin = "<!-- measured -->\n", kEnd = "<!-- end of what was measured -->\n";

struct Table {
  struct Row {
    std::string name;
    std::vector<std::pair<double, double>> cells;  // float32, float64, by aggregation
  };
  std::vector<Row> rows;

  [[nodiscard]] std::string markdown() const {
    std::string out = "| loss |";
    std::string rule = "\n|---|";
    for (const std::string_view mode : loss_agg_mode_names()) {
      out += " " + std::string(mode) + " |";
      rule += "---|";
    }
    out += rule + "\n";
    for (const Row& row : rows) {
      out += "| " + row.name + " |";
      for (const auto& [single, twice] : row.cells) {
        char cell[64];
        std::snprintf(cell, sizeof cell, " %.0e / %.0e |", single, twice);
        out += cell;
      }
      out += "\n";
    }
    return out;
  }
};

std::filesystem::path page() { return std::filesystem::path(MORTISE_SOURCE_DIR) / "docs/split_invariance.md"; }

std::string read_page() {
  std::ifstream in(page());
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_table(const Table& table) {
  const std::string text = read_page();
  const size_t begin = text.find(kBegin) + kBegin.size(), end = text.find(kEnd);
  ASSERT_LT(begin, end) << page() << " has lost its marks";
  std::ofstream(page()) << text.substr(0, begin) + table.markdown() + text.substr(end);
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  std::string cell;
  std::getline(in, cell, '|');
  while (std::getline(in, cell, '|')) {
    const size_t first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
  }
  return cells;
}

// The page has a line for every loss and a column for every aggregation, and no number in it breaks the promise.
void expect_page_shows(const Table& table) {
  const std::string text = read_page();
  const size_t begin = text.find(kBegin), end = text.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << page();
  std::istringstream lines(text.substr(begin + kBegin.size(), end - begin - kBegin.size()));
  std::vector<std::vector<std::string>> page_rows;
  for (std::string line; std::getline(lines, line);) page_rows.push_back(cells_of(line));
  const std::string next = "run test_split_invariance with MORTISE_LONG=1 MORTISE_WRITE_DOCS=1";
  ASSERT_EQ(page_rows.size(), table.rows.size() + 2) << next;
  ASSERT_EQ(page_rows[0].size(), loss_agg_mode_names().size() + 1) << next;
  for (size_t m = 0; m < loss_agg_mode_names().size(); ++m) EXPECT_EQ(page_rows[0][m + 1], loss_agg_mode_names()[m]);
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const std::vector<std::string>& row = page_rows[r + 2];
    EXPECT_EQ(row[0], table.rows[r].name) << next;
    ASSERT_EQ(row.size(), page_rows[0].size()) << row[0];
    for (size_t m = 1; m < row.size(); ++m) {
      double single = 1.0, twice = 1.0;
      ASSERT_EQ(std::sscanf(row[m].c_str(), "%lf / %lf", &single, &twice), 2) << row[0] << ": " << row[m];
      EXPECT_TRUE(single >= 0 && single <= kTolerance32) << row[0] << ": " << row[m];
      EXPECT_TRUE(twice >= 0 && twice <= kTolerance64) << row[0] << ": " << row[m];
    }
  }
}

// The names of the splits say what they are.
TEST(SplitInvariance, PassesOfThreeRowsCutGroupsAndMixThem) {
  const RandomRows data(false, kShape);
  std::map<int64_t, std::set<size_t>> passes_of;  // group -> passes that hold rows of it
  bool mixed = false;
  const auto passes = plan_micro_batches(data.batch, all_rows(data.batch), {3, 0});
  for (size_t i = 0; i < passes.size(); ++i) {
    std::set<int64_t> groups;
    for (const int64_t row : passes[i]) groups.insert(data.batch.row(row).group);
    for (const int64_t group : groups) passes_of[group].insert(i);
    mixed = mixed || (groups.contains(0) && groups.contains(2));  // those with an advantage
  }
  EXPECT_TRUE(mixed);
  EXPECT_GE(passes_of[0].size(), 2U);
  EXPECT_GE(passes_of[2].size(), 2U);
}

TEST(SplitInvariance, EveryLossAndAggregationForEverySplit) {
  Bench single("float32"), twice("float64");
  const std::vector<LossCase> cases = all_cases();
  ASSERT_GE(cases.size(), 30U) << "built-in losses are missing";
  Table table;
  size_t turn = 0;
  for (const LossCase& loss : cases) {
    Table::Row& row = table.rows.emplace_back();
    row.name = loss.name;
    for (const std::string_view mode : loss_agg_mode_names()) {
      SCOPED_TRACE(loss.name + ", " + std::string(mode));
      std::vector<std::string> overrides = loss.overrides;
      overrides.push_back("actor.loss_agg_mode=" + std::string(mode));
      TestObjective run(overrides);
      row.cells.emplace_back(worst_of_splits(single, run.objective, loss, turn),
                             worst_of_splits(twice, run.objective, loss, turn));
      ++turn;
    }
    ++turn;  // six aggregations: the next loss begins with another third
  }
  std::printf("relative L2 of the worst parameter and split, float32 / float64\n%s", table.markdown().c_str());
  if (is_set("MORTISE_WRITE_DOCS")) write_table(table);
  expect_page_shows(table);
}

// The KL and the entropy with aggregations of their own: token-mean is the mean that the sums give, also of the masked
// tokens.
TEST(SplitInvariance, TermsWithTheirOwnAggregation) {
  const std::vector<std::string> terms = {"actor.loss_agg_mode=seq-mean-token-sum-norm",
                                          "actor.use_kl_loss=true",
                                          "actor.kl_loss_coef=0.3",
                                          "actor.kl_agg_mode=token-mean",
                                          "actor.entropy_coeff=0.05",
                                          "actor.entropy_agg_mode=token-mean"};
  for (const std::string dtype : {"float32", "float64"}) {
    Bench bench(dtype);
    for (const char* other :
         {"actor.kl_loss_type=low_var_kl", "actor.kl_loss_type=full", "actor.top_entropy_quantile=0.4"}) {
      SCOPED_TRACE(dtype + " " + other);
      LossCase loss{other, terms};
      loss.overrides.emplace_back(other);
      TestObjective run(loss.overrides);
      worst_of_splits(bench, run.objective, loss, 0);
      UpdateReport report;
      bench.gradients(run.objective, loss, kWhole, report);
      const ObjectiveSums& sums = report.sums;
      EXPECT_NEAR(sums.kl_loss, sums.kl / static_cast<double>(sums.num_tokens), 1e-6);
      EXPECT_NEAR(sums.entropy_loss, sums.bonus_entropy / static_cast<double>(sums.num_bonus_tokens), 1e-6);
      EXPECT_NEAR(sums.loss, sums.pg_loss + 0.3 * sums.kl_loss - 0.05 * sums.entropy_loss, 1e-6);
    }
  }
}

// Supervised updates: the mean over the tokens of the update, for any split into passes.
TEST(SplitInvariance, AWarmStartForEverySplit) {
  for (const std::string dtype : {"float32", "float64"}) {
    Bench bench(dtype);
    const auto gradients = [&](const Split& split, SftReport& report) {
      LearnerOptions options = Bench::options_of(split);
      options.grad_clip = 0.0;
      TestPolicy& policy = bench.policy;
      report = sft_update(policy.model, policy.optimizer, bench.off_policy.batch(split.padded), options, {.lr = 0.0})
                   .value();
      std::vector<at::Tensor> grads;
      for (const NamedParameter& p : policy.model.parameters()) grads.push_back(p.tensor.grad().clone());
      return grads;
    };
    SftReport whole_report, part_report;
    const auto whole = gradients(kWhole, whole_report);
    EXPECT_GT(whole_report.loss, 0.5);
    for (const Split& split : kSplits) {
      SCOPED_TRACE(std::string(split.name) + ", " + dtype);
      EXPECT_LE(worst_relative_l2(gradients(split, part_report), whole), bench.tolerance);
      EXPECT_NEAR(part_report.loss, whole_report.loss, 10.0 * bench.tolerance * (1.0 + whole_report.loss));
      EXPECT_EQ(part_report.num_tokens, whole_report.num_tokens);
    }
  }
}

}  // namespace
}  // namespace mortise
