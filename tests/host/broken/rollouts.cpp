// Rollout backends that break one rule each. Without a fault a completion has six ids, computed from seed, row and
// prompt.
#include <algorithm>

#include "plugins.h"

namespace broken {
namespace {

int64_t num_made = 0;  // sequences of rollout_repeatable

int32_t set_version(void* self, mortise_call*, int64_t version) noexcept {
  if (!of(self).is("rollout_weight_version")) of(self).version = version;
  return MORTISE_OK;
}

Request make_completion(Instance& instance, const mortise_rollout_request* request, int64_t sample) {
  Request out{request, request->request_id, sample, MORTISE_FINISH_STOP, {}};
  int64_t length = request->sampling->max_new_tokens < 6 ? request->sampling->max_new_tokens : 6;
  if (instance.is("rollout_lengths")) length = 6;
  for (int64_t i = 0; i < length; ++i)
    out.ids.push_back((int64_t(request->seed) + 7 * (request->first_row_id + sample) + i * request->prompt_ids[0]) %
                      100);
  if (instance.is("rollout_repeatable")) out.ids[0] = num_made++;
  return out;
}

int32_t submit(void* self, mortise_call* call, const mortise_rollout_request* const* requests, uint64_t num_requests,
               uint64_t* accepted) noexcept {
  Instance& instance = of(self);
  if (num_requests == 0 && instance.is("rollout_nothing_asked"))
    return instance.host->fail(call, MORTISE_INVALID_ARGUMENT, text("ask for something"));
  for (uint64_t i = 0; i < num_requests; ++i) {
    for (int64_t s = 0; s < requests[i]->num_samples; ++s) {
      if (instance.is("rollout_delivers") && i == 1 && s == 0) continue;
      instance.ready.push_back(make_completion(instance, requests[i], s));
    }
  }
  *accepted = num_requests;
  return MORTISE_OK;
}

int32_t poll(void* self, mortise_call*, const mortise_rollout_sink* sink, int64_t, uint64_t* outstanding) noexcept {
  Instance& instance = of(self);
  while (!instance.ready.empty() && !instance.stuck) {
    const Request& one = instance.ready.front();
    const std::vector<float> log_prob(one.ids.size(), -1.0F);
    mortise_rollout_sequence out{};
    out.struct_size = sizeof out;
    out.finish_reason = one.finish;
    out.request_id = instance.is("rollout_requests_copied") ? one.kept->request_id : one.id;
    out.sample_index = one.sample;
    out.weight_version = instance.version;
    out.num_ids = int64_t(one.ids.size());
    out.ids = one.ids.data();
    out.log_prob = log_prob.data();
    const int32_t stop = sink->sequence(sink->context, &out);
    if (stop != 0 && instance.is("rollout_back_pressure")) break;  // and gives it again next time
    instance.ready.erase(instance.ready.begin());
    if (stop != 0) break;
  }
  *outstanding = instance.ready.size();
  return MORTISE_OK;
}

int32_t abort(void* self, mortise_call*, int64_t request_id) noexcept {
  Instance& instance = of(self);
  instance.stuck = instance.is("rollout_abort");
  for (Request& one : instance.ready) {
    if (request_id == -1 || one.id == request_id) one.finish = MORTISE_FINISH_ABORT;
  }
  return MORTISE_OK;
}
int32_t sleep(void* self, mortise_call*, int32_t) noexcept {
  of(self).stuck = true;
  return MORTISE_OK;
}
int32_t wake(void* self, mortise_call*) noexcept {
  of(self).stuck = of(self).is("rollout_sleep_wake");
  return MORTISE_OK;
}

int32_t begin_update(void* self, mortise_call*, int64_t version) noexcept {
  of(self).version = version;
  return MORTISE_OK;
}
int32_t update_weight(void* self, mortise_call*, mortise_text, const mortise_tensor* shard, const int64_t*,
                      const int64_t*) noexcept {
  of(self).carry = static_cast<float*>(mortise_tensor_data(shard))[0];
  return MORTISE_OK;
}
int32_t end_update(void* self, mortise_call* call) noexcept {
  if (!of(self).is("rollout_weights")) return MORTISE_OK;
  return of(self).host->fail(call, MORTISE_INTERNAL, text("half of the weights are missing"));
}

}  // namespace
}  // namespace broken

#define ROLLOUT(name)                                                                                                  \
  BROKEN_PLUGIN(rollout_backend, ROLLOUT_BACKEND, name, 0, broken::set_version, broken::begin_update,                  \
                broken::update_weight, broken::end_update, broken::submit, broken::poll, broken::abort, broken::sleep, \
                broken::wake)
ROLLOUT(fine_rollout)
ROLLOUT(rollout_delivers)
ROLLOUT(rollout_lengths)
ROLLOUT(rollout_weight_version)
ROLLOUT(rollout_back_pressure)
ROLLOUT(rollout_abort)
ROLLOUT(rollout_repeatable)
ROLLOUT(rollout_sleep_wake)
ROLLOUT(rollout_requests_copied)
ROLLOUT(rollout_nothing_asked)
ROLLOUT(rollout_weights)
