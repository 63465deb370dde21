// Which files a name, a pattern or a saved folder means.
#include "foundation/formats/rows/data_files.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"

namespace mortise {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataFilesTest : public ::testing::Test {
 protected:
  std::vector<std::string> files_of(const std::string& name) {
    const auto files = expand_data_files(default_env(), (dir_ / name).string(), "data.train_files");
    if (!files.ok()) return {files.error().to_string()};
    std::vector<std::string> out;
    for (const Path& file : *files) out.push_back(file.lexically_relative(dir_.path()).string());
    return out;
  }
  test::TempDir dir_;
};

TEST_F(DataFilesTest, PatternsAreSortedAndCoverFolders) {
  for (const char* name : {"b/x-10.jsonl", "b/x-2.jsonl", "a/x-1.jsonl", "a/.x-3.jsonl", "a/y.csv", "c[1].jsonl"})
    dir_.write(name, "");
  EXPECT_THAT(files_of("*/x-*.jsonl"), ElementsAre("a/x-1.jsonl", "b/x-10.jsonl", "b/x-2.jsonl"));
  EXPECT_THAT(files_of("b/x-?.jsonl"), ElementsAre("b/x-2.jsonl"));
  EXPECT_THAT(files_of("[ab]/x-[12].jsonl"), ElementsAre("a/x-1.jsonl", "b/x-2.jsonl"));
  EXPECT_THAT(files_of("c[1].jsonl"), ElementsAre("c[1].jsonl")) << "a name that exists is no pattern";
  EXPECT_THAT(files_of("*.parquet"), ElementsAre(HasSubstr("no file matches the pattern; correct data.train_files")));
  EXPECT_THAT(files_of("x.jsonl"), ElementsAre(HasSubstr("the data file does not exist")));
  EXPECT_THAT(error_of(expand_data_files(default_env(), "", "data.train_files")),
              HasSubstr("data.train_files has an empty name"));
}

TEST_F(DataFilesTest, SavedFoldersListTheirFiles) {
  dir_.write("saved/state.json", R"({"_data_files": [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}]})");
  EXPECT_THAT(files_of("saved"), ElementsAre("saved/data-1.arrow", "saved/data-0.arrow")) << "the order of the list";
  dir_.write("bad/state.json", R"({"_data_files": [{"filename": "../secret"}]})");
  EXPECT_THAT(files_of("bad"), ElementsAre(HasSubstr("is not in the folder")));
  dir_.write("old/state.json", R"({"_data_files": [{"filename": "a"}], "_indices_files": [{"filename": "i"}]})");
  EXPECT_THAT(files_of("old"), ElementsAre(HasSubstr("indices")));
  dir_.write("dict/dataset_dict.json", R"({"splits": ["train", "test"]})");
  EXPECT_THAT(files_of("dict"), ElementsAre(AllOf(HasSubstr("several splits: train, test"), HasSubstr("dict/train'"))));
  dir_.write("plain/a.parquet", "");
  EXPECT_THAT(files_of("plain"), ElementsAre(HasSubstr("plain/*.parquet'")));
}

}  // namespace
}  // namespace mortise
