// The log's file side and its plain console side, in child processes where standard error is looked at.
#include "foundation/base/log.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Log, FileGetsEveryLevelAndIsAppendedTo) {
  const test::TempDir dir;
  dir.write("log.txt", "before\n");
  ASSERT_OK(log_init({.console_level = LogLevel::kOff, .file = dir / "log.txt", .force_plain = true}));
  log_debug("fine print {not a format}");
  log_warn_once("once");
  log_warn_once("once");
  log_error(Error{ErrorKind::kData, "bad row", "f.jsonl:3", "fix it"});
  log_flush();
  const std::string text = dir.read("log.txt");
  EXPECT_THAT(text, testing::StartsWith("before\n"));
  EXPECT_THAT(text, HasSubstr("debug fine print {not a format}\n"));
  EXPECT_THAT(text, HasSubstr("error f.jsonl:3: bad row; fix it\n"));
  EXPECT_EQ(text.find("once"), text.rfind("once"));
}

TEST(Log, ConsoleLevelAndPlainText) {
  testing::internal::CaptureStderr();
  ASSERT_OK(log_init({.console_level = LogLevel::kWarn, .file = {}, .force_plain = true}));
  log_info("quiet");
  log_warn("loud");
  log_progress_line("moving");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("warning: loud\n"));
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
  EXPECT_THAT(text, Not(HasSubstr("moving")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_FALSE(log_has_terminal());
  ASSERT_OK(log_init({}));
}

// A line may quote a data row, a completion or the answer of a server.
TEST(Log, QuotedTextsCannotControlTheTerminal) {
  const test::TempDir dir;
  testing::internal::CaptureStderr();
  ASSERT_OK(log_init({.console_level = LogLevel::kInfo, .file = dir / "log.txt", .force_plain = true}));
  log_warn(
      "the server says \x1b]0;title\x07 and \xc2\x9b"
      "2J,\nthen more");
  log_flush();
  const std::string console = testing::internal::GetCapturedStderr();
  for (const std::string& text : {console, dir.read("log.txt")})
    EXPECT_THAT(text, HasSubstr("the server says \\x1b]0;title\\x07 and \\xc2\\x9b2J,\nthen more\n"));
  ASSERT_OK(log_init({}));
}

TEST(Log, AFileThatCannotBeOpenedIsAnError) {
  const test::TempDir dir;
  dir.write("file", "");
  const Result<> result = log_init({.console_level = LogLevel::kInfo, .file = dir / "file/log.txt"});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kDisk);
}

TEST(Log, LevelNames) {
  EXPECT_EQ(parse_log_level("warn"), LogLevel::kWarn);
  EXPECT_EQ(parse_log_level("WARN"), std::nullopt);
}

}  // namespace
}  // namespace mortise
