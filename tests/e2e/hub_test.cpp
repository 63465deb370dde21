// Models and data sets by their names on a hub: downloads, the cache, and what a run is bound to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "foundation/base/text.h"
#include "program.h"
#include "python_service.h"

namespace mortise::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

constexpr const char* kModel = "acme/tiny";
constexpr const char* kShort = " trainer.total_training_steps=2 trainer.num_threads=1 ";

// The quickstart's model as acme/tiny, and its rows as acme/rows with the folders of a data set, on a hub of this machine.
class Hub {
 public:
  explicit Hub(const std::string& options = "")
      : service_(publish(), "hub_server.py " + root().string() + " " + options) {
    EXPECT_TRUE(service_.started());
  }

  [[nodiscard]] Path root() const { return task_.path() / "hub"; }
  [[nodiscard]] Path cache() const { return task_.path() / "hf" / "hub"; }
  [[nodiscard]] const TaskFolder& task() const { return task_; }
  [[nodiscard]] std::string variables(const std::string& more = "") const {
    return "env -u HF_TOKEN -u HF_HUB_CACHE -u HF_HUB_OFFLINE HF_HOME=" + (task_.path() / "hf").string() +
           " HF_ENDPOINT=" + service_.url("") + " " + more + " ";
  }
  [[nodiscard]] Outcome mortise(const std::string& words, const std::string& more = "") const {
    return run(variables(more) + program() + " " + words, task_.path());
  }
  [[nodiscard]] Outcome train(const std::string& words, const std::string& more = "") const {
    return mortise(
        "train run.toml data.train_files=data/train.jsonl model.path=" + std::string(kModel) + kShort + words, more);
  }
  // Requests so far, forgotten by this.
  [[nodiscard]] std::string requests() const {
    auto text = default_env().read_file(root() / "requests");
    std::error_code missing;
    fs::remove(root() / "requests", missing);
    return text.ok() ? *text : "";
  }
  void copy(const Path& from, const Path& to) const {
    fs::create_directories((root() / to).parent_path());
    fs::copy(from, root() / to, fs::copy_options::recursive);
  }
  Path write(const std::string& name, const std::string& text) const { return task_.write("hub/" + name, text); }

 private:
  const Path& publish() {
    copy(task_.path() / "model", "models/acme/tiny/main");
    write("models/acme/tiny/main/pytorch_model.bin", "pickle");
    write("models/acme/tiny/main/onnx/model.json", "{}");
    copy(task_.path() / "data" / "train.jsonl", "datasets/acme/rows/main/small/train-00000-of-00002.jsonl");
    copy(task_.path() / "data" / "val.jsonl", "datasets/acme/rows/main/small/train-00001-of-00002.jsonl");
    copy(task_.path() / "data" / "val.jsonl", "datasets/acme/rows/main/small/test.jsonl");
    write("datasets/acme/rows/main/README.md", "rows");
    return task_.path();
  }

  TaskFolder task_;
  PythonService service_;
};

// The names in a folder, with what links point to. huggingface_hub 2 keeps its lists of files in trees/ besides.
std::string listing(const Path& folder) {
  const Outcome listed =
      run("find . \\( -name .no_exist -o -name .locks -o -name trees \\) -prune -o \\( -type f -o -type l \\) "
          "-printf '%p -> %l\\n' | sort",
          folder);
  return listed.output;
}

TEST(HubNames, AModelIsDownloadedOnceAndTrainsAsItsFolderDoes) {
  const Hub hub;
  const Outcome by_name = hub.train("trainer.default_local_dir=by_name");
  ASSERT_EQ(by_name.code, 0) << by_name.output;
  EXPECT_THAT(by_name.output, HasSubstr("models/acme/tiny at commit "));
  EXPECT_THAT(hub.requests(), AllOf(HasSubstr("model.safetensors"), Not(HasSubstr(".bin")), Not(HasSubstr("onnx"))));
  const Outcome by_folder = hub.train("model.path=model trainer.default_local_dir=by_folder");
  ASSERT_EQ(by_folder.code, 0) << by_folder.output;
  const auto weights = [&](const std::string& dir) {
    return default_env().read_file(hub.task().path() / dir / "global_step_2/huggingface/model.safetensors").value();
  };
  EXPECT_EQ(weights("by_name"), weights("by_folder"));

  ASSERT_EQ(hub.train("trainer.default_local_dir=again").code, 0);
  EXPECT_THAT(hub.requests(), Not(HasSubstr("/resolve/")));  // only the list of files was asked for
  ASSERT_EQ(hub.train("trainer.default_local_dir=offline", "HF_HUB_OFFLINE=1").code, 0);
  EXPECT_EQ(hub.requests(), "");
  const Outcome lost =
      hub.mortise("tokenizer encode --model acme/other --in data/train.jsonl --out ids.jsonl", "HF_HUB_OFFLINE=1");
  EXPECT_EQ(lost.code, 3);
  EXPECT_THAT(lost.output, AllOf(HasSubstr("cache does not have it"), HasSubstr("HF_HUB_OFFLINE")));
}

TEST(HubNames, ARunStaysAtItsCommitWhenTheBranchMoves) {
  const Hub hub;
  ASSERT_EQ(hub.train("").code, 0);
  const auto lock = read_json_file(default_env(), hub.task().path() / "out/mortise.lock");
  ASSERT_TRUE(lock.ok());
  const std::string commit = lock->at("hub").at(0).at("commit").get<std::string>();
  EXPECT_EQ(lock->at("hub").at(0).at("name"), "models/acme/tiny");

  hub.copy(hub.root() / "models/acme/tiny/main", "models/acme/tiny/v1");  // the old commit is still known
  hub.write("models/acme/tiny/main/generation_config.json", "{\"temperature\": 0.5}");
  const Outcome resumed = hub.train("trainer.total_training_steps=3");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("at commit " + commit.substr(0, 12)));
  const Outcome fresh = hub.train("trainer.default_local_dir=fresh");
  ASSERT_EQ(fresh.code, 0) << fresh.output;
  EXPECT_THAT(fresh.output, Not(HasSubstr("at commit " + commit.substr(0, 12))));
  // The lock next to the file binds new runs too.
  ASSERT_EQ(hub.mortise("pack lock run.toml model.path=acme/tiny").code, 0);
  hub.write("models/acme/tiny/main/generation_config.json", "{\"temperature\": 0.7}");
  const auto next_to_file = read_json_file(default_env(), hub.task().path() / "mortise.lock");
  ASSERT_TRUE(next_to_file.ok());
  const Outcome bound = hub.train("trainer.default_local_dir=bound", "HF_HUB_OFFLINE=1");
  EXPECT_THAT(bound.output,
              HasSubstr("at commit " + next_to_file->at("hub").at(0).at("commit").get<std::string>().substr(0, 12)));
}

TEST(HubNames, DownloadsThatBreakAreContinuedAndWrongBytesAreRefused) {
  const Hub hub;
  hub.write("faults", "cut model.safetensors\n500 config.json\n429 main?blobs=true\nwrong tokenizer.json\n");
  const Outcome trained = hub.train("");
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_THAT(hub.requests(), HasSubstr("model.safetensors - bytes="));  // the rest of it was asked for
  EXPECT_THAT(trained.output, HasSubstr("trying again"));

  hub.copy(hub.root() / "models/acme/tiny/main", "models/acme/forged/main");
  hub.write("models/acme/forged/main/config.json", "{\"model_type\": \"qwen2\"}");
  hub.write("faults", "wrong config.json\nwrong config.json\n");
  const Outcome forged = hub.mortise("tokenizer encode --model acme/forged --in data/train.jsonl --out ids.jsonl");
  EXPECT_EQ(forged.code, 3) << forged.output;
  EXPECT_THAT(forged.output, HasSubstr("the bytes that arrived have the hash"));
}

TEST(HubNames, TheTokenGoesToTheHubAlone) {
  const Hub hub;
  hub.copy(hub.root() / "models/acme/tiny/main", "models/private/tiny/main");
  hub.task().write("texts.jsonl", "{\"text\": \"1+1=\"}\n");
  const std::string words = "tokenizer encode --model private/tiny --in texts.jsonl --out ids.jsonl";
  const Outcome without = hub.mortise(words);
  EXPECT_EQ(without.code, 3);
  EXPECT_THAT(without.output, AllOf(HasSubstr("the hub knows no such model"), HasSubstr("HF_TOKEN")));
  (void)hub.requests();
  const Outcome with = hub.mortise(words, "HF_TOKEN=hf_right");
  EXPECT_EQ(with.code, 0) << with.output;
  const std::string requests = hub.requests();
  EXPECT_THAT(requests, HasSubstr(" hub /private/tiny/resolve/"));
  for (const std::string_view line : split(requests, '\n')) {
    const bool has_token = line.find("hf_right") != std::string_view::npos;
    if (!line.empty()) {
      EXPECT_EQ(has_token, line.find(" hub ") != std::string_view::npos) << line;
    }
  }
  EXPECT_THAT(with.output, Not(HasSubstr("hf_right")));
}

TEST(HubNames, DataSetsAreNamedByConfigurationAndSplit) {
  const Hub hub;
  const Outcome trained =
      hub.mortise(std::string("train run.toml data.train_files=hf://datasets/acme/rows/small/train ") +
                  "data.val_files=hf://datasets/acme/rows/small/test trainer.val_before_train=true" + kShort);
  ASSERT_EQ(trained.code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("small/train[-.]*jsonl"));
  EXPECT_THAT(hub.requests(), Not(HasSubstr("README")));
  const Outcome wrong =
      hub.mortise(std::string("train run.toml data.train_files=hf://datasets/acme/rows/large/train") + kShort);
  EXPECT_EQ(wrong.code, 3);
  EXPECT_THAT(wrong.output, AllOf(HasSubstr("no data files at 'large/train'"), HasSubstr("small/test, small/train")));
  // The hub's own conversion, where the repository has no such files.
  hub.copy(hub.root() / "datasets/acme/rows/main/small/test.jsonl",
           "datasets/acme/script/refs%2Fconvert%2Fparquet/default/train/0000.jsonl");
  hub.write("datasets/acme/script/main/script.py", "pass");
  const Outcome converted =
      hub.mortise(std::string("train run.toml data.train_files=hf://datasets/acme/script/default/train") + kShort +
                  "trainer.default_local_dir=converted");
  EXPECT_EQ(converted.code, 0) << converted.output;
}

TEST(HubNames, MistakesSayWhatToDo) {
  const Hub hub;
  const auto output = [&](const std::string& path) { return hub.train("model.path=" + path).output; };
  EXPECT_THAT(output("acme/missing"), AllOf(HasSubstr("the hub knows no such model"), HasSubstr("check the spelling")));
  EXPECT_THAT(output("acme/tiny@v9"), HasSubstr("has no revision 'v9'"));
  EXPECT_THAT(output("hf://acme"), HasSubstr("it names no organisation"));
  EXPECT_THAT(output("hf://datasets/acme/rows"), HasSubstr("a data set is not a model"));
  EXPECT_THAT(output("gated/tiny"), HasSubstr("ask for access on its page"));
  EXPECT_THAT(output("data/missing"), Not(HasSubstr("hub")));  // "data" is a folder here
  hub.write("models/acme/pickled/main/config.json", "{}");
  hub.write("models/acme/pickled/main/pytorch_model.bin", "pickle");
  EXPECT_THAT(output("acme/pickled"), HasSubstr("which can run code"));
  EXPECT_THAT(hub.train("", "HF_ENDPOINT=http://example.org").output,
              HasSubstr("http is for servers of this machine alone"));
  const Outcome unreachable = hub.mortise("tokenizer encode --model acme/tiny --in data/train.jsonl --out ids.jsonl",
                                          "HF_ENDPOINT=https://127.0.0.1:1");
  EXPECT_THAT(unreachable.output, HasSubstr("cache does not have it"));
  for (const char* words : {"generate --prompts data/train.jsonl --out done.jsonl", "serve"}) {
    EXPECT_THAT(hub.mortise(std::string(words) + " --model acme/missing").output,
                HasSubstr("error: --model, models/acme/missing: there is no such folder here"))
        << words;
  }
}

// huggingface_hub reads what was written here, and fills a cache of its own with the same files and links.
TEST(HubNames, TheCacheIsThatOfHuggingfaceHub) {
  const char* python = std::getenv("MORTISE_ORACLES_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "MORTISE_ORACLES_PYTHON is not set: huggingface_hub did not read the cache";
  for (const char* options : {"", "--no-hashes"}) {
    const Hub hub(options);
    hub.copy(hub.root() / "models/acme/tiny/main", "models/new/tiny/main");
    const Outcome encoded = hub.mortise("tokenizer encode --model old/tiny --in data/train.jsonl --out ids.jsonl");
    EXPECT_EQ(fs::exists(hub.cache() / "models--old--tiny/refs/main"), true) << encoded.output;
    hub.task().write("oracle.py", R"(
import os, sys
from huggingface_hub import snapshot_download, scan_cache_dir
here = snapshot_download("old/tiny", local_files_only=True)
assert not scan_cache_dir().warnings, scan_cache_dir().warnings
os.environ["HF_HUB_DISABLE_XET"] = "1"
other = snapshot_download("old/tiny", cache_dir="other", allow_patterns=["*.json", "*.txt", "*.jinja", "model.safetensors"],
                          ignore_patterns=["onnx/*"])
assert sorted(os.listdir(here)) == sorted(os.listdir(other)), (os.listdir(here), os.listdir(other))
)");
    const Outcome read = run(hub.variables("HF_HUB_DISABLE_XET=1") + python + " oracle.py", hub.task().path());
    ASSERT_EQ(read.code, 0) << read.output;
    EXPECT_EQ(listing(hub.cache() / "models--old--tiny"), listing(hub.task().path() / "other/models--old--tiny"));
  }
}

}  // namespace
}  // namespace mortise::test
