// Computes the places of arrays in the areas of a call, and copies them in and out.
#include "plugin/worker/step_area.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "foundation/base/hints.h"
#include "plugin/host/guarded_output.h"

namespace mortise {
namespace {

constexpr size_t kAlign = 64;
constexpr int64_t kMostValues = int64_t{1} << 40;  // values of one array: far above any batch, far below an overflow

constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool has_bit(uint64_t bits, size_t at) { return (bits >> at & 1U) != 0; }

// Walks through an area: take() gives the place of the next array.
class Walk {
 public:
  explicit Walk(size_t first = 0) : at_(first) {}
  size_t take(size_t bytes) {
    const size_t place = at_;
    at_ += aligned(bytes);
    return place;
  }
  [[nodiscard]] size_t end() const { return at_; }

 private:
  size_t at_;
};

struct InputPlaces {
  size_t row_offsets = 0, row_id = 0, group_index = 0, rewards = 0, reward_weights = 0, end = 0;
  std::vector<size_t> columns;  // where the kind's columns are; SIZE_MAX: not there
};

size_t num_values(const InputColumn& column, const ComputeMessage& message) {
  return static_cast<size_t>(column.level == Level::kRow ? message.num_rows : message.num_tokens);
}

InputPlaces input_places(const StepKind& kind, const ComputeMessage& message) {
  const auto rows = static_cast<size_t>(message.num_rows), functions = static_cast<size_t>(message.num_functions);
  Walk walk;
  InputPlaces places;
  places.row_offsets = walk.take((rows + 1) * sizeof(int64_t));
  places.row_id = walk.take(rows * sizeof(int64_t));
  places.group_index = walk.take(rows * sizeof(int64_t));
  for (size_t i = 0; i < kind.columns.size(); ++i) {
    const InputColumn& column = kind.columns[i];
    const size_t bytes = num_values(column, message) * (column.is_mask ? sizeof(uint8_t) : sizeof(float));
    places.columns.push_back(has_bit(message.columns, i) ? walk.take(bytes) : SIZE_MAX);
  }
  places.rewards = walk.take(rows * functions * sizeof(float));
  places.reward_weights = walk.take(functions * sizeof(float));
  places.end = walk.end();
  return places;
}

struct OutputPlaces {
  std::array<size_t, 3> outputs{};
  size_t end = 0;
};

// Guard, output, guard, next output, guard: each output has bytes of its own on both sides.
OutputPlaces output_places(const ComputeMessage& message) {
  const size_t bytes = static_cast<size_t>(message.num_tokens) * sizeof(float);
  Walk walk(kAlign);
  OutputPlaces places;
  for (size_t i = 0; i < places.outputs.size(); ++i) {
    if (!has_bit(message.outputs, i)) continue;
    places.outputs[i] =
        walk.take(GuardedOutput::kGuardBytes + bytes + GuardedOutput::kGuardBytes) + GuardedOutput::kGuardBytes;
  }
  places.end = walk.end();
  return places;
}

void copy_in(std::byte* area, size_t place, const void* data, size_t bytes) {
  if (bytes > 0) std::memcpy(area + place, data, bytes);
}

template <class T>
std::span<const T> array_at(const std::byte* area, size_t place, size_t count) {
  return {reinterpret_cast<const T*>(area + place), count};
}

}  // namespace

ComputeMessage describe_call(const StepKind& kind, const StepCall& call) {
  ComputeMessage message;
  const StepView& columns = call.columns;
  message.step = columns.step;
  message.update_index = columns.update_index;
  message.num_rows = columns.layout.num_rows();
  message.num_tokens = columns.layout.num_tokens();
  message.num_functions = static_cast<int64_t>(call.reward_weights.size());
  for (size_t i = 0; i < kind.columns.size(); ++i) message.columns |= uint64_t{columns.has(kind.columns[i].name)} << i;
  for (size_t i = 0; i < call.outputs.size(); ++i) message.outputs |= uint64_t{!call.outputs[i].values.empty()} << i;
  message.input_bytes = input_places(kind, message).end;
  message.output_bytes = output_places(message).end;
  return message;
}

Result<> check_message(const StepKind& kind, const ComputeMessage& message) {
  const auto is_count = [](int64_t count) { return count >= 0 && count < kMostValues; };
  const bool good = is_count(message.num_rows) && is_count(message.num_tokens) && is_count(message.num_functions) &&
                    (message.num_rows == 0 || message.num_functions < kMostValues / message.num_rows) &&
                    message.input_bytes >= input_places(kind, message).end &&
                    message.output_bytes >= output_places(message).end;
  if (good) return {};
  return Error{ErrorKind::kPlugin, "asked for a call whose arrays are not there", "worker", hints::kOneBuildOfWorkers};
}

void write_inputs(const StepKind& kind, const ComputeMessage& message, const StepCall& call, std::byte* input) {
  const InputPlaces places = input_places(kind, message);
  const Layout& layout = call.columns.layout;
  copy_in(input, places.row_offsets, layout.row_offsets.data(), layout.row_offsets.size_bytes());
  copy_in(input, places.row_id, layout.row_id.data(), layout.row_id.size_bytes());
  copy_in(input, places.group_index, layout.group_index.data(), layout.group_index.size_bytes());
  for (size_t i = 0; i < kind.columns.size(); ++i) {
    if (!has_bit(message.columns, i)) continue;
    const InputColumn& column = kind.columns[i];
    const auto bytes = column.is_mask ? std::as_bytes(call.columns.get<uint8_t>(column.name))
                                      : std::as_bytes(call.columns.get<float>(column.name));
    copy_in(input, places.columns[i], bytes.data(), bytes.size());
  }
  copy_in(input, places.rewards, call.rewards.data(), call.rewards.size_bytes());
  copy_in(input, places.reward_weights, call.reward_weights.data(), call.reward_weights.size_bytes());
}

void read_outputs(const ComputeMessage& message, const std::byte* output, const StepCall& call) {
  const OutputPlaces places = output_places(message);
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const std::span<float> values = call.outputs[i].values;
    if (has_bit(message.outputs, i)) std::memcpy(values.data(), output + places.outputs[i], values.size_bytes());
  }
}

StepCall open_call(const StepKind& kind, const ComputeMessage& message, const std::byte* input, std::byte* output) {
  const InputPlaces places = input_places(kind, message);
  const auto rows = static_cast<size_t>(message.num_rows), functions = static_cast<size_t>(message.num_functions);
  StepCall call;
  call.columns.step = message.step;
  call.columns.update_index = message.update_index;
  call.columns.layout = {array_at<int64_t>(input, places.row_offsets, rows + 1),
                         array_at<int64_t>(input, places.row_id, rows),
                         array_at<int64_t>(input, places.group_index, rows)};
  for (size_t i = 0; i < kind.columns.size(); ++i) {
    if (!has_bit(message.columns, i)) continue;
    const InputColumn& column = kind.columns[i];
    const size_t count = num_values(column, message);
    if (column.is_mask)
      call.columns.set(column.name, array_at<uint8_t>(input, places.columns[i], count));
    else
      call.columns.set(column.name, array_at<float>(input, places.columns[i], count));
  }
  call.rewards = array_at<float>(input, places.rewards, rows * functions);
  call.reward_weights = array_at<float>(input, places.reward_weights, functions);
  const OutputPlaces out = output_places(message);
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i].name = kind.outputs[i];
    if (!has_bit(message.outputs, i)) continue;
    call.outputs[i].values = {reinterpret_cast<float*>(output + out.outputs[i]),
                              static_cast<size_t>(message.num_tokens)};
  }
  return call;
}

}  // namespace mortise
