// See completions_protocol.h. The bodies are those that vLLM 0.32 was seen to take and to answer.
#include "completions_protocol.h"

#include <cmath>
#include <cstdlib>

#include "adapter_calls.h"
#include "json_answer.h"
#include "pickles.h"
#include "transfer_lists.h"
#include "version_names.h"

namespace mortise {
namespace {

constexpr double kCertain = -1e-5;  // log-probs above it are those of the only token left

constexpr const char* kModelsPath = "/v1/models";
constexpr const char* kMetricsPath = "/metrics";
constexpr const char* kPausedPath = "/is_paused";
constexpr const char* kVersionPath = "/weight_info";
constexpr const char* kCompletionsPath = "/v1/completions";
constexpr const char* kRanksPath = "/get_world_size";
constexpr const char* kProgramPath = "/version";
constexpr const char* kStartPath = "/start_weight_update";
constexpr const char* kFinishPath = "/finish_weight_update";
constexpr std::int64_t kFirstPackedFromStart = 28;  // vLLM 0.28; earlier ones are told so with each update
constexpr std::uint64_t kBucketBytes = 1U << 30;    // vLLM's packed_buffer_size_bytes
constexpr std::int64_t kFirstWithUniqueId = 30;     // vLLM 0.30; earlier ones look for NCCL's unique id in the store

// Four prompts of one token, of which only the likeliest next token may be sampled: its log-prob is 0 if it was taken
// after the filters, and the model's own if before.
AnswerJson probe_prompts() {
  AnswerJson out = AnswerJson::array();
  for (const int id : {1, 2, 3, 5}) out.push_back(AnswerJson::array({id}));
  return out;
}

AnswerJson common_body(const ServerRequest& request, const ServerFacts& facts) {
  return {{"model", facts.adapter.empty() ? facts.model : facts.adapter},
          {"prompt", request.prompt_ids},
          {"n", request.num_samples},
          {"max_tokens", request.max_new_tokens},
          {"temperature", request.temperature},
          {"top_p", request.top_p},
          {"presence_penalty", request.presence_penalty},
          {"frequency_penalty", request.frequency_penalty},
          {"logprobs", 0},
          {"return_token_ids", true},
          // The run's own end ids are sent. They count like any stop id, so that min_tokens holds for them too.
          {"ignore_eos", true},
          {"stop_token_ids", request.stop_ids}};
}

std::int32_t reason_of(const AnswerJson* reason) {
  if (reason == nullptr) return -1;
  if (*reason == "stop") return MORTISE_FINISH_STOP;
  if (*reason == "length") return MORTISE_FINISH_LENGTH;
  return -1;
}

// "token_logprobs", and where the server tells them apart "filtered_token_logprobs".
std::string read_log_probs(const AnswerJson& choice, const ServerRequest& request, const ServerFacts& facts,
                           ServerSample& sample) {
  const AnswerJson* const log_probs = member_of(choice, "logprobs");
  if (log_probs == nullptr) return "a choice has no logprobs";
  std::vector<float> given;
  if (!read_floats(member_of(*log_probs, "token_logprobs"), given)) return "token_logprobs are not all numbers";
  if (given.size() != sample.ids.size()) {
    return "a choice has " + std::to_string(given.size()) + " log-probs for " + std::to_string(sample.ids.size()) +
           " tokens";
  }
  place_log_probs(request, facts.log_probs, std::move(given), sample);
  const AnswerJson* const filtered = member_of(*log_probs, "filtered_token_logprobs");
  if (filtered != nullptr && !read_floats(filtered, sample.filtered_log_prob))
    return "filtered_token_logprobs are not all numbers";
  return "";
}

std::string read_choice(const AnswerJson& choice, const ServerRequest& request, const ServerFacts& facts,
                        ServerSample& sample) {
  const AnswerJson* const index = member_of(choice, "index");
  if (index == nullptr || !index->is_number_integer()) return "a choice has no index";
  sample.index = index->get<std::int64_t>();
  if (!read_ids(member_of(choice, "token_ids"), sample.ids)) return "a choice has no token_ids";
  sample.finish_reason = reason_of(member_of(choice, "finish_reason"));
  if (sample.finish_reason < 0) {
    const AnswerJson* const reason = member_of(choice, "finish_reason");
    return "a choice ended with " + (reason == nullptr ? std::string("no finish_reason") : json_line(*reason));
  }
  if (const AnswerJson* prompt = member_of(choice, "prompt_token_ids")) {
    std::vector<std::int64_t> ids;
    if (!read_ids(prompt, ids) || ids != request.prompt_ids) return "it completed another prompt than it was given";
  }
  return read_log_probs(choice, request, facts, sample);
}

std::int64_t told_version(const AnswerJson& choice) { return read_version(member_of(choice, "weight_version")); }

// A plain number is that of a server that knows no marks. It is taken as this run's.
std::int64_t told_name(const AnswerJson& choice) {
  if (const AnswerJson* const name = member_of(choice, "weight_name")) return read_version(name);
  const std::int64_t version = told_version(choice);
  return version < 0 || version >= kMarkUnit ? version : version_name(version);
}

// vLLM would end such a completion early, and say that it has reached its length.
std::string too_long(const ServerRequest& request, const ServerFacts& facts) {
  const std::int64_t num_prompt = std::int64_t(request.prompt_ids.size());
  if (facts.max_length == 0 || num_prompt + request.max_new_tokens <= facts.max_length) return "";
  return "complete a prompt of " + std::to_string(num_prompt) + " tokens with " +
         std::to_string(request.max_new_tokens) + " new ones: its context is " + std::to_string(facts.max_length) +
         " tokens. Raise the server's limit (vLLM: --max-model-len), or lower data.max_response_length";
}

// The calls after a paused server has loaded new weights: they name the weights, and the server samples again.
std::vector<HttpCall> after_weights(std::int64_t version) {
  const AnswerJson named = {{"new_version", std::to_string(version)}};
  return {{"/update_weight_version", json_line(named), false, true},
          // Prompts that were computed with the old weights must go.
          {"/reset_prefix_cache?reset_running_requests=true", "{}"},
          {"/resume", "{}"}};
}

// {"version": "0.32.0+cpu"} or {"world_size": 2}
std::string read_transfer_probe(const std::string& path, const std::string& body, bool is_one, ServerFacts& facts) {
  const auto parsed = parse::parse_json(body);
  if (path == kRanksPath) {
    facts.num_ranks = parsed ? read_count(member_of(*parsed, "world_size"), 0) : 0;
    if (facts.num_ranks < 1) return "does not say how many processes take its weights";
    if (!is_one || facts.num_ranks == 1) return "";
    return "has several GPUs, and the trainer shares one. Set weight_transfer to \"nccl\" or \"file\"";
  }
  const AnswerJson* const version = parsed ? member_of(*parsed, "version") : nullptr;
  if (version == nullptr || !version->is_string()) return "";
  const std::string& text = version->get_ref<const std::string&>();
  const std::size_t dot = text.find('.');
  const std::int64_t major = std::strtoll(text.c_str(), nullptr, 10);
  const std::int64_t minor = dot == std::string::npos ? 0 : std::strtoll(text.c_str() + dot + 1, nullptr, 10);
  facts.takes_unique_id = major > 0 || minor >= kFirstWithUniqueId;
  facts.packs_from_start = major > 0 || minor >= kFirstPackedFromStart;
  return "";
}

// vLLM refuses what is above, and samples at kColdest what is below without a word.
constexpr double kHottest = 2, kColdest = 0.01;

}  // namespace

std::vector<HttpCall> CompletionsProtocol::probes(const ServerFacts& facts) const {
  std::vector<HttpCall> calls = {{kModelsPath, "", true, false}};
  if (facts.is_mortise) return calls;
  calls.push_back(identity_call());
  AnswerJson body = {
      {"model", facts.model}, {"prompt", probe_prompts()}, {"max_tokens", 1}, {"temperature", 1.0}, {"top_k", 1},
      {"logprobs", 0},        {"return_token_ids", true}};
  calls.push_back({kCompletionsPath, json_line(body), false, false, false, true});
  return calls;
}

HttpCall CompletionsProtocol::identity_call() const { return {kMetricsPath, "", true, true}; }

// Prometheus' client for Python tells when its process started.
std::string CompletionsProtocol::read_identity(const std::string& body) const {
  const std::size_t at = body.find("\nprocess_start_time_seconds ");
  return at == std::string::npos ? "" : body.substr(at + 1, body.find('\n', at + 1) - at - 1);
}

std::string CompletionsProtocol::read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const {
  const std::string path = probes(facts)[number].path;
  if (path == kMetricsPath) {
    facts.identity = read_identity(answer.body);
    return "";
  }
  const auto parsed = parse::parse_json(answer.body);
  if (!parsed) return "answered with text that is not JSON (" + parsed.fault().to_string() + ")";
  if (path == kModelsPath) {
    const AnswerJson* const list = member_of(*parsed, "data");
    if (list == nullptr || !list->is_array() || list->empty()) return "has no model in /v1/models";
    const AnswerJson* const id = member_of(list->front(), "id");
    if (id == nullptr || !id->is_string()) return "has a model without an id in /v1/models";
    facts.model = id->get<std::string>();
    const AnswerJson* const max_length = member_of(list->front(), "max_model_len");
    facts.max_length = max_length != nullptr && max_length->is_number_integer() ? max_length->get<std::int64_t>() : 0;
    const AnswerJson* const owner = member_of(list->front(), "owned_by");
    facts.is_mortise = facts.tells_versions = owner != nullptr && *owner == "mortise";
    if (facts.is_mortise) facts.log_probs = LogProbs::kTempered;
    return "";
  }
  const AnswerJson* const choices = member_of(*parsed, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return "answered a probe without choices";
  bool are_certain = true;
  for (const AnswerJson& choice : *choices) {
    std::vector<std::int64_t> ids;
    std::vector<float> log_probs;
    if (!read_ids(member_of(choice, "token_ids"), ids) || ids.empty()) {
      return "gives no token_ids (it does not know return_token_ids). Training needs the very tokens that were sampled; "
             "use a server that gives them";
    }
    const AnswerJson* const given = member_of(choice, "logprobs");
    if (given == nullptr || !read_floats(member_of(*given, "token_logprobs"), log_probs) || log_probs.empty())
      return "gives no log-probs of the sampled tokens (it does not know logprobs: 0)";
    are_certain = are_certain && log_probs.front() > kCertain;
  }
  facts.log_probs = are_certain ? LogProbs::kProcessed : LogProbs::kRaw;
  return "";
}

HttpCall CompletionsProtocol::generate(const ServerRequest& request, const ServerFacts& facts) const {
  AnswerJson body = common_body(request, facts);
  if (request.top_k > 0) body["top_k"] = request.top_k;
  if (request.min_p > 0) body["min_p"] = request.min_p;
  if (request.repetition_penalty != 1) body["repetition_penalty"] = request.repetition_penalty;
  if (request.forced_tokens() > 0) body["min_tokens"] = request.forced_tokens();
  if (!request.regex.empty()) body["structured_outputs"] = {{"regex", request.regex}};
  if (!request.stop_strings.empty()) {
    body["stop"] = request.stop_strings;
    body["include_stop_str_in_output"] = true;
  }
  if (!facts.is_mortise) {
    body["seed"] = request.spaced_seed();
  } else {
    if (request.typical_p != 1) body["typical_p"] = request.typical_p;
    if (!request.bad_words.empty()) body["bad_word_ids"] = request.bad_words;
    body["mortise"] = {{"seed", request.seed}, {"step", request.step}, {"first_row_id", request.first_row_id}};
  }
  return {kCompletionsPath, json_line(body), false, false, false, true};
}

Fault CompletionsProtocol::read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                                       std::vector<ServerSample>& samples) const {
  return read_choices(body, request, facts, told_version, samples);
}

Fault CompletionsProtocol::read_choices(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                                        ReadVersion version, std::vector<ServerSample>& samples) {
  const auto parsed = parse::parse_json(body);
  if (!parsed) return {"its answer is not JSON (" + parsed.fault().to_string() + ")"};
  const AnswerJson* const choices = member_of(*parsed, "choices");
  if (choices == nullptr || !choices->is_array()) return {"its answer has no choices"};
  for (const AnswerJson& choice : *choices) {
    ServerSample& sample = samples.emplace_back();
    if (const std::string fault = read_choice(choice, request, facts, sample); !fault.empty())
      return {"in its answer " + fault};
    sample.weight_version = version(choice);
  }
  return check_samples(request, samples);
}

std::vector<HttpCall> VllmProtocol::probes(const ServerFacts& facts) const {
  std::vector<HttpCall> calls = CompletionsProtocol::probes(facts);
  if (facts.is_mortise) return calls;
  // While vLLM is paused, a completion waits: the probe that samples comes after these.
  calls.insert(calls.end() - 1, {{kPausedPath, "", true, true}, {kVersionPath, "", true, true}});
  if (transfer_ != WeightTransfer::kFile)
    calls.insert(calls.end() - 1, {{kRanksPath, "", true, false}, {kProgramPath, "", true, true}});
  return calls;
}

std::string VllmProtocol::read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const {
  const std::string path = probes(facts)[number].path;
  if (path == kModelsPath) {
    const std::string fault = CompletionsProtocol::read_probe(number, answer, facts);
    return fault.empty() ? check_transfer(facts) : fault;
  }
  if (path == kRanksPath || path == kProgramPath)
    return read_transfer_probe(path, answer.body, transfer_ == WeightTransfer::kCudaIpc, facts);
  if (path != kPausedPath && path != kVersionPath) return CompletionsProtocol::read_probe(number, answer, facts);
  const auto parsed = parse::parse_json(answer.body);
  const AnswerJson* const value =
      parsed ? member_of(*parsed, path == kPausedPath ? "is_paused" : "weight_version") : nullptr;
  if (path == kPausedPath) {
    facts.is_paused = value != nullptr && *value == true;
  } else {
    facts.was_updated = value != nullptr && *value != "default";
    facts.gives_back_version = value != nullptr;
  }
  return "";
}

HttpCall VllmProtocol::version_call() const { return {kVersionPath, "", true, false}; }

std::int64_t VllmProtocol::read_version_answer(const std::string& body) const {
  const auto parsed = parse::parse_json(body);
  return parsed ? read_version(member_of(*parsed, "weight_version")) : -1;
}

std::string VllmProtocol::refusal(const ServerRequest& request, const ServerFacts& facts) const {
  if (facts.is_mortise) return "";
  if (std::string why = too_long(request, facts); !why.empty()) return why;
  if (request.typical_p != 1) return "do rollout.typical_p (vLLM has no such filter). Set it to 1";
  if (request.temperature > kHottest) return "do a temperature above 2 (vLLM refuses it). Lower rollout.temperature";
  if (request.temperature > 0 && request.temperature < kColdest) {
    return "do a temperature between 0 and 0.01 (vLLM would sample at 0.01). Set rollout.temperature to 0, or to 0.01 or "
           "more";
  }
  if (!request.bad_words.empty()) {
    return "do rollout.bad_words (vLLM takes texts and tokenizes them in its own way, so other ids could be forbidden). "
           "Leave them out";
  }
  if (request.temperature == 0 && request.num_samples > 1)
    return "do several greedy completions of a prompt. Set rollout.n to 1";
  return "";
}

std::vector<HttpCall> VllmProtocol::weight_calls(const std::string& folder, std::int64_t version) const {
  const AnswerJson reload = {{"method", "reload_weights"}, {"kwargs", {{"weights_path", folder}}}};
  std::vector<HttpCall> calls = {{"/pause?mode=wait", "{}"}, {"/collective_rpc", json_line(reload)}};
  for (HttpCall& call : after_weights(version)) calls.push_back(std::move(call));
  return calls;
}

// `mortise serve` takes weights over Gloo, vLLM over NCCL.
std::string VllmProtocol::check_transfer(const ServerFacts& facts) const {
  if (transfer_ == WeightTransfer::kNccl && facts.is_mortise)
    return "`mortise serve` takes no weights over NCCL. Set weight_transfer to \"c10d\" or \"file\"";
  if (transfer_ == WeightTransfer::kCudaIpc && facts.is_mortise)
    return "`mortise serve` opens no memory of a GPU. Set weight_transfer to \"c10d\" or \"file\"";
  if (transfer_ == WeightTransfer::kC10d && !facts.is_mortise)
    return "vLLM takes no weights over Gloo. Set weight_transfer to \"nccl\" or \"file\"";
  return "";
}

TransferWay VllmProtocol::transfer_way(const ServerFacts& facts, const std::string&) const {
  if (facts.is_mortise) return {"gloo", "weights"};
  if (transfer_ == WeightTransfer::kCudaIpc) return {"cuda_ipc", ""};
  return {"nccl_id", "", "", kBucketBytes};
}

std::vector<HttpCall> VllmProtocol::transfer_calls(const ServerFacts& facts, const TransferWay& way,
                                                   const SenderPlace* place, const WeightImage& image,
                                                   std::int64_t version) const {
  std::vector<HttpCall> calls;
  const bool is_shared = transfer_ == WeightTransfer::kCudaIpc, is_packed = way.bucket_bytes > 0;
  if (place != nullptr && is_shared) {
    calls.push_back({"/init_weight_transfer_engine", R"({"init_info": {}})"});
  } else if (place != nullptr) {
    AnswerJson info = {{"rank_offset", 1}, {"world_size", place->num_ranks}};
    if (is_packed && facts.packs_from_start) info["packed"] = true;
    if (facts.takes_unique_id) {
      info["nccl_unique_id_b64"] = base64_of(place->unique_id);
    } else {
      info["master_address"] = place->address;
      info["master_port"] = place->port;
    }
    const AnswerJson body = {{"init_info", std::move(info)}};
    calls.push_back({"/init_weight_transfer_engine", json_line(body)});
    calls.back().side = HttpCall::Side::kJoin;
  }
  AnswerJson lists = transfer_lists(image, "names", "dtype_names", "shapes");
  if (is_packed && !facts.packs_from_start) lists["packed"] = true;
  if (is_shared) lists["ipc_handles_pickled"] = base64_of(pickled_shared_weights(image, place->shared));
  const AnswerJson update = {{"update_info", std::move(lists)}};
  calls.push_back({"/pause?mode=wait", "{}"});
  // vLLM keeps what has come of an update that broke off, and would mix it with these weights. These two calls end it. The
  // first is refused if it is still open.
  for (const char* const path : {kStartPath, kFinishPath}) {
    if (!facts.may_be_torn || facts.is_mortise) break;
    calls.push_back({path, "{}"});
    calls.back().any_answer = true;
  }
  calls.push_back({kStartPath, "{}"});
  calls.push_back({"/update_weights", json_line(update)});
  if (!is_shared) calls.back().side = HttpCall::Side::kSend;
  calls.push_back({kFinishPath, "{}"});
  for (HttpCall& call : after_weights(version)) calls.push_back(std::move(call));
  return calls;
}

// With {"success": false} the prefix cache still has what the old weights computed.
std::string VllmProtocol::read_weight_answer(std::size_t, const std::string& body) const {
  const auto parsed = parse::parse_json(body);  // some calls answer with text, or with nothing
  const AnswerJson* const success = parsed ? member_of(*parsed, "success") : nullptr;
  return success != nullptr && *success == false ? "the server refused the call: " + excerpt(body) : "";
}

// Its prefix cache keeps adapters apart, so nothing has to be emptied.
std::vector<HttpCall> VllmProtocol::adapter_calls(const std::string& folder, const ServerFacts& facts) const {
  return change_adapter("/v1/load_lora_adapter", "/v1/unload_lora_adapter", folder, facts);
}

std::string OpenaiProtocol::refusal(const ServerRequest& request, const ServerFacts& facts) const {
  if (facts.is_mortise) return "";
  if (std::string why = too_long(request, facts); !why.empty()) return why;
  if (request.typical_p != 1) return "do rollout.typical_p";
  if (!request.bad_words.empty()) return "do rollout.bad_words";
  if (request.forced_tokens() > 0) return "do rollout.ignore_eos and rollout.min_new_tokens";
  if (request.top_k > 0) return "do rollout.top_k";
  if (request.min_p > 0) return "do rollout.min_p";
  if (request.repetition_penalty != 1) return "do rollout.repetition_penalty";
  return "";
}

Fault OpenaiProtocol::read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                                  std::vector<ServerSample>& samples) const {
  return read_choices(body, request, facts, told_name, samples);
}

std::vector<HttpCall> OpenaiProtocol::weight_calls(const std::string& folder, std::int64_t version) const {
  if (reload_path_.empty()) return {};
  const AnswerJson body = {{"weights_path", folder},
                           {"weight_version", version_of(version)},
                           {"weight_name", std::to_string(version)}};  // tells the versions of two runs apart
  return {{reload_path_, json_line(body), false, false}};
}

}  // namespace mortise
