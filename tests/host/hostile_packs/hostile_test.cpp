// Packs that do everything wrong, in the engine's process and in workers: each ends as docs/plugins/faults.md says.
//
// This program also serves the cases of `plugin check` for its own tests: with --serve-cases it does what `mortise` would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "conformance/check.h"
#include "conformance/server.h"
#include "drive.h"
#include "foundation/base/text.h"
#include "support/temp_dir.h"

namespace mortise::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kKinds = {"policy_loss", "kl_estimator", "advantage_estimator", "rollout_backend",
                                         "reward"};
constexpr const char* kWho = "hostile@test[.]hostile 1[.]0[.]0 [(][0-9a-f]{12}[)]";

class HostilePacks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir;
    for (const Misdeed& misdeed : kMisdeeds) ASSERT_EQ(build_pack(misdeed, folder_->path()), "") << misdeed.name;
  }
  static void TearDownTestSuite() { delete folder_; }
  static Path pack(const Misdeed& misdeed) { return folder_->path() / (std::string(misdeed.name) + ".so"); }
  static inline TempDir* folder_ = nullptr;
};

// A plugin in the engine's own process.
void expect_inside(const Misdeed& misdeed, const std::string& kind, const Ended& ended) {
  const std::string_view expected =
      kind == "rollout_backend" && !misdeed.rollout.empty() ? misdeed.rollout : misdeed.inside;
  EXPECT_THAT(ended.output, HasSubstr(std::string(expected)));
  EXPECT_EQ(ended.code, expected.empty() ? 0 : 4) << ended.output;
  if (misdeed.phase != Phase::kCall || expected.empty() || !misdeed.names_step) return;
  EXPECT_THAT(ended.output, ContainsRegex("error: " + kind + " " + kWho + ", [a-z_]+, step 2: "));
}

// A reward in a worker: the run goes on, and only the bad row has no reward.
void expect_in_worker(const Misdeed& misdeed, const Ended& ended) {
  if (misdeed.phase != Phase::kCall || misdeed.ends_worker_run) {
    EXPECT_EQ(ended.code, 4) << ended.output;
    return;
  }
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, Not(HasSubstr("lost its reward")));
  EXPECT_THAT(ended.output, ContainsRegex(std::string("reward ") + kWho));
  EXPECT_EQ(ended.output.find("step 2: row 2 failed: ") != std::string::npos, !misdeed.row.empty());
  EXPECT_THAT(ended.output, HasSubstr(std::string(misdeed.row)));
}

TEST_F(HostilePacks, EndAsThePageSays) {
  for (const Misdeed& misdeed : kMisdeeds) {
    const Path mark = folder_->path() / (std::string(misdeed.name) + ".mark");
    for (const auto& [kind, ended] : use_plugins(pack(misdeed), kKinds, mark)) {
      SCOPED_TRACE(std::string(misdeed.name) + " x " + kind + ":\n" + ended.output);
      EXPECT_NE(ended.code, kKilled) << "it hangs";
      EXPECT_THAT(ended.output, Not(HasSubstr("\x1b"))) << "a plugin's text reached the terminal";
      kind == "reward" ? expect_in_worker(misdeed, ended) : expect_inside(misdeed, kind, ended);
    }
    EXPECT_EQ(default_env().exists(mark), misdeed.phase != Phase::kFile) << misdeed.name << ": did its code run?";
  }
}

// Each plugin that one of the cases is about has a fault, or the pack has one.
TEST_F(HostilePacks, AreFoundByPluginCheck) {
  for (const Misdeed& misdeed : kMisdeeds) {
    if (misdeed.check.empty()) continue;
    check::CheckOptions options;
    options.pack = pack(misdeed).string();
    for (const std::string_view one : split(misdeed.check, ' ')) options.only.emplace_back(one);
    if (misdeed.inside == kNotStopped) options.timeout_ms = 3000;  // these wait for it
    options.server = {"/proc/self/exe", "--serve-cases"};
    const auto report = check::check_pack(options);
    ASSERT_TRUE(report.ok()) << misdeed.name << ": " << report.error().to_string();
    std::map<std::string, bool> found;  // by kind; "" is the pack
    for (const check::Outcome& outcome : report->outcomes) {
      if (outcome.status == "not_applicable" || outcome.status == "skipped") continue;
      found[outcome.kind] = found[outcome.kind] || outcome.is_fault();
    }
    EXPECT_GT(report->num_faults(), 0U) << misdeed.name << ": " << misdeed.check;
    for (const auto& [kind, is_found] : found)
      EXPECT_TRUE(is_found || kind.empty())
          << misdeed.name << ", " << kind << ": " << misdeed.check << " finds nothing";
  }
}

std::string or_nothing(std::string_view text) { return text.empty() ? "nothing" : "`" + std::string(text) + "`"; }

std::string cases_of(const Misdeed& misdeed) {
  std::string out;
  if (misdeed.check.empty()) return "";
  for (const std::string_view one : split(misdeed.check, ' ')) out += (out.empty() ? "" : ", ") + or_nothing(one);
  return out;
}

std::string table_of_misdeeds() {
  std::string out;
  for (const auto& [phase, title, inside] :
       {std::tuple(Phase::kFile, "Refused before any code of the pack runs", "the message has"),
        std::tuple(Phase::kLoad, "Refused after its static constructors ran", "the message has"),
        std::tuple(Phase::kCall, "In a call", "in the trainer's process")}) {
    const bool is_call = phase == Phase::kCall;
    out += std::string("\n### ") + title + "\n\n| the pack | " + inside + (is_call ? " | in a worker: the row" : "") +
           " | found by |\n|---|---|---|" + (is_call ? "---|" : "") + "\n";
    for (const Misdeed& misdeed : kMisdeeds) {
      if (misdeed.phase != phase) continue;
      std::string what = or_nothing(misdeed.inside);
      if (!misdeed.rollout.empty()) what += "; a rollout backend: " + or_nothing(misdeed.rollout);
      const std::string row = misdeed.ends_worker_run ? "ends the run too"
                              : misdeed.row.empty()   ? "is scored"
                                                      : "fails: " + or_nothing(misdeed.row);
      out += "| " + std::string(misdeed.what) + " | " + what + (is_call ? " | " + row : "") + " | " +
             cases_of(misdeed) + " |\n";
    }
  }
  return out;
}

// MORTISE_UPDATE=1 writes the page.
TEST(HostilePage, ShowsTheTable) {
  const Path path = Path(MORTISE_SOURCE_DIR) / "docs" / "plugins" / "faults.md";
  const std::string text = default_env().read_file(path).value();
  const std::string_view begin = "<!-- misdeeds: begin -->\n", end = "<!-- misdeeds: end -->";
  const size_t from = text.find(begin) + begin.size(), to = text.find(end);
  ASSERT_LT(from, to);
  const std::string made = table_of_misdeeds() + "\n";
  if (std::getenv("MORTISE_UPDATE") != nullptr) {
    std::ofstream(path) << text.substr(0, from) + made + text.substr(to);
    return;
  }
  EXPECT_EQ(text.substr(from, to - from), made) << "run this test with MORTISE_UPDATE=1";
}

}  // namespace
}  // namespace mortise::test

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--serve-cases") return mortise::check::serve_cases();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
