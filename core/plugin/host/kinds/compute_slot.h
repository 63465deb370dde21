// The slot `compute` as policy losses, KL estimators and advantage estimators share it: its check and its call. Each
// kind fills the fields that only its own structs have. Private to this folder.
//
// Thread rule: that of PluginInstance.
#pragma once

#include <utility>

#include "plugin/host/abi_struct.h"
#include "plugin/host/kinds/fill_columns.h"
#include "plugin/host/kinds/slots.h"
#include "plugin/host/kinds/step_call.h"
#include "plugin/host/kinds/tensor_args.h"

namespace mortise {

template <class Vtable>
Result<> check_compute(const PluginInstance& instance) {
  return check_slots(instance, {{kStepSlot.data(), vtable_of<Vtable>(instance).compute != nullptr}});
}

// Fills the layout and the columns, lets `fill(in, out)` do the rest with `args`, calls the slot, and checks the guard
// words.
template <class Vtable, class In, class Out, class Fill>
Result<CallReport> call_compute(PluginInstance& instance, TensorArgs& args, const StepCall& call, MetricSet* metrics,
                                const CallOptions& options, const Fill& fill) {
  const StepView& columns = call.columns;
  const mortise_layout layout = c_layout(columns.layout);
  auto in = make_abi_struct<In>();
  in.layout = &layout;
  fill_columns(columns, instance.info(), args, in);
  auto out = make_abi_struct<Out>();
  fill(in, out);
  TRY(args.send(instance, kStepSlot, columns.step));
  CallOptions with_stream = options;
  with_stream.stream = args.stream();

  const auto slot = catchable(vtable_of<Vtable>(instance).compute);
  Result<CallReport> called = instance.call(kStepSlot, columns.step, metrics, with_stream, [&](mortise_call* context) {
    return slot(instance.self(), context, &in, &out);
  });
  // Also if the slot failed: the device must have ended what it started before the tensors, or the instance, are gone.
  Result<> received = args.receive(instance, kStepSlot, columns.step);
  CallReport report = TRY(std::move(called));
  TRY(std::move(received));
  TRY(args.check_guards(instance, kStepSlot, columns.step, columns.layout));
  args.finish();
  return report;
}

}  // namespace mortise
