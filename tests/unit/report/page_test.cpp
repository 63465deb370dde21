// The page: what a hostile completion can do in it, which steps it holds, and how long series become.
#include "report/page.h"

#include <gmock/gmock.h>

#include "report/run_follower.h"
#include "support/temp_dir.h"

namespace mortise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string row(int64_t step, int64_t prompt, const std::string& text) {
  return dump_json(Json{{"step", step},
                        {"prompt_index", prompt},
                        {"input", "1+1="},
                        {"output", text},
                        {"score", 1.0},
                        {"token_ids", {1, 2, 3}}}) +
         "\n";
}

struct RunFolder {
  explicit RunFolder(int64_t steps) {
    std::string metrics;
    for (int64_t step = 1; step <= steps; ++step) metrics += dump_json(Json{{"step", step}, {"reward", 0.5}}) + "\n";
    dir.write("metrics.jsonl", metrics);
    dir.write("config.resolved.toml", "[trainer]\nrollout_data_dir = \"dump\"\n");
  }
  void write_completions(int64_t step, const std::string& text) const {
    dir.write("dump/" + std::to_string(step) + ".jsonl", row(step, 0, text) + row(step, 1, text));
  }
  test::TempDir dir;
};

// The JSON of the element with this id, as a browser would read it.
Json element(const std::string& page, const std::string& id) {
  const std::string head = "id=\"" + id + "\">";
  const size_t begin = page.find(head) + head.size();
  return parse_json(std::string_view(page).substr(begin, page.find("</script>", begin) - begin), id).value();
}

TEST(ReportPage, ACompletionCannotLeaveItsPlace) {
  const RunFolder run(2);
  const std::string hostile = "</script><script>alert(1)</script><!-- /*CHART*/ /*SCRIPT*/ \"DATA\" <!--ROWS-->";
  run.write_completions(2, hostile);
  ASSERT_OK_AND_ASSIGN(ReportRun read, read_report_run(default_env(), run.dir.path(), 100));
  const std::string page = report_page({std::move(read)});
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_EQ(element(page, "rows-0-2")[0]["output"], hostile);
  EXPECT_EQ(element(page, "rows-0-2")[0]["num_tokens"], 3);
  EXPECT_FALSE(element(page, "rows-0-2")[0].contains("token_ids"));
  EXPECT_EQ(element(page, "data")[0]["last_step"], 2);
  EXPECT_THAT(page, Not(HasSubstr("http-equiv=\"refresh\"")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ReportPage, DamagedLinesAreCountedAndLeftOut) {
  const RunFolder run(2);
  run.dir.write("metrics.jsonl", "{\"step\": 1}\n{\"st\n{\"step\": 2}\n");
  run.dir.write("dump/1.jsonl", row(1, 0, "2") + "[1, 2]\n{\"step\": 1\n" + row(1, 1, "3"));
  run.dir.write("dump/2.jsonl", row(2, 0, "2") + "{\"half");
  ASSERT_OK_AND_ASSIGN(ReportRun read, read_report_run(default_env(), run.dir.path(), 100));
  const Json damaged = Json::array({"line 2 of metrics.jsonl is damaged and left out",
                                    "2 damaged lines of 1.jsonl are left out; the first is line 2"});
  EXPECT_EQ(findings_json({read})["runs"][0]["damaged"], damaged);
  const std::string page = report_page({std::move(read)});
  EXPECT_EQ(element(page, "data")[0]["damaged"], damaged);
  EXPECT_EQ(element(page, "rows-0-1").size(), 2U);
  EXPECT_EQ(element(page, "rows-0-2").size(), 1U) << "the run still writes its second row";
  EXPECT_OK(find_faults(default_env(), run.dir.path()));
}

TEST(ReportPage, TheCompletionsAreThoseOfTheFirstTheNewestAndEvenlyBetween) {
  const RunFolder run(9);
  for (int64_t step = 1; step <= 9; ++step) run.write_completions(step, "7");
  const auto steps_with = [&](int64_t most_rows) {
    std::vector<int64_t> steps;
    const ReportRun read = read_report_run(default_env(), run.dir.path(), most_rows).value();
    for (const auto& [step, rows] : read.completions) steps.push_back(step);
    return steps;
  };
  EXPECT_EQ(steps_with(6), (std::vector<int64_t>{1, 5, 9}));
  EXPECT_EQ(steps_with(1), (std::vector<int64_t>{9}));
  EXPECT_EQ(steps_with(1000).size(), 9U);
}

TEST(ReportPage, OnlyAServedPageUsesTheNetwork) {
  const RunFolder run(2);
  run.write_completions(2, "needle");
  ASSERT_OK_AND_ASSIGN(const ReportRun read, read_report_run(default_env(), run.dir.path(), 100));
  const std::string file = report_page({read}), served = live_report_page({read});
  for (const char* word : {"new EventSource", "fetch(", "connect-src"}) {
    EXPECT_THAT(file, Not(HasSubstr(word)));
    EXPECT_THAT(served, HasSubstr(word));
  }
  EXPECT_THAT(served, Not(HasSubstr("needle"))) << "it asks for completions when somebody looks at them";
  EXPECT_EQ(element(served, "data")[0]["completion_steps"], Json::array({{{"step", 2}}}));
  EXPECT_EQ(element(served, "live")["since"], place_of({&read.history}));
  EXPECT_EQ(element(file, "live"), nullptr);
}

TEST(ReportPage, RunsOfOneNameAreToldApartByTheirPaths) {
  const test::TempDir dir;
  for (const char* folder : {"a/train", "b/train", "other"})
    dir.write(std::string(folder) + "/metrics.jsonl", "{\"step\": 1, \"reward\": 0.5}\n");
  std::vector<ReportRun> runs;
  for (const char* folder : {"a/train", "b/train/", "other"}) {
    ASSERT_OK_AND_ASSIGN(ReportRun run, read_report_run(default_env(), dir / folder, 10));
    runs.push_back(std::move(run));
  }
  const Json shown = element(report_page(runs), "data");
  EXPECT_EQ(shown[0]["name"], "a/train");
  EXPECT_EQ(shown[1]["name"], "b/train");
  EXPECT_EQ(shown[2]["name"], "other");
  ASSERT_OK_AND_ASSIGN(ReportRun again, read_report_run(default_env(), dir / "other", 10));
  runs.push_back(std::move(again));
  EXPECT_NE(report_page(runs), "") << "the same folder twice has one name";
}

TEST(ReportPage, LongSeriesBecomeMeans) {
  const RunFolder run(0);
  std::string metrics;
  for (int64_t step = 1; step <= 5000; ++step) metrics += dump_json(Json{{"step", step}, {"reward", step % 2}}) + "\n";
  run.dir.write("metrics.jsonl", metrics);
  ASSERT_OK_AND_ASSIGN(ReportRun read, read_report_run(default_env(), run.dir.path(), 0));
  const Json series = element(report_page({std::move(read)}), "data")[0]["metrics"]["reward"];
  ASSERT_EQ(series[0].size(), kMostPoints);
  EXPECT_EQ(series[0].back(), 5000);
  double sum = 0.0;
  for (const Json& value : series[1]) sum += value.get<double>();
  EXPECT_NEAR(sum / static_cast<double>(kMostPoints), 0.5, 0.01);
}

}  // namespace
}  // namespace mortise
