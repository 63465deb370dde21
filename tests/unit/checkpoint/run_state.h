// A small run state for the tests of this folder. Its content is a function of the step, so that a test can check a
// loaded one.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "support/fault_env.h"
#include "support/temp_dir.h"

namespace mortise::test {

// The real file system without waiting for the disk.
inline Env& fast_env() {
  static auto* env = new FaultEnv(default_env());
  return *env;
}

struct RunState final : Stateful {
  [[nodiscard]] std::string state_name() const override { return "run"; }
  Result<> save_state(StateWriter& writer) const override {
    writer.put_int("step", step);
    writer.put_double("loss", 1.0 / static_cast<double>(step));
    const std::array<int64_t, 1> shape{static_cast<int64_t>(weights.size())};
    writer.put_tensor("weights", DType::kF32, shape, std::as_bytes(std::span(weights)));
    return {};
  }
  Result<> load_state(StateReader& reader) override {
    step = TRY(reader.get_int("step"));
    loss = TRY(reader.get_double("loss"));
    const TensorView tensor = TRY(reader.get_tensor("weights"));
    weights.assign(tensor.as<float>().begin(), tensor.as<float>().end());
    return {};
  }
  void at_step(int64_t now) {
    step = now;
    weights.assign(64, static_cast<float>(now));
  }

  int64_t step = 1;
  double loss = 0;
  std::vector<float> weights;
};

inline Result<SavedCheckpoint> save_place(Env& env, const Path& run_dir, const CheckpointPlace& place,
                                          const CheckpointWriterOptions& options = {}) {
  const int64_t step = place.step;
  RunState state;
  state.at_step(step);
  StatefulRegistry registry;
  TRY(registry.add(state));
  CheckpointRequest request;
  request.place = place;
  request.state = TRY(registry.save());
  request.files.push_back(checkpoint_text_file("huggingface/config.json", "{\"step\": " + std::to_string(step) + "}"));
  request.info = {{"mortise", "test"}};
  return CheckpointWriter(env, run_dir, options).save(request);
}

inline Result<SavedCheckpoint> save_step(Env& env, const Path& run_dir, int64_t step,
                                         const CheckpointWriterOptions& options = {}) {
  return save_place(env, run_dir, {step, {}}, options);
}

// The step from which a resume would continue, with every part of the state checked; 0 for none.
inline int64_t resumed_step(Env& env, const Path& run_dir) {
  auto found = find_newest_valid(env, run_dir);
  EXPECT_OK(found);
  if (!found.ok() || !found->has_value()) return 0;
  auto checkpoint = Checkpoint::open(env, (*found)->ref.path);
  EXPECT_OK(checkpoint);
  if (!checkpoint.ok()) return -1;
  RunState state;
  StatefulRegistry registry;
  EXPECT_OK(registry.add(state));
  EXPECT_OK(checkpoint->load_into(registry));
  EXPECT_EQ(state.step, (*found)->ref.place.step);
  EXPECT_EQ(state.loss, 1.0 / static_cast<double>(state.step));
  EXPECT_EQ(state.weights, std::vector<float>(64, static_cast<float>(state.step)));
  const auto config = checkpoint->entry("huggingface/config.json");
  EXPECT_OK(config);
  EXPECT_EQ(*env.read_file(*config), "{\"step\": " + std::to_string(state.step) + "}");
  return state.step;
}

}  // namespace mortise::test
