// Runs the program and its helpers in a temporary folder and reads what they leave behind.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "foundation/formats/jsonl.h"
#include "support/engine/shared_engine.h"
#include "support/temp_dir.h"

namespace mortise::test {

struct Outcome {
  int code = -1;
  std::string output;  // standard output and error together
};

inline Outcome run(const std::string& command, const Path& dir) {
  const Path log = dir / "console.txt";
  const int status =
      std::system(("cd " + dir.string() + " && { " + command + " ; } > " + log.string() + " 2>&1").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, default_env().read_file(log).value()};
}

// MORTISE_TEST_PROGRAM=PATH names another program for all runs: locked_engine (support/engine). Empty: none was named.
inline std::string test_program() {
  const char* const named = std::getenv("MORTISE_TEST_PROGRAM");
  return named == nullptr ? "" : named;
}

// `mortise`, with an engine that does not load libtorch again (support/engine).
inline std::string program() { return test_program().empty() ? program_with_shared_engine() : test_program(); }

// A program of bin/. program("mortise") starts as users start it: for tests of its process, its memory or its loading.
inline std::string program(const std::string& name) { return std::string(MORTISE_BINARY_DIR) + "/bin/" + name; }

// For a run in the folder `out`. Forks of one server have the same layout of addresses, so two of them may have the same
// bits by luck. Tests compare other runs bit by bit with the runs in straight/ and alone/. These two therefore start as
// users start them.
inline std::string program_of_run(const std::string& out) {
  const bool starts_alone = test_program().empty() && (out == "straight" || out == "alone");
  return starts_alone ? program("mortise") : program();
}

inline std::vector<Json> rows_of(const Path& path) {
  std::vector<Json> rows;
  auto reader = JsonlReader::open(default_env(), path);
  if (!reader.ok()) return rows;
  while (true) {
    auto row = reader->next();
    if (!row.ok() || !row->has_value()) return rows;
    rows.push_back((*row)->value);
  }
}

// A number of a row; NaN, and the test fails, if the row has none of this name.
inline double number_of(const Json& row, const std::string& name) {
  EXPECT_TRUE(row.contains(name)) << name;
  return row.contains(name) && row[name].is_number() ? row[name].get<double>() : std::nan("");
}

// The mean of the last numbers of that name in a metrics.jsonl.
inline double mean_score_of_last(const Path& metrics, size_t count, const std::string& name) {
  const std::vector<Json> rows = rows_of(metrics);
  double sum = 0;
  size_t found = 0;
  for (size_t i = rows.size(); i-- > 0 && found < count;) {
    if (!rows[i].contains(name)) continue;
    sum += number_of(rows[i], name);
    ++found;
  }
  return sum / static_cast<double>(found);
}

// Puts into dir what `MAKER . OPTIONS` makes there. The maker loads libtorch, which takes longer than all that it does, and
// its result depends on nothing else: one folder of the build keeps it for all tests until the maker is built again.
inline Outcome copy_task(const std::string& maker, const std::string& options, const Path& dir) {
  std::string name = maker + options;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  const std::string tasks = std::string(MORTISE_BINARY_DIR) + "/tests/tasks", kept = tasks + "/" + name;
  return run("mkdir -p " + tasks + " && exec 9>" + tasks + "/lock && flock 9 && { [ " + kept + "/.made -nt " +
                 program(maker) + " ] || { rm -rf " + kept + " && mkdir " + kept + " && " + program(maker) + " " +
                 kept + " " + options + " && touch " + kept + "/.made ; } ; } && cp -r " + kept + "/* .",
             dir);
}

// A folder with the quickstart's task: an untrained tiny model in model/, data/{train,val,sft}.jsonl, and a short
// run.toml whose reward wants a completion that begins with 7.
class TaskFolder {
 public:
  explicit TaskFolder(const std::string& options = "") {
    const Outcome made = copy_task("make_task", "--seed 3 " + options, dir_.path());
    if (made.code != 0) ADD_FAILURE() << made.output;
    dir_.write("run.toml", R"(
[model]
path = "model"
[data]
train_files = ["data/train.jsonl"]
train_batch_size = 16
max_prompt_length = 8
max_response_length = 3
[actor]
ppo_mini_batch_size = 16
[actor.optim]
lr = 2e-3
weight_decay = 0.0
[rollout]
n = 8
[[reward]]
use = "regex"
pattern = "^7"
[trainer]
total_training_steps = 40
val_before_train = false
default_local_dir = "out"
num_threads = 2
)");
  }
  [[nodiscard]] const Path& path() const { return dir_.path(); }
  // Offline: a path that is not there may be a name of the hub, and no test asks a server of the internet.
  [[nodiscard]] Outcome mortise(const std::string& args, const std::string& started = program()) const {
    return run("HF_HUB_OFFLINE=1 " + started + " " + args, path());
  }
  Path write(const std::string& name, const std::string& text) const { return dir_.write(name, text); }

 private:
  TempDir dir_;
};

}  // namespace mortise::test
