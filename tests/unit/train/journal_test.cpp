// The journal of a run: which steps are validated, and what becomes of a validation that fails.
#include "train/report/journal.h"

#include <gmock/gmock.h>

#include "config/load.h"
#include "foundation/formats/jsonl.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using testing::ElementsAre;

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> settings{"trainer.default_local_dir=" + (dir_.path() / "out").string(),
                                            "trainer.logger=[]"};
    ASSERT_OK_AND_ASSIGN(loaded_, load_config(default_env(), "", settings));
    auto log = RunLog::open(default_env(), *loaded_, nullptr, {});
    ASSERT_OK(log);
    log_.emplace(*std::move(log));
    progress_.emplace(loaded_->config);
  }

  // Validates every second of five steps, with `answer_`.
  RunJournal journal() {
    RunJournal::Plan plan;
    plan.total_steps = 5;
    plan.test_freq = 2;
    plan.validate = [this](int64_t step) -> Result<ValidationReport> {
      validated_.push_back(step);
      if (answer_) return *answer_;
      ValidationReport report;
      report.metrics.add_mean("val-core/task/reward/mean@1", 0.5, 1.0);
      return report;
    };
    return {default_env(), *progress_, *log_, std::move(plan)};
  }

  // Writes the line of a step whose loss is its number.
  Result<> write(RunJournal& journal, int64_t step) {
    progress_->counters.step = step;
    MetricSet metrics;
    metrics.add_mean("loss", static_cast<double>(step), 1.0);
    Result<> validated;
    TRY(journal.write_step(step, metrics, validated));
    return validated;
  }

  std::vector<Json> lines() {
    EXPECT_OK(log_->sync());
    std::vector<Json> rows;
    auto reader = JsonlReader::open(default_env(), dir_.path() / "out/metrics.jsonl").value();
    while (auto row = reader.next().value()) rows.push_back(row->value);
    return rows;
  }

  const test::TempDir dir_;
  std::optional<LoadedConfig> loaded_;
  std::optional<RunLog> log_;
  std::optional<RunProgress> progress_;
  std::optional<Error> answer_;  // what validations answer; null: they succeed
  std::vector<int64_t> validated_;
};

constexpr const char* kScore = "val-core/task/reward/mean@1";

TEST_F(JournalTest, EverySecondStepAndTheLastAreValidated) {
  RunJournal one = journal();
  for (int64_t step = 1; step <= 5; ++step) ASSERT_OK(write(one, step));
  EXPECT_THAT(validated_, ElementsAre(2, 4, 5));
  const std::vector<Json> rows = lines();
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_FALSE(rows[2].contains(kScore));
  EXPECT_EQ(rows[3][kScore], 0.5);
  EXPECT_EQ(rows[3]["loss"], 4.0);
}

TEST_F(JournalTest, AFailedValidationIsOwedAndItsStepIsWritten) {
  RunJournal one = journal();
  ASSERT_OK(write(one, 1));
  EXPECT_FALSE(one.write_owed().value());
  answer_ = Error{ErrorKind::kReward, "no answer", "", ""};
  const Result<> failed = write(one, 2);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().what, "no answer");
  ASSERT_TRUE(progress_->owed_validation.metrics.has_value());
  EXPECT_EQ(progress_->owed_validation.metrics->value("loss"), 2.0);
  ASSERT_EQ(lines().size(), 2U);
  EXPECT_FALSE(lines()[1].contains(kScore));

  // The process that resumes begins with it.
  EXPECT_FALSE(one.write_owed().ok());
  EXPECT_TRUE(progress_->owed_validation.metrics.has_value());
  answer_.reset();
  EXPECT_TRUE(one.write_owed().value());
  EXPECT_FALSE(progress_->owed_validation.metrics.has_value());
  EXPECT_EQ(lines().back()[kScore], 0.5);
  EXPECT_EQ(lines().back()["loss"], 2.0);
}

// The completions of a validation did not reach the disk: the step's line must not say that they are there.
TEST_F(JournalTest, AfterAFullDiskNothingIsWritten) {
  RunJournal one = journal();
  answer_ = Error{ErrorKind::kDisk, "full", "", ""};
  EXPECT_FALSE(write(one, 2).ok());
  EXPECT_FALSE(progress_->owed_validation.metrics.has_value());
  EXPECT_TRUE(lines().empty());
}

TEST_F(JournalTest, EveryValidationIsJudgedByItsMetric) {
  loaded_->config.trainer.metric_for_best_model = kScore;
  progress_.emplace(loaded_->config);
  RunJournal one = journal();
  for (int64_t step = 1; step <= 5; ++step) ASSERT_OK(write(one, step));
  EXPECT_TRUE(progress_->best.is_best(2)) << "the others are equal, which is no better";
  loaded_->config.trainer.metric_for_best_model = "val-core/task/reward/mean@2";
  progress_.emplace(loaded_->config);
  RunJournal other = journal();
  const Result<> missing = write(other, 2);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kConfig);
  EXPECT_EQ(missing.error().to_string(),
            "trainer.metric_for_best_model: the validation has no metric 'val-core/task/reward/mean@2'; did you mean "
            "'val-core/task/reward/mean@1'?");
}

}  // namespace
}  // namespace mortise
