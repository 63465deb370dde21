// See extension.h. Nothing thrown crosses the border: every slot ends in guarded().
#include "generate/extension.h"

#include <mutex>

#include "mortise/cpp/sampling.hpp"
#include "plugin/host/abi_struct.h"
#include "plugin/host/extension_call.h"
#include "plugin/host/host_services.h"

namespace mortise {
namespace {

struct Installed {
  std::mutex mutex;
  const Model* model = nullptr;
  EngineOptions options;
};
Installed& installed() {
  static Installed instance;
  return instance;
}

struct Client {
  const mortise_host* host = nullptr;
  std::string regex;  // pattern for all its requests; empty: none
  std::mutex mutex;
  std::unique_ptr<GenerateEngine> engine;
};

// body(engine) -> Result<>, under the instance's lock.
template <class Body>
int32_t guarded(void* self, mortise_call* call, Body body) noexcept {
  auto& client = *static_cast<Client*>(self);
  return guard_extension(client.host, call, "the generation engine", [&]() -> Result<> {
    const std::lock_guard lock(client.mutex);
    return body(*client.engine);
  });
}

bool is_rollout(const InstanceIdentity& who) { return who.label.starts_with("rollout_backend "); }

// Ranks that sample together make the same calls. Rollouts do so; other plugins call on one rank alone.
Result<> check_caller(const mortise_call* call, const EngineOptions& options) {
  const InstanceIdentity* const who = call == nullptr ? nullptr : call->identity;
  if (options.ranks == nullptr || who == nullptr || is_rollout(*who)) return {};
  return Error{ErrorKind::kConfig,
               "only rollouts can sample with the policy while ranks share it (rollout.tensor_model_parallel_size)", "",
               "set rollout.tensor_model_parallel_size to 1"};
}

int32_t create(const mortise_host* host, mortise_call* call, void** self) noexcept {
  return guard_extension(host, call, "the generation engine", [&]() -> Result<> {
    Installed& source = installed();
    const std::lock_guard lock(source.mutex);
    if (source.model == nullptr)
      return Error{ErrorKind::kConfig, "this process holds no model to generate with", "", ""};
    TRY(check_caller(call, source.options));
    auto client = std::make_unique<Client>();
    client->host = host;
    EngineOptions options = source.options;
    if (source.model->sampled_forward() != nullptr && call != nullptr && call->identity != nullptr)
      options.keeps_forward = is_rollout(*call->identity);
    const bool is_guided = !options.rollout_regex.empty() && call != nullptr && call->identity != nullptr;
    if (is_guided && is_rollout(*call->identity)) client->regex = options.rollout_regex;
    client->engine = TRY(GenerateEngine::create(*source.model, options));
    *self = client.release();
    return {};
  });
}

void destroy(void* self) noexcept { delete static_cast<Client*>(self); }

int32_t set_version(void* self, mortise_call* call, int64_t version) noexcept {
  return guarded(self, call, [&](GenerateEngine& engine) { return engine.set_version(version); });
}

Result<GenerateRequest> read_request(const mortise_rollout_request* from) {
  const auto request = read_abi_struct(from);
  GenerateRequest out;
  out.request_id = request.request_id;
  if (request.sampling == nullptr || (request.prompt_ids == nullptr && request.num_prompt_ids > 0)) {
    return Error{ErrorKind::kData, "sampling or prompt_ids is null",
                 "generate: request " + std::to_string(out.request_id), "set both"};
  }
  if (request.num_prompt_ids > 0)
    out.prompt_ids.assign(request.prompt_ids, request.prompt_ids + request.num_prompt_ids);
  out.num_samples = request.num_samples;
  out.first_row_id = request.first_row_id;
  out.seed = request.seed;
  out.step = request.step;
  read_sampling(*request.sampling, out.sampling);
  return out;
}

int32_t submit(void* self, mortise_call* call, const mortise_rollout_request* const* requests, uint64_t num_requests,
               uint64_t* accepted) noexcept {
  *accepted = 0;
  const std::string& regex = static_cast<Client*>(self)->regex;
  return guarded(self, call, [&](GenerateEngine& engine) -> Result<> {
    std::vector<GenerateRequest> copies;
    copies.reserve(num_requests);
    for (uint64_t i = 0; i < num_requests; ++i) {
      copies.push_back(TRY(read_request(requests[i])));
      copies.back().sampling.regex = regex;
    }
    *accepted = TRY(engine.submit(copies));
    return {};
  });
}

int32_t poll(void* self, mortise_call* call, const mortise_rollout_sink* sink, int64_t timeout_ns,
             uint64_t* outstanding) noexcept {
  return guarded(self, call, [&](GenerateEngine& engine) -> Result<> {
    const auto give = [&](const GeneratedSequence& sequence) {
      auto out = make_abi_struct<mortise_rollout_sequence>();
      out.finish_reason = static_cast<int32_t>(sequence.finish_reason);
      out.request_id = sequence.request_id;
      out.sample_index = sequence.sample_index;
      out.weight_version = sequence.weight_version;
      out.num_ids = static_cast<int64_t>(sequence.ids.size());
      out.ids = sequence.ids.data();
      out.log_prob = sequence.log_prob.data();
      out.filtered_log_prob = sequence.filtered_log_prob.empty() ? nullptr : sequence.filtered_log_prob.data();
      if (!sequence.experts.empty()) out.experts = sequence.experts.data();
      out.num_experts = sequence.experts.size();
      return sink->sequence(sink->context, &out) == 0;
    };
    *outstanding = TRY(engine.poll(give, std::chrono::nanoseconds(timeout_ns)));
    return {};
  });
}

int32_t abort_request(void* self, mortise_call* call, int64_t request_id) noexcept {
  return guarded(self, call, [&](GenerateEngine& engine) -> Result<> {
    engine.abort(request_id);
    return {};
  });
}

int32_t sleep(void* self, mortise_call* call, int32_t level) noexcept {
  (void)level;
  return guarded(self, call, [](GenerateEngine& engine) -> Result<> {
    engine.free_caches();
    return {};
  });
}

int32_t wake(void* self, mortise_call* call) noexcept {
  (void)self;
  (void)call;
  return MORTISE_OK;  // what sleep freed comes back with the next poll
}

mortise_rollout_backend_vtable make_vtable() {
  auto table = make_abi_struct<mortise_rollout_backend_vtable>();
  table.create = create;
  table.destroy = destroy;
  table.set_version = set_version;
  table.submit = submit;
  table.poll = poll;
  table.abort = abort_request;
  table.sleep = sleep;
  table.wake = wake;
  return table;
}

}  // namespace

void install_generate_model(const Model* model, const EngineOptions& options) {
  Installed& source = installed();
  const std::lock_guard lock(source.mutex);
  source.model = model;
  source.options = options;
  if (model != nullptr && !options.shared_weights) source.options.shared_weights = std::make_shared<SharedWeights>();
}

const mortise_rollout_backend_vtable* generate_extension() {
  static const mortise_rollout_backend_vtable table = make_vtable();
  return &table;
}

}  // namespace mortise
