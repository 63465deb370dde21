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

const std::vector<Use> kUses = {{"policy_loss"},
                                {"kl_estimator"},
                                {"advantage_estimator"},
                                {"rollout_backend"},
                                {"reward"},
                                {"policy_loss", /*is_isolated=*/true},
                                {"kl_estimator", true},
                                {"advantage_estimator", true}};
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

// A plugin in the engine's own process, or a loss or an estimator in a worker: either the message, or the run continues.
// A signal is never what ends the program.
void expect_message(const Misdeed& misdeed, const Use& use, const Ended& ended) {
  std::string_view expected = misdeed.inside;
  if (use.kind == "rollout_backend" && !misdeed.rollout.empty()) expected = misdeed.rollout;
  if (use.is_isolated && misdeed.isolated != kAsInside) expected = misdeed.isolated;
  EXPECT_THAT(ended.output, HasSubstr(std::string(expected)));
  EXPECT_EQ(ended.code, expected.empty() ? 0 : 4) << ended.output;
  if (misdeed.phase != Phase::kCall || expected.empty() || !misdeed.names_step) return;
  EXPECT_THAT(ended.output, ContainsRegex("error: " + use.kind + " " + kWho + ", [a-z_]+, step 2: "));
}

// A reward in a worker: the run continues, and only the bad row has no reward.
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

// The processes in which calls of this pack never returned, each ended within a second after its limit. They count the
// time themselves (hostile.c), so a machine that is busy with something else cannot break the bound.
void expect_ended_in_time(const Misdeed& misdeed, const Path& folder) {
  const bool never_returns = misdeed.inside == kNotStopped;
  const std::string prefix = std::string(misdeed.name) + ".ticks.";
  std::multiset<std::string> kinds;
  const std::vector<std::string> files = default_env().list_dir(folder).value();
  for (const std::string& file : files) {
    if (!file.starts_with(prefix)) continue;
    const std::string kind = file.substr(prefix.size(), file.rfind('.') - prefix.size());
    kinds.insert(kind);
    const auto lived_ms = static_cast<int64_t>(10 * default_env().info(folder / file)->size_bytes);
    EXPECT_GT(lived_ms, 0) << file;
    EXPECT_LE(lived_ms, (kind == "reward" ? kRowLimitMs : kCallLimitMs) + 1000) << file;
  }
  for (const Use& use : kUses) EXPECT_EQ(kinds.contains(use.kind), never_returns) << misdeed.name << " x " << use.kind;
  if (never_returns) {
    EXPECT_GE(kinds.size(), kUses.size()) << misdeed.name;
  }
}

TEST_F(HostilePacks, EndAsThePageSays) {
  for (const Misdeed& misdeed : kMisdeeds) {
    const Path mark = folder_->path() / (std::string(misdeed.name) + ".mark");
    for (const auto& [use, ended] : use_plugins(pack(misdeed), kUses, mark)) {
      SCOPED_TRACE(std::string(misdeed.name) + " x " + use.kind + (use.is_isolated ? " in a worker" : "") + ":\n" +
                   ended.output);
      EXPECT_NE(ended.code, kKilled) << "it hangs";
      EXPECT_THAT(ended.output, Not(HasSubstr("\x1b"))) << "a plugin's text reached the terminal";
      use.kind == "reward" ? expect_in_worker(misdeed, ended) : expect_message(misdeed, use, ended);
    }
    expect_ended_in_time(misdeed, folder_->path());
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

std::string isolated_text(const Misdeed& misdeed) {
  return misdeed.isolated == kAsInside ? std::string(kAsInside) : or_nothing(misdeed.isolated);
}

std::string row_of_table(const Misdeed& misdeed) {
  std::string what = or_nothing(misdeed.inside);
  if (!misdeed.rollout.empty()) what += "; a rollout backend: " + or_nothing(misdeed.rollout);
  const std::string first = "| " + std::string(misdeed.what) + " | " + what;
  const std::string last = " | " + cases_of(misdeed) + " |\n";
  if (misdeed.phase != Phase::kCall)
    return first + (misdeed.isolated == kAsInside ? "" : "; in a worker: " + isolated_text(misdeed)) + last;
  const std::string reward = misdeed.ends_worker_run ? "ends the run too"
                             : misdeed.row.empty()   ? "is scored"
                                                     : "fails: " + or_nothing(misdeed.row);
  return first + " | " + reward + " | " + isolated_text(misdeed) + last;
}

std::string table_of_misdeeds() {
  std::string out;
  for (const auto& [phase, title, columns] :
       {std::tuple(Phase::kFile, "Refused before any code of the pack runs", "the message has | found by |\n|---|---|"),
        std::tuple(Phase::kLoad, "Refused after its static constructors ran",
                   "the message has | found by |\n|---|---|"),
        std::tuple(Phase::kCall, "In a call",
                   "in the trainer's process | a reward in a worker: the row | a loss or an estimator in a worker | "
                   "found by |\n|---|---|---|---|")}) {
    out += std::string("\n### ") + title + "\n\n| the pack | " + columns + "---|\n";
    for (const Misdeed& misdeed : kMisdeeds) {
      if (misdeed.phase == phase) out += row_of_table(misdeed);
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
