// Ranks whose updates read what sampling has computed: who learns which rows, and the same numbers as one process, whoever
// has sampled them.
#include "learn/update/sampled_share.h"

#include <functional>

#include "foundation/batch/rank_block.h"
#include "generate/decode/given_tokens.h"
#include "learnt.h"

namespace mortise {
namespace {

using test::on_ranks;

constexpr int64_t kMaxPrompt = 7;

std::vector<GivenRow> given(const StepTable& table, std::span<const int64_t> rows) {
  std::vector<GivenRow> out;
  for (const int64_t i : rows)
    out.push_back({table.row(i).prompt_ids, table.row(i).response_ids, i, table.row(i).group});
  return out;
}

// Which rows a rank has when it begins: those of every group that the function takes.
using Sampled = std::function<bool(int rank, int64_t group)>;

struct Updated {
  UpdateReport report;
  std::vector<float> log_prob, first_log_prob;
  std::vector<at::Tensor> gradients, weights;
  int64_t num_again = 0;  // rows that this rank has made again
};

// One update of a rank whose store has room for each row once.
Updated update(const Case& one, Communicator& communicator, const Sampled& has, int64_t zero_stage = 0,
               const MicroBatchOptions& cut = {0, 24}) {
  TestPolicy policy("float32", kShape.vocab, 2, /*seed=*/5, {&communicator, zero_stage});
  TestPolicy reference("float32", kShape.vocab, 2, /*seed=*/6, {&communicator, zero_stage});
  const auto objective = objective_of(one.overrides);
  const RandomRows data(one.on_policy, kShape), recorded(false, {.vocab = kShape.vocab, .groups = 8, .samples = 1});
  const StepTable& table = data.batch;
  const int64_t most = kShape.groups * (kMaxPrompt + kShape.samples * static_cast<int64_t>(kShape.max_length));
  policy.model.keep_sampled_forward(std::make_shared<SampledForward>(policy.model.config(), most));
  Updated out;
  LearnerOptions options = cut_by(cut);
  options.reference = &reference.model;
  options.sampled = policy.model.sampled_forward();
  options.sampled->begin_filled();
  const auto sample = [&](const StepTable& from, std::span<const int64_t> rows) {
    return fill_sampled_forward(policy.model, given(from, rows), Isa::kAuto, 1);
  };
  options.sample_again = [&](const StepTable& from, std::span<const int64_t> rows) {
    out.num_again += std::ssize(rows);
    return sample(from, rows);
  };
  std::vector<int64_t> own = all_rows(table);
  std::erase_if(own, [&](int64_t row) { return !has(communicator.rank(), table.row(row).group); });
  EXPECT_TRUE(sample(table, own).ok());
  share(options, communicator, false, 1);
  ActorLearner learner(policy.model, policy.optimizer, objective->objective, options);
  out.log_prob = learner.log_probs(policy.model, table).value();
  out.first_log_prob.resize(static_cast<size_t>(table.num_tokens()));
  UpdatePlace place{.lr = 1e-2, .reads_sampled = true, .log_prob_out = out.first_log_prob};
  if (one.mixes) place.mix = {{&recorded.batch, true, 2}, 0.4};
  out.report = learner.update(table, all_rows(table), place).value();
  out.weights = weights_of(policy.model);
  if (zero_stage == 0) out.gradients = gradients_of(policy.model, policy.optimizer);
  return out;
}

std::vector<Updated> update_on_ranks(int size, const Case& one, const Sampled& has, int64_t zero_stage = 0,
                                     const MicroBatchOptions& cut = {0, 24}) {
  std::vector<Updated> out(static_cast<size_t>(size));
  on_ranks(size, [&](Communicator& communicator) {
    out[static_cast<size_t>(communicator.rank())] = update(one, communicator, has, zero_stage, cut);
  });
  return out;
}

void expect_same_bits(const Updated& a, const Updated& b) {
  EXPECT_EQ(a.log_prob, b.log_prob);
  EXPECT_EQ(a.first_log_prob, b.first_log_prob);
  expect_same_reports(a.report, b.report, 0.0);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i].equal(b.weights[i])) << i;
}

bool all(int /*rank*/, int64_t /*group*/) { return true; }

// Each rank its own block, as without a shared queue.
Sampled at_home(int size) {
  return [size](int rank, int64_t group) { return rank_block(kShape.groups, rank, size).contains(group); };
}

TEST(SampledShare, RanksHaveTheNumbersOfOneProcess) {
  for (const Case& one : cases()) {
    const Updated alone_did = update(one, alone(), all);
    EXPECT_EQ(alone_did.num_again, 0) << one.name;
    for (const auto& [size, stage] : std::vector<std::pair<int, int>>{{2, 0}, {3, 0}, {3, 1}, {2, 2}}) {
      SCOPED_TRACE(std::string(one.name) + ", " + std::to_string(size) + " ranks, ZeRO " + std::to_string(stage));
      const std::vector<Updated> by_rank = update_on_ranks(size, one, at_home(size), stage);
      EXPECT_EQ(by_rank[0].log_prob, alone_did.log_prob);
      expect_same_reports(by_rank[0].report, alone_did.report, 1e-6);
      if (stage == 0) EXPECT_LE(relative_l2_of_all(by_rank[0].gradients, alone_did.gradients), 1e-6);
      for (const Updated& other : by_rank) expect_same_bits(other, by_rank[0]);
    }
  }
}

// A rank may take prompts of others, and a resumed run has none.
TEST(SampledShare, TheBitsDoNotDependOnWhoSampled) {
  const std::vector<Sampled> ways{
      all,
      [](int rank, int64_t /*group*/) { return rank == 1; },
      [](int /*rank*/, int64_t /*group*/) { return false; },
      [](int rank, int64_t group) { return group % 3 == rank; },
      [](int rank, int64_t group) { return (group == 4) == (rank == 0); },
  };
  for (const Case& one : {cases()[0], cases()[1], cases()[3], cases()[7]}) {
    for (const MicroBatchOptions& cut : {MicroBatchOptions{0, 24}, kCut}) {
      const std::vector<Updated> want = update_on_ranks(3, one, at_home(3), 0, cut);
      for (size_t way = 0; way < ways.size(); ++way) {
        SCOPED_TRACE(std::string(one.name) + ", way " + std::to_string(way));
        const std::vector<Updated> got = update_on_ranks(3, one, ways[way], 0, cut);
        int64_t num_again = 0;
        for (const Updated& rank : got) {
          expect_same_bits(rank, want[0]);
          num_again += rank.num_again;
        }
        if (way == 0) EXPECT_EQ(num_again, 0);
        if (way > 0) EXPECT_GT(num_again, 0);
      }
    }
  }
}

// Groups of equal rows.
StepTable equal_rows(const std::vector<int64_t>& ids, int64_t groups, int64_t samples) {
  std::vector<TableRow> rows;
  for (int64_t i = 0; i < groups * samples; ++i) rows.push_back({ids, ids, i / samples});
  StepTable table(std::move(rows));
  table.put<column::Advantages>(std::vector<float>(static_cast<size_t>(table.num_tokens()), 1.0F));
  return table;
}

TEST(SampledShare, RowsOfEqualLengthStayWhereTheyWereSampled) {
  const std::vector<int64_t> ids(8, 1);
  const StepTable table = equal_rows(ids, 12, 4);
  for (const int size : {2, 3, 4}) {
    on_ranks(size, [&](Communicator& communicator) {
      LearnerOptions options = cut_by({0, 80});
      share(options, communicator, false, 1);
      const MicroPlan plan = plan_update(table, all_rows(table), options, true);
      const RankShare mine = share_by_home(table, plan, update_loads(table, plan), options.ranks);
      std::vector<int64_t> rows;
      for (size_t i = 0; i < plan.size(); ++i) {
        if (mine.is_mine(i)) rows.insert(rows.end(), plan[i].begin(), plan[i].end());
      }
      const RankBlock block = rank_block(12, communicator.rank(), size);
      ASSERT_EQ(std::ssize(rows), block.size() * 4);
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], block.begin * 4 + static_cast<int64_t>(i));
    });
  }
}

TEST(SampledShare, ARankWithTooMuchGivesSomeAway) {
  // To make the numbers again costs a third more. So two of six go, not three.
  const std::vector<HomeLoad> all_of_one(6, {0, 200, 300});
  const std::vector<int> owners = deal_near_home(all_of_one, 2);
  EXPECT_EQ(std::ranges::count(owners, 1), 2);
  // What has no home goes where least is.
  EXPECT_EQ(deal_near_home(std::vector<HomeLoad>{{0, 100, 150}, {-1, 90, 90}, {-1, 20, 20}}, 2),
            (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(deal_near_home(std::vector<HomeLoad>{{1, 0, 9}, {0, 0, 9}}, 2), (std::vector<int>{1, 0}));
  EXPECT_TRUE(deal_near_home({}, 3).empty());
}

}  // namespace
}  // namespace mortise
