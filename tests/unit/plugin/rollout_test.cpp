// Calling a rollout backend, and the ledger of what it owes.
#include "plugin/host/kinds/rollout_backend.h"

#include "mortise/kinds/rollout_backend.h"
#include "plugin/host/kinds/rollout_ledger.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using testing::HasSubstr;

class RolloutTest : public testing::Test {
 protected:
  RolloutBackend make(const std::string& fault = "") {
    auto made = RolloutBackend::create(registry_, "echo", {{"fault", fault}}, {});
    if (!made.ok()) {
      ADD_FAILURE() << made.error().to_string();
      std::abort();
    }
    return std::move(made).value();
  }
  std::vector<RolloutRequest> requests(size_t count) const {
    std::vector<RolloutRequest> out;
    for (size_t i = 0; i < count; ++i)
      out.push_back({.request_id = static_cast<int64_t>(i),
                     .prompt_ids = prompt_,
                     .num_samples = 2,
                     .first_row_id = 0,
                     .seed = 0,
                     .step = 1,
                     .sampling = &sampling_});
    return out;
  }
  std::string poll_with(const std::string& fault) {
    RolloutBackend backend = make(fault);
    const auto submitted = backend.submit(requests(1));
    if (!submitted.ok()) return submitted.error().to_string();
    return error_of(backend.poll(0, [](const RolloutSequence&) { return true; }));
  }

  PluginRegistry registry_ = test::open_registry({"rollout"});
  std::vector<int64_t> prompt_ = {5, 6, 7};
  Sampling sampling_{.max_new_tokens = 8};
};

TEST_F(RolloutTest, SubmitsAndPolls) {
  RolloutBackend backend = make();
  ASSERT_OK(backend.set_version(3));
  EXPECT_FALSE(backend.holds_weights());
  const auto all = requests(3);
  ASSERT_OK_AND_ASSIGN(const size_t taken, backend.submit(all));
  EXPECT_EQ(taken, 2U);  // the backend takes two at a time
  int64_t count = 0;
  ASSERT_OK_AND_ASSIGN(const uint64_t left, backend.poll(10, [&](const RolloutSequence& s) {
    ++count;
    EXPECT_EQ(s.weight_version, 3);
    EXPECT_EQ(std::vector<int64_t>(s.ids.begin(), s.ids.end()), prompt_);
    EXPECT_EQ(s.log_prob.size(), 3U);
    EXPECT_TRUE(s.filtered_log_prob.empty());
    return true;
  }));
  EXPECT_EQ(left, 0U);
  EXPECT_EQ(count, 4);
  EXPECT_EQ(backend.submit(std::span(all).subspan(2)).value(), 1U);
}

TEST_F(RolloutTest, ASinkThatIsFullGetsTheRestLater) {
  RolloutBackend backend = make();
  ASSERT_OK(backend.submit(requests(2)));
  std::vector<std::pair<int64_t, int64_t>> got;
  uint64_t left = 4;
  for (int round = 0; left > 0 && round < 9; ++round) {
    ASSERT_OK_AND_ASSIGN(left, backend.poll(0, [&](const RolloutSequence& s) {
      got.emplace_back(s.request_id, s.sample_index);
      return false;
    }));
  }
  EXPECT_THAT(got, testing::UnorderedElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(1, 0), std::pair(1, 1)));
}

TEST_F(RolloutTest, EveryFaultIsNamed) {
  EXPECT_THAT(poll_with("unknown_request"), HasSubstr("a request that is not outstanding"));
  EXPECT_THAT(poll_with("bad_sample"), HasSubstr("has only 2 samples"));
  EXPECT_THAT(poll_with("twice"), HasSubstr("sample 1 of request 0 twice"));
  EXPECT_THAT(poll_with("too_long"), HasSubstr("gave 9 tokens"));
  EXPECT_THAT(poll_with("negative_id"), HasSubstr("negative token id"));
  EXPECT_THAT(poll_with("bad_reason"), HasSubstr("finish reason 9"));
  EXPECT_THAT(poll_with("nan_log_prob"), HasSubstr("log-prob that is not finite"));
  EXPECT_THAT(poll_with("empty"), HasSubstr("empty completion"));
  EXPECT_THAT(poll_with("loses"), HasSubstr("nothing is outstanding, but sample 0 of request 0"));
  EXPECT_THAT(poll_with("took_more"), HasSubstr("took 2 of 1 requests"));
}

TEST_F(RolloutTest, HalfATrioIsRefused) {
  EXPECT_THAT(error_of(RolloutBackend::create(registry_, "partial_weights", nlohmann::ordered_json::object(), {})),
              HasSubstr("only part of begin_update"));
  RolloutBackend backend = make();
  EXPECT_THAT(error_of(backend.begin_update(1)), HasSubstr("holds no weights"));
  EXPECT_OK(backend.abort(-1));  // optional slots that are not there do nothing
  EXPECT_OK(backend.sleep(1));
  EXPECT_OK(backend.wake());
}

TEST_F(RolloutTest, TheLedgerCountsWhatIsOwed) {
  RolloutLedger ledger;
  const auto all = requests(2);
  EXPECT_TRUE(ledger.add(all[0]));
  EXPECT_FALSE(ledger.add(all[0]));
  EXPECT_EQ(ledger.num_owed(), 2U);
  RolloutSequence s{.request_id = 0,
                    .sample_index = 0,
                    .finish_reason = MORTISE_FINISH_ABORT,
                    .weight_version = 0,
                    .ids = {},
                    .log_prob = {},
                    .filtered_log_prob = {}};
  EXPECT_EQ(ledger.take(s, false), "");  // an aborted completion may be empty
  EXPECT_EQ(ledger.first_owed(), "sample 1 of request 0");
  s.sample_index = 1;
  EXPECT_EQ(ledger.take(s, false), "");
  EXPECT_EQ(ledger.num_owed(), 0U);
  EXPECT_TRUE(ledger.add(all[0]));
}

}  // namespace
}  // namespace mortise
