// mortise.reads/1: what a plugin tells before an instance is made, and what is wrong with what it tells.
#include <gmock/gmock.h>

#include "plugin/host/plugin_reads.h"
#include "test_packs.h"

namespace mortise {
namespace {

using test::error_of;
using test::open_registry;
using testing::HasSubstr;

Result<PluginReads> reads_of(const std::string& pack, double factor) {
  const PluginRegistry registry = open_registry({pack});
  const PluginRef ref = TRY(registry.find("reward", "one"));
  return plugin_reads(registry, ref, {{"factor", factor}});
}

TEST(PluginReadsTest, FilesAndColumnsOfTheParameters) {
  ASSERT_OK_AND_ASSIGN(const PluginReads reads, reads_of("reads", 1.0));
  ASSERT_EQ(reads.files.size(), 1U);
  EXPECT_EQ(reads.files[0].param + " " + reads.files[0].name, "factor tables");
  EXPECT_EQ(reads.files[0].what, "tables of the factor");
  EXPECT_EQ(reads.files[0].folder, Path("/folder"));
  EXPECT_EQ(reads.files[0].files, (std::vector<std::string>{"a.txt", "b.txt"}));
  ASSERT_EQ(reads.columns.size(), 1U);
  EXPECT_EQ(reads.columns[0].param + " " + reads.columns[0].name, "factor level");
  EXPECT_EQ(reads.columns[0].who + ". " + reads.columns[0].next, "the factor. Take another factor");
}

TEST(PluginReadsTest, NothingWithoutTheFlag) {
  ASSERT_OK_AND_ASSIGN(const PluginReads reads, reads_of("minimal", 1.0));
  EXPECT_TRUE(reads.files.empty() && reads.columns.empty());
}

TEST(PluginReadsTest, WhatIsWrongNamesThePlugin) {
  EXPECT_THAT(error_of(reads_of("no_reads", 1.0)), HasSubstr("announce mortise.reads/1, which it does not have"));
  EXPECT_THAT(error_of(reads_of("stray_reads", 1.0)), HasSubstr("names the parameter 'nobody'"));
  const auto denied = reads_of("reads", 2.0);
  ASSERT_FALSE(denied.ok());
  EXPECT_EQ(denied.error().kind, ErrorKind::kData);
  EXPECT_THAT(denied.error().to_string(), HasSubstr("reward one@test.reads"));
  EXPECT_THAT(denied.error().to_string(), HasSubstr("/folder: not for you"));
}

}  // namespace
}  // namespace mortise
