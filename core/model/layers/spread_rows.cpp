// A node of the autograd graph that hands the gradients of an embedding's rows in.
#include "model/layers/spread_rows.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mortise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On its way through the graph: a context keeps IValues only. The gate of the model, which owns the rows, outlives the graph.
struct RowsHolder : torch::CustomClassHolder {
  explicit RowsHolder(SpreadRows& rows_in) : rows(&rows_in) {}
  SpreadRows* rows;
};

class PickRows : public torch::autograd::Function<PickRows> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*leaf*/, const at::Tensor& ids,
                            const c10::intrusive_ptr<RowsHolder>& holder) {
    ctx->saved_data["rows"] = c10::IValue::make_capsule(holder);
    ctx->save_for_backward({ids});
    return holder->rows->pick(ids);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = ctx->saved_data["rows"].toCapsule();
    const auto& holder = *static_cast<const RowsHolder*>(capsule.get());
    holder.rows->add_gradient(ctx->get_saved_variables()[0], grads[0]);
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor spread_embedding(const at::Tensor& leaf_VH, const at::Tensor& ids_N, SpreadRows& rows) {
  return PickRows::apply(leaf_VH, ids_N, c10::make_intrusive<RowsHolder>(rows));
}

}  // namespace mortise
