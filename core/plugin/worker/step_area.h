// The inputs and outputs of a call of `compute` in shared memory: one area that the trainer writes and the worker only
// reads, and one for the outputs. Both sides compute the places from the numbers in the ComputeMessage.
//
// Every array begins at a multiple of 64 bytes, as plugins expect. Each output lies between bytes for guard words.
// Cost: the trainer copies each input in and each output out once. Threading: plain values.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>

#include "foundation/base/result.h"
#include "plugin/host/kinds/step_call.h"
#include "plugin/worker/messages.h"

namespace mortise {

// The head of an output area.
struct StepHead {
  std::atomic<bool> cancelled;  // set by the trainer
};

// What a message says of a call: its numbers, columns and outputs, and the bytes of its areas. The rest is the caller's.
[[nodiscard]] ComputeMessage describe_call(const StepKind& kind, const StepCall& call);

// Whether the areas of a message hold what it describes.
[[nodiscard]] Result<> check_message(const StepKind& kind, const ComputeMessage& message);

// The trainer's side. The areas have the bytes that describe_call() says.
void write_inputs(const StepKind& kind, const ComputeMessage& message, const StepCall& call, std::byte* input);
void read_outputs(const ComputeMessage& message, const std::byte* output, const StepCall& call);

// The worker's side: the call over the areas.
[[nodiscard]] StepCall open_call(const StepKind& kind, const ComputeMessage& message, const std::byte* input,
                                 std::byte* output);

}  // namespace mortise
