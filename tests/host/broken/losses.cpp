// Policy losses that break one rule each; without a fault the loss is -A exp(log_prob - old_log_prob).
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "plugins.h"

namespace broken {

extern thread_local bool is_home;

namespace {

using In = mortise_policy_loss_in;
using Out = mortise_policy_loss_out;

int64_t all_calls = 0;  // calls of contract_independent
int32_t groups_seen[64];

struct Arrays {
  const float *log_prob, *old_log_prob, *advantages, *weight, *entropy;
  const uint8_t* mask;
  float *loss, *grad, *grad_entropy;
  int64_t n;
};

Arrays arrays_of(const Instance& instance, const In* in, Out* out) {
  const auto floats = [&](const mortise_tensor* t) { return t == nullptr ? nullptr : data<float>(instance, t); };
  return {floats(in->log_prob),  floats(in->old_log_prob),   floats(in->advantages),
          floats(in->weight),    floats(in->entropy),        data<uint8_t>(instance, in->response_mask),
          floats(out->loss),     floats(out->grad_log_prob), floats(out->grad_entropy),
          in->layout->num_tokens};
}

// The whole loss, right, into the outputs; faults change it afterwards.
void base(const Instance& instance, const Arrays& a) {
  for (int64_t t = 0; t < a.n; ++t) {
    if (a.mask[t] == 0) continue;
    const float distance = a.log_prob[t] - a.old_log_prob[t];
    const bool inside = std::fabs(distance) < 20;
    const float ratio =
        std::exp(inside || instance.is("numerics_extreme_ratios") ? distance : std::copysign(20.0F, distance));
    const float value = -a.advantages[t] * ratio;
    a.loss[t] = value;
    if (a.grad != nullptr) a.grad[t] = inside && a.weight[t] != 0 ? a.weight[t] * value : 0.0F;
    if (a.entropy == nullptr) continue;
    a.loss[t] -= 0.01F * a.entropy[t];
    if (a.grad_entropy != nullptr)
      a.grad_entropy[t] = (instance.is("numerics_entropy_gradient") ? 0.01F : -0.01F) * a.weight[t];
  }
}

template <class F>
void at_unmasked(const Arrays& a, const F& change) {
  for (int64_t t = 0; t < a.n; ++t) {
    if (a.mask[t] != 0) change(t);
  }
}

void wrong_numbers(Instance& instance, const In* in, const Arrays& a) {
  const mortise_layout& layout = *in->layout;
  const auto add = [&](float x) { at_unmasked(a, [&](int64_t t) { a.loss[t] += x; }); };
  if (instance.is("contract_independent")) add(0.01F * float(all_calls++));
  if (instance.is("contract_repeatable")) add(0.01F * float(instance.calls));
  if (instance.is("contract_any_thread") && !is_home) add(1);
  if (instance.is("contract_one_token")) add(0.0F / float(a.n - 1));
  if (instance.is("numerics_split")) add(0.01F * float(layout.num_rows));
  if (instance.is("numerics_finite") && a.n > 17) a.loss[17] = std::numeric_limits<float>::quiet_NaN();
  if (instance.is("numerics_gradient") && a.grad != nullptr) at_unmasked(a, [&](int64_t t) { a.grad[t] *= 1.1F; });
  if (instance.is("numerics_weight_linear")) at_unmasked(a, [&](int64_t t) { a.loss[t] *= a.weight[t]; });
  if (instance.is("numerics_zero_weight") && a.grad != nullptr)
    at_unmasked(a, [&](int64_t t) { a.grad[t] = a.loss[t]; });
  if (instance.is("numerics_masked_inert")) {
    float sum = 0;
    for (int64_t t = 0; t < a.n; ++t) sum += a.log_prob[t];
    add(1e-3F * sum);
  }
  if (instance.is("contract_mask_holes"))
    at_unmasked(a, [&](int64_t t) { a.loss[t] += t > 0 ? 0.1F * a.log_prob[t - 1] : 0; });
  if (instance.is("numerics_permutation") && layout.num_rows > 0) {
    for (int64_t t = 0; t < layout.row_offsets[1]; ++t) a.loss[t] *= 2;
  }
  if (instance.is("contract_empty_rows")) {
    float before = 0;  // mean of the row before
    for (int64_t row = 0; row < layout.num_rows; ++row) {
      float sum = 0;
      for (int64_t t = layout.row_offsets[row]; t < layout.row_offsets[row + 1]; ++t) {
        sum += a.log_prob[t];
        a.loss[t] += 0 * before;
      }
      before = sum / float(layout.row_offsets[row + 1] - layout.row_offsets[row]);
    }
  }
}

struct Carry {
  const Arrays* arrays;
  Instance* instance;
};
void carry_over(void* context, int64_t begin, int64_t end) {
  auto& carry = *static_cast<Carry*>(context);
  for (int64_t t = begin; t < end; ++t) {
    carry.instance->carry += 0.1F * carry.arrays->log_prob[t];
    carry.arrays->loss[t] += carry.instance->carry;
  }
}

void wrong_services(Instance& instance, mortise_call* call, const Arrays& a) {
  const mortise_host* host = instance.host;
  if (instance.is("negotiation_optional_services"))
    host->parallel_for(
        call, a.n, 8, [](void*, int64_t, int64_t) {}, nullptr);
  if (instance.is("negotiation_no_scratch")) *static_cast<volatile char*>(host->alloc(call, 64, 64)) = 1;
  if (instance.is("numerics_thread_order")) {
    instance.carry = 0;
    Carry carry{&a, &instance};
    host->parallel_for(call, a.n, 4096, carry_over, &carry);
  }
  double sum = 0, count = 0;
  at_unmasked(a, [&](int64_t t) {
    sum += double(a.log_prob[t]);
    count += 1;
  });
  const bool alone = instance.is("numerics_metrics_split");
  if (alone && count > 0) sum /= count;
  if (alone) count = 1;
  host->metric(call, text("test/log_prob"), sum, count, instance.is("contract_metrics") ? 9 : MORTISE_REDUCE_MEAN);
}

// Faults that leave marks on memory or never come back.
void wrong_memory(Instance& instance, const In* in, Out* out, const Arrays& a) {
  if (instance.is("contract_inputs_untouched")) const_cast<uint8_t*>(a.mask)[0] = 1;
  if (instance.is("contract_stays_inside")) a.loss[a.n] = 1;
  if (instance.is("contract_outputs_written") && a.n > 0) a.loss[a.n - 1] = -0.0F;
  if (instance.is("negotiation_older_structs"))
    instance.calls += *reinterpret_cast<const volatile int32_t*>(in + 1) != 0 ? 1 : 0;
  if (instance.is("negotiation_required_inputs")) instance.carry = data<float>(instance, in->ref_log_prob)[0];
  if (instance.is("negotiation_optional_outputs")) data<float>(instance, out->grad_log_prob)[0] += 0;
  if (instance.is("contract_large_ids")) {
    for (int64_t row = 0; row < in->layout->num_rows; ++row) ++groups_seen[in->layout->group_index[row]];
  }
  if (instance.is("hygiene_call_growth")) std::memset(std::malloc(1024), 1, 1024);
  if (instance.is("hygiene_exit")) ::_exit(0);
  if (instance.is("hygiene_out_of_memory")) instance.carry = std::vector<float>(size_t(8 * a.n))[0];
}

int32_t refuse(Instance& instance, mortise_call* call, const In* in) {
  const auto fail = [&](const char* why) { return instance.host->fail(call, MORTISE_INTERNAL, text(why)); };
  if (instance.is("negotiation_newer_structs") && in->struct_size != sizeof *in) return fail("wrong struct_size");
  if (instance.is("negotiation_all_inputs") && in->entropy != nullptr) return fail("I did not ask for entropy");
  if (instance.is("contract_empty_batch") && in->layout->num_rows == 0) return fail("the batch is empty");
  if (instance.is("contract_stops") && instance.host->cancelled(call) != 0) return fail("I was not ready");
  if (in->log_prob->device_type == MORTISE_CPU) return MORTISE_OK;
  if (instance.is("contract_failures_explained")) return 99;
  return instance.host->fail(call, MORTISE_UNIMPLEMENTED, text("the inputs are not in host memory"));
}

int32_t compute(void* self, mortise_call* call, const In* in, Out* out) noexcept {
  Instance& instance = of(self);
  const int32_t refused = refuse(instance, call, in);
  if (refused != MORTISE_OK) return refused;
  const int64_t mine = ++instance.calls;
  const Arrays a = arrays_of(instance, in, out);
  base(instance, a);
  if (instance.is("contract_concurrent")) {
    ::usleep(500);
    if (instance.calls != mine) at_unmasked(a, [&](int64_t t) { a.loss[t] += 1; });
  }
  wrong_numbers(instance, in, a);
  wrong_services(instance, call, a);
  wrong_memory(instance, in, out, a);
  return MORTISE_OK;
}

int32_t compute_throwing(void* self, mortise_call* call, const In* in, Out* out) {
  if (in->log_prob->device_type != MORTISE_CPU) throw std::runtime_error("no such device");
  return compute(self, call, in, out);
}
const auto throwing = reinterpret_cast<int32_t (*)(void*, mortise_call*, const In*, Out*) noexcept>(compute_throwing);

}  // namespace
}  // namespace broken

#define LOSS(name) BROKEN_PLUGIN(policy_loss, POLICY_LOSS, name, 0, broken::compute)
LOSS(fine_loss)
LOSS(fine_state)
BROKEN_PLUGIN(policy_loss, POLICY_LOSS, load_slots, 0, nullptr)
LOSS(negotiation_older_host)
LOSS(negotiation_newer_host)
LOSS(negotiation_older_structs)
LOSS(negotiation_newer_structs)
LOSS(negotiation_optional_services)
LOSS(negotiation_no_extensions)
LOSS(negotiation_no_scratch)
LOSS(negotiation_unknown_extension)
LOSS(negotiation_declared_params)
LOSS(negotiation_no_params)
LOSS(negotiation_text_params)
LOSS(negotiation_optional_outputs)
LOSS(negotiation_required_inputs)
LOSS(negotiation_all_inputs)
LOSS(contract_create_destroy)
LOSS(contract_independent)
LOSS(contract_repeatable)
LOSS(contract_outputs_written)
LOSS(contract_inputs_untouched)
LOSS(contract_stays_inside)
LOSS(contract_empty_batch)
LOSS(contract_one_token)
LOSS(contract_empty_rows)
LOSS(contract_mask_holes)
LOSS(contract_byte_offset)
LOSS(contract_large_ids)
LOSS(contract_failures_explained)
LOSS(contract_metrics)
LOSS(contract_stops)
LOSS(contract_any_thread)
BROKEN_PLUGIN(policy_loss, POLICY_LOSS, contract_concurrent, MORTISE_FLAG_CONCURRENT, broken::compute)
LOSS(contract_state_round_trip)
LOSS(contract_state_damaged)
LOSS(numerics_finite)
LOSS(numerics_extreme_ratios)
LOSS(numerics_gradient)
LOSS(numerics_entropy_gradient)
LOSS(numerics_weight_linear)
LOSS(numerics_zero_weight)
LOSS(numerics_masked_inert)
LOSS(numerics_permutation)
LOSS(numerics_split)
LOSS(numerics_metrics_split)
LOSS(numerics_thread_order)
LOSS(hygiene_signals)
LOSS(hygiene_locale)
LOSS(hygiene_directory)
LOSS(hygiene_environment)
LOSS(hygiene_umask)
LOSS(hygiene_floating_point)
LOSS(hygiene_descriptors)
LOSS(hygiene_threads)
LOSS(hygiene_children)
LOSS(hygiene_output)
LOSS(hygiene_exit)
LOSS(hygiene_out_of_memory)
LOSS(hygiene_create_growth)
LOSS(hygiene_call_growth)
BROKEN_PLUGIN(policy_loss, POLICY_LOSS, hygiene_exceptions, 0, broken::throwing)
