// The output of a run without what depends on the clock. Two runs that learnt the same have the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "foundation/formats/json.h"
#include "foundation/formats/safetensors.h"
#include "foundation/formats/sha256.h"
#include "program.h"

namespace mortise::test {

inline bool is_time(const std::string& metric) {
  for (const char* prefix : {"timing_s/", "timing_per_token_ms/", "perf/", "step_time"}) {
    if (metric.starts_with(prefix)) return true;
  }
  return metric.ends_with("/time_s");
}

inline std::string hash_of(const Path& path) {
  auto hash = sha256_file_hex(default_env(), path);
  return hash.ok() ? *hash : hash.error().to_string();
}

// Takes bytes and keeps their digest.
class DigestFile final : public WritableFile {
 public:
  Result<> append(std::span<const std::byte> bytes) override {
    hash_.update(bytes);
    return {};
  }
  Result<> sync() override { return {}; }
  Result<> close() override { return {}; }
  [[nodiscard]] const Path& path() const override { return path_; }
  std::string digest() { return to_hex(hash_.finish()); }

 private:
  Path path_;
  Sha256 hash_;
};

// The digest of the state.safetensors that one process would have written in place of the files of several ranks.
inline std::string digest_of_joined_state(const Path& dir) {
  const Json index = read_json_file(default_env(), dir / "state.safetensors.index.json").value();
  std::map<std::string, SafetensorsFile> files;
  const auto file = [&](const std::string& name) -> const SafetensorsFile& {
    if (!files.contains(name)) files.emplace(name, SafetensorsFile::open(default_env(), dir / name).value());
    return files.at(name);
  };
  const auto own = file("state.safetensors").tensors();
  std::vector<TensorView> all(own.begin(), own.end());
  std::map<std::string, std::string> joined;
  for (const auto& [name, tensor] : index["tensors"].items()) {
    std::string& bytes = joined[name];
    for (const Json& piece : tensor["pieces"]) {
      const TensorView view = file(piece["file"].get<std::string>()).get(name).value();
      bytes.append(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
    }
    all.push_back({name, parse_dtype(tensor["dtype"].get<std::string>()).value(),
                   tensor["shape"].get<std::vector<int64_t>>(), std::as_bytes(std::span(bytes)), nullptr});
  }
  DigestFile digest;
  EXPECT_OK(write_safetensors(digest, all));
  return digest.digest();
}

// The files of a checkpoint by name, as digests. The files of several ranks count as the one of one process. Of the
// scalars it has the text, without the time spent. It leaves out the settings and the manifest, which contain how often
// the run saves and the digest of the times.
inline std::map<std::string, std::string> bits_of_checkpoint(const Path& dir) {
  std::map<std::string, std::string> bits;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(dir).string();
    if (name == "manifest.json" || name == "config.resolved.toml" || name.starts_with("state-")) continue;
    if (name == "state.safetensors.index.json") continue;
    if (name == "state.json") {
      Json state = read_json_file(default_env(), entry.path()).value();
      state["run"].erase("train_seconds");
      bits[name] = dump_json(state, 1);
    } else if (name == "state.safetensors" && default_env().exists(dir / "state.safetensors.index.json")) {
      bits[name] = digest_of_joined_state(dir);
    } else {
      bits[name] = sha256_file_hex(default_env(), entry.path()).value();
    }
  }
  return bits;
}

// A whole run: the checkpoint of its last step, every number of every step and update, every completion in dump/.
inline std::map<std::string, std::string> bits_of_run(const Path& out, int64_t last_step) {
  std::map<std::string, std::string> bits;
  const Path checkpoint = out / ("global_step_" + std::to_string(last_step));
  EXPECT_TRUE(default_env().exists(checkpoint)) << checkpoint;
  if (default_env().exists(checkpoint)) bits = bits_of_checkpoint(checkpoint);
  std::string metrics;
  for (Json row : rows_of(out / "metrics.jsonl")) {
    std::vector<std::string> times;
    for (const auto& [name, value] : row.items()) {
      if (is_time(name)) times.push_back(name);
    }
    for (const std::string& name : times) row.erase(name);
    metrics += dump_json(row) + "\n";
  }
  bits["metrics.jsonl"] = metrics;
  bits["updates.jsonl"] = default_env().read_file(out / "updates.jsonl").value();
  if (!default_env().exists(out / "dump")) return bits;
  const std::vector<std::string> dumps = default_env().list_dir(out / "dump").value();
  for (const std::string& name : dumps) bits["dump/" + name] = default_env().read_file(out / "dump" / name).value();
  return bits;
}

// Fails with the names of what differs, and the first differing line of a text.
inline void expect_same_bits(const std::map<std::string, std::string>& actual,
                             const std::map<std::string, std::string>& expected, const std::string& what) {
  for (const auto& [name, value] : expected) {
    const auto at = actual.find(name);
    if (at == actual.end()) {
      ADD_FAILURE() << what << ": " << name << " is missing";
      continue;
    }
    if (at->second == value) continue;
    size_t begin = 0;
    while (begin < value.size() && begin < at->second.size() && value[begin] == at->second[begin]) ++begin;
    const size_t line = begin == 0 ? 0 : value.rfind('\n', begin - 1) + 1;
    const size_t from = std::max(line, begin - std::min<size_t>(begin, 80));
    ADD_FAILURE() << what << ": " << name << " differs at byte " << begin << "\n  " << value.substr(from, 200) << "\n  "
                  << at->second.substr(std::min(from, at->second.size()), 200);
  }
  for (const auto& [name, value] : actual) EXPECT_TRUE(expected.contains(name)) << what << ": " << name << " is new";
}

// Two runs to rounding: every number of the file's rows, but for times and how ranks share the tokens.
inline void expect_near_rows(const Path& a, const Path& b, const char* file, double tolerance) {
  const std::vector<Json> rows_a = rows_of(a / file), rows_b = rows_of(b / file);
  ASSERT_EQ(rows_a.size(), rows_b.size());
  ASSERT_FALSE(rows_a.empty());
  for (size_t i = 0; i < rows_a.size(); ++i) {
    for (const auto& [name, value] : rows_b[i].items()) {
      if (is_time(name) || name.starts_with("global_seqlen/") || !value.is_number()) continue;
      ASSERT_TRUE(rows_a[i].contains(name)) << name;
      const double expected = value.get<double>(), actual = rows_a[i][name].get<double>();
      EXPECT_NEAR(actual, expected, tolerance * (1.0 + std::abs(expected))) << file << " " << i << " " << name;
    }
  }
}

// The folder of a run as it was right after a step.
inline void cut_back(const Path& from, const Path& to, int64_t step, int64_t last) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  for (int64_t later = step + 1; later <= last; ++later)
    ASSERT_OK(remove_tree(default_env(), to / ("global_step_" + std::to_string(later))));
  ASSERT_OK(write_file(default_env(), to / "latest", "global_step_" + std::to_string(step) + "\n"));
}

// A run of `last` steps has the same weights and state with and without a stop after step `stop`. `command` saves each
// step in out/.
inline void expect_resumed_bits(const std::string& command, int64_t stop, int64_t last,
                                const std::string& model = "--tiny") {
  SCOPED_TRACE(command);
  const TaskFolder task(model);
  const Path straight = task.path() / "straight", out = task.path() / "out";
  const Outcome whole = task.mortise(command, program_of_run("straight"));
  ASSERT_EQ(whole.code, 0) << whole.output;
  std::filesystem::rename(out, straight);
  cut_back(straight, out, stop, last);
  const Outcome resumed = task.mortise(command);
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from"), std::string::npos) << resumed.output;
  for (const char* file : {"huggingface/model.safetensors", "state.safetensors"}) {
    const Path path = Path("global_step_" + std::to_string(last)) / file;
    EXPECT_EQ(hash_of(straight / path), hash_of(out / path)) << file;
  }
}

// A tiny task that uses all state of a run: several updates per step in a shuffled order, a schedule, an adaptive KL
// controller, an estimator with state, and the optimizer's moments.
class TinyTask {
 public:
  // `model`: which one make_task makes.
  explicit TinyTask(const std::string& model = "--tiny") : folder_(model) {
    folder_.write("rl.toml", R"(
[model]
path = "model"
[data]
train_files = ["data/train.jsonl"]
train_max_samples = 14
train_batch_size = 4
max_prompt_length = 8
max_response_length = 3
[algorithm]
adv_estimator = "bnpo"
use_kl_in_reward = true
[algorithm.adv_params]
method = "posterior"
decay = 0.9
[algorithm.kl_ctrl]
type = "adaptive"
kl_coef = 0.1
target_kl = 0.001
horizon = 100
[actor]
ppo_mini_batch_size = 2
ppo_epochs = 2
shuffle = true
[actor.optim]
lr = 2e-3
lr_scheduler_type = "cosine"
lr_warmup_steps = 3
[rollout]
n = 4
[[reward]]
use = "regex"
pattern = "^[0-4]"
[trainer]
total_training_steps = 16
save_freq = 1
max_actor_ckpt_to_keep = 2
limit_patience = 1000
zero_variance_limit = 0.99
val_before_train = false
num_threads = 1
logger = ["console"]
[plugins]
isolation = "none"
)");
    folder_.write("sft.toml", R"(
base = "rl.toml"
[data]
train_files = ["data/sft.jsonl"]
max_response_length = 8
[sft]
total_training_steps = 16
train_batch_size = 4
)");
  }

  [[nodiscard]] const Path& path() const { return folder_.path(); }
  Path write(const std::string& name, const std::string& text) const { return folder_.write(name, text); }
  // `command` is train or sft; the run's folder is `out` below path().
  [[nodiscard]] std::vector<std::string> words(const std::string& command, const std::string& out,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{program_of_run(out), command, command == "train" ? "rl.toml" : "sft.toml",
                                 "trainer.default_local_dir=" + out};
    if (command == "train") all.push_back("trainer.rollout_data_dir=" + out + "/dump");
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] Outcome mortise(const std::string& command, const std::string& out,
                                const std::vector<std::string>& more = {}) const {
    std::string line;
    for (const std::string& word : words(command, out, more)) line += "'" + word + "' ";
    return run(line, path());
  }

 private:
  TaskFolder folder_;
};

// The training run in straight/ of `num_steps` steps, with all its checkpoints, has the same bits when it is resumed from
// any of them.
inline void expect_same_bits_from_every_step(const TinyTask& task, const std::vector<std::string>& settings,
                                             int64_t num_steps) {
  const auto expected = bits_of_run(task.path() / "straight", num_steps);
  for (int64_t step = 1; step < num_steps; ++step) {
    const std::string name = "from" + std::to_string(step);
    cut_back(task.path() / "straight", task.path() / name, step, num_steps);
    const Outcome resumed = task.mortise("train", name, settings);
    ASSERT_EQ(resumed.code, 0) << resumed.output;
    EXPECT_NE(resumed.output.find("after step " + std::to_string(step) + "\n"), std::string::npos) << resumed.output;
    expect_same_bits(bits_of_run(task.path() / name, num_steps), expected, name);
    ASSERT_OK(remove_tree(default_env(), task.path() / name));
  }
}

}  // namespace mortise::test
