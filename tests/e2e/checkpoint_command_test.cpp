// `mortise checkpoint` on the folders of real runs: what it lists, what it finds damaged, and which differences it tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "foundation/formats/sha256.h"
#include "program.h"
#include "run_bits.h"

namespace mortise::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTwoSteps = "train run.toml rollout.n=2 trainer.total_training_steps=2 trainer.save_freq=1";

Json json_of(const Outcome& outcome) {
  const auto json = parse_json(outcome.output, "console");
  EXPECT_TRUE(json.ok()) << outcome.output;
  return json.ok() ? *json : Json();
}

class CheckpointCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome trained = task_.mortise(std::string(kTwoSteps) + " trainer.default_local_dir=a");
    ASSERT_EQ(trained.code, 0) << trained.output;
  }
  TaskFolder task_;
};

// Changes one byte in the middle of a file and keeps its size.
void flip_byte(const Path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const int old = file.get();
  file.seekp(middle);
  file.put(static_cast<char>(old ^ 1));
}

TEST_F(CheckpointCommand, ListShowsWhatIsCompleteAndWhichIsTheLatest) {
  fs::remove(task_.path() / "a/global_step_1/state.json");
  const Json all = json_of(task_.mortise("checkpoint list a --json"));
  ASSERT_EQ(all["checkpoints"].size(), 2U);
  const Json& newest = all["checkpoints"][0];
  EXPECT_EQ(newest["name"], "global_step_2");
  EXPECT_EQ(newest["step"], 2);
  EXPECT_EQ(newest["complete"], true);
  EXPECT_EQ(newest["latest"], true);
  uint64_t size_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(task_.path() / "a/global_step_2"))
    if (entry.is_regular_file() && entry.path().filename() != "manifest.json") size_bytes += entry.file_size();
  EXPECT_EQ(newest["bytes"], size_bytes);
  EXPECT_EQ(all["checkpoints"][1]["complete"], false);
  EXPECT_EQ(all["checkpoints"][1]["latest"], false);
  EXPECT_THAT(task_.mortise("checkpoint list a").output, HasSubstr("incomplete: 'state.json' is missing"));
  EXPECT_EQ(task_.mortise("checkpoint list nowhere").code, 3);
}

TEST_F(CheckpointCommand, VerifyFindsOneFlippedByte) {
  const Outcome whole = task_.mortise("checkpoint verify a");
  EXPECT_EQ(whole.code, 0) << whole.output;
  flip_byte(task_.path() / "a/global_step_1/huggingface/model.safetensors");
  const Outcome damaged = task_.mortise("checkpoint verify a");
  EXPECT_EQ(damaged.code, 3);
  EXPECT_THAT(damaged.output, HasSubstr("huggingface/model.safetensors' was changed"));
  EXPECT_THAT(damaged.output, HasSubstr("a/global_step_2: "));  // the other one is told too
  EXPECT_EQ(task_.mortise("checkpoint verify a/global_step_2").code, 0);
  EXPECT_EQ(task_.mortise("checkpoint export a/global_step_1 model_1").code, 3);
  EXPECT_FALSE(fs::exists(task_.path() / "model_1"));
}

TEST_F(CheckpointCommand, DiffOfTheSameRunTwiceIsEmptyButForTheFolderAndTheClock) {
  const Outcome again = task_.mortise(std::string(kTwoSteps) + " trainer.default_local_dir=b");
  ASSERT_EQ(again.code, 0) << again.output;
  const Json differences = json_of(task_.mortise("checkpoint diff a b --json"));
  EXPECT_TRUE(differences["tensors"].empty()) << differences;
  EXPECT_GT(differences["num_tensors"].get<int64_t>(), 10);
  EXPECT_TRUE(differences["plugins"].empty());
  EXPECT_EQ(differences["settings"].size(), 1U);
  EXPECT_EQ(differences["settings"]["trainer.default_local_dir"], Json::parse(R"(["\"a\"", "\"b\""])"));
  for (const auto& [key, values] : differences["state"].items()) EXPECT_EQ(key, "run/train_seconds");
}

TEST_F(CheckpointCommand, DiffOfTwoStepsNamesTheCounterAndTheWeights) {
  const Json differences = json_of(task_.mortise("checkpoint diff a/global_step_1 a/global_step_2 --json"));
  EXPECT_EQ(differences["same"], false);
  EXPECT_EQ(differences["state"]["run/step"], Json::parse(R"(["1", "2"])"));
  bool model_moved = false;
  for (const Json& tensor : differences["tensors"]) {
    if (!tensor["name"].get<std::string>().starts_with("huggingface/")) continue;
    model_moved = true;
    EXPECT_GT(tensor["max_abs_difference"].get<double>(), 0.0);
    EXPECT_LT(tensor["max_abs_difference"].get<double>(), 0.1);  // one step with a learning rate of 2e-3
    EXPECT_LE(tensor["different"].get<int64_t>(), tensor["numbers"].get<int64_t>());
  }
  EXPECT_TRUE(model_moved);
  const Outcome same = task_.mortise("checkpoint diff a/global_step_2 a");
  EXPECT_THAT(same.output, HasSubstr("The two checkpoints are the same"));
}

TEST_F(CheckpointCommand, InspectAndExport) {
  const Json all = json_of(task_.mortise("checkpoint inspect a --json"));
  EXPECT_EQ(all["name"], "global_step_2");
  EXPECT_EQ(all["state"]["run"]["scalars"]["step"], "2");
  EXPECT_THAT(task_.mortise("checkpoint inspect a").output, HasSubstr("rollout_backend native"));
  const Outcome exported = task_.mortise("checkpoint export a out/model");
  ASSERT_EQ(exported.code, 0) << exported.output;
  const Path from = task_.path() / "a/global_step_2/huggingface", to = task_.path() / "out/model";
  size_t num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (!entry.is_regular_file()) continue;
    ++num_files;
    EXPECT_EQ(hash_of(to / entry.path().lexically_relative(from)), hash_of(entry.path()));
  }
  EXPECT_GT(num_files, 2U);
  EXPECT_EQ(task_.mortise("eval run.toml data.val_files=data/val.jsonl model.path=out/model").code, 0);
  for (const char* folder : {"out/model", "out/model/"}) {
    const Outcome twice = task_.mortise(std::string("checkpoint export a ") + folder);
    EXPECT_EQ(twice.code, 6);
    EXPECT_THAT(twice.output, HasSubstr("the folder exists already"));
  }
  EXPECT_EQ(task_.mortise("checkpoint export a out/other/").code, 0);
  EXPECT_EQ(hash_of(task_.path() / "out/other/config.json"), hash_of(from / "config.json"));
}

// Gives an entry of a checkpoint another text, and makes the manifest agree.
void forge(const Path& checkpoint, const std::string& entry, const std::string& text) {
  const auto write = [](const Path& path, const std::string& bytes) {
    ASSERT_OK(write_file_atomic(default_env(), path, bytes));
  };
  write(checkpoint / entry, text);
  Json manifest = read_json_file(default_env(), checkpoint / "manifest.json").value();
  for (Json& one : manifest["entries"]) {
    if (one["path"] != entry) continue;
    one["bytes"] = text.size();
    one["sha256"] = sha256_hex(text);
  }
  manifest["sha256"] = "";
  manifest["sha256"] = sha256_hex(dump_json(manifest, 1) + "\n");
  write(checkpoint / "manifest.json", dump_json(manifest, 1) + "\n");
}

// Somebody else may have made the checkpoint.
TEST_F(CheckpointCommand, InspectShowsAForgedLockAsText) {
  forge(task_.path() / "a/global_step_2", "mortise.lock",
        "{\"uses\": [{\"kind\": 7, \"name\": \"x\\u009b2J\", \"pack\": \"\\u001b[2J\"}, 3]}");
  const Outcome shown = task_.mortise("checkpoint inspect a/global_step_2");
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("   x\\xc2\\x9b2J: \\x1b[2J \n"));
  forge(task_.path() / "a/global_step_2", "mortise.lock", "{\"uses\": 3}");
  const Outcome empty = task_.mortise("checkpoint inspect a/global_step_2");
  EXPECT_EQ(empty.code, 0) << empty.output;
}

}  // namespace
}  // namespace mortise::test
