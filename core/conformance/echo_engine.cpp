// The generator of the simulated host: it makes completions from the counters of a request.
#include "conformance/echo_engine.h"

#include <deque>
#include <vector>

#include "foundation/base/rng.h"

namespace mortise::check {
namespace {

struct Sequence {
  int64_t request_id, sample;
  int32_t finish;
  std::vector<int64_t> ids;
  std::vector<float> log_prob;
};
struct Engine {
  int64_t version = 0;
  std::deque<Sequence> ready;
};
Engine& engine_of(void* self) { return *static_cast<Engine*>(self); }

int32_t create(const mortise_host*, mortise_call*, void** self) noexcept {
  *self = new Engine;
  return MORTISE_OK;
}
void destroy(void* self) noexcept { delete static_cast<Engine*>(self); }

int32_t set_version(void* self, mortise_call*, int64_t version) noexcept {
  engine_of(self).version = version;
  return MORTISE_OK;
}

Sequence make(const mortise_rollout_request& request, int64_t sample) {
  Sequence out{request.request_id, sample, MORTISE_FINISH_STOP, {}, {}};
  const RngKey key{.seed = request.seed,
                   .purpose = RandomPurpose::kPlugin,
                   .step = static_cast<uint64_t>(request.step),
                   .sample = static_cast<uint64_t>(request.first_row_id + sample),
                   .token = 0};
  const auto longest = static_cast<uint64_t>(request.sampling->max_new_tokens);
  const uint64_t length = 1 + random_u64(key, 0) % longest;
  for (uint64_t i = 0; i < length; ++i) {
    out.ids.push_back(static_cast<int64_t>(random_u64(key, 1 + i) % 100));
    out.log_prob.push_back(-1.0F);
  }
  if (length == longest) out.finish = MORTISE_FINISH_LENGTH;
  return out;
}

int32_t submit(void* self, mortise_call*, const mortise_rollout_request* const* requests, uint64_t num_requests,
               uint64_t* accepted) noexcept {
  for (uint64_t i = 0; i < num_requests; ++i) {
    for (int64_t s = 0; s < requests[i]->num_samples; ++s) engine_of(self).ready.push_back(make(*requests[i], s));
  }
  *accepted = num_requests;
  return MORTISE_OK;
}

int32_t poll(void* self, mortise_call*, const mortise_rollout_sink* sink, int64_t, uint64_t* outstanding) noexcept {
  Engine& engine = engine_of(self);
  while (!engine.ready.empty()) {
    const Sequence& s = engine.ready.front();
    mortise_rollout_sequence out{};
    out.struct_size = sizeof out;
    out.finish_reason = s.finish;
    out.request_id = s.request_id;
    out.sample_index = s.sample;
    out.weight_version = engine.version;
    out.num_ids = static_cast<int64_t>(s.ids.size());
    out.ids = s.ids.data();
    out.log_prob = s.log_prob.data();
    const int32_t stop = sink->sequence(sink->context, &out);
    engine.ready.pop_front();
    if (stop != 0) break;
  }
  *outstanding = engine.ready.size();
  return MORTISE_OK;
}

int32_t abort_request(void* self, mortise_call*, int64_t request_id) noexcept {
  for (Sequence& s : engine_of(self).ready) {
    if (request_id == -1 || s.request_id == request_id) s.finish = MORTISE_FINISH_ABORT;
  }
  return MORTISE_OK;
}
int32_t sleep(void*, mortise_call*, int32_t) noexcept { return MORTISE_OK; }
int32_t wake(void*, mortise_call*) noexcept { return MORTISE_OK; }

constexpr mortise_rollout_backend_vtable kEngine = {sizeof(mortise_rollout_backend_vtable),
                                                    0,
                                                    create,
                                                    destroy,
                                                    nullptr,
                                                    set_version,
                                                    nullptr,
                                                    nullptr,
                                                    nullptr,
                                                    submit,
                                                    poll,
                                                    abort_request,
                                                    sleep,
                                                    wake};

}  // namespace

const mortise_rollout_backend_vtable* echo_engine() { return &kEngine; }

}  // namespace mortise::check
