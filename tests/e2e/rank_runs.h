// Runs of a tiny task on several ranks of `mortise launch`, for tests of how these share their passes.
#pragma once

#include <string>
#include <vector>

#include "run_table.h"

namespace mortise::test {

inline constexpr int64_t kSteps = 3;

inline std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::string command_line(const TinyTask& task, int num_ranks, const std::string& command, const std::string& out,
                                const std::vector<std::string>& settings) {
  std::string line = "'" + program() + "'";
  if (num_ranks > 1) line += " launch --log-dir logs --nproc " + std::to_string(num_ranks);
  for (const std::string& word : task.words(command, out, settings))
    if (word != program()) line += " '" + word + "'";
  return line;
}

inline Outcome launch(const TinyTask& task, int num_ranks, const std::string& command, const std::string& out,
                      const std::vector<std::string>& settings) {
  return run(command_line(task, num_ranks, command, out, settings), task.path());
}

// So many steps, of a schedule that does not depend on how many.
inline std::vector<std::string> until(int64_t step, const std::vector<std::string>& settings) {
  return joined({"actor.optim.lr_scheduler_type=constant", "actor.optim.lr_warmup_steps=0",
                 "trainer.total_training_steps=" + std::to_string(step)},
                settings);
}

}  // namespace mortise::test
