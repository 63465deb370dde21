// See sglang_protocol.h. Its log-probs are taken after the temperature and before filters, which is what training wants;
// with SGLANG_RETURN_ORIGINAL_LOGPROB=1 they are before both. Two probes at different temperatures tell which. Penalties
// and the ban on end tokens change the logits before its sampler, so they are part of both kinds.
#include "sglang_protocol.h"

#include <cmath>

#include "adapter_calls.h"
#include "json_answer.h"
#include "transfer_lists.h"

namespace mortise {
namespace {

HttpCall probe_at(double temperature) {
  const AnswerJson body = {{"input_ids", {1}},
                           {"sampling_params", {{"max_new_tokens", 1}, {"temperature", temperature}, {"top_k", 1}}},
                           {"return_logprob", true},
                           {"logprob_start_len", -1}};
  return {"/generate", json_line(body), false, false, false, true};
}

// meta_info.output_token_logprobs: [[log-prob, id, text or null], ...].
std::string read_tokens(const AnswerJson& answer, std::vector<std::int64_t>& ids, std::vector<float>& log_probs) {
  const AnswerJson* const meta = member_of(answer, "meta_info");
  const AnswerJson* const list = meta == nullptr ? nullptr : member_of(*meta, "output_token_logprobs");
  if (list == nullptr || !list->is_array()) return "has no meta_info.output_token_logprobs";
  for (const AnswerJson& token : *list) {
    if (!token.is_array() || token.size() < 2 || !token[0].is_number() || !token[1].is_number_integer())
      return "has an entry of output_token_logprobs that is not [log-prob, id, text]";
    log_probs.push_back(token[0].get<float>());
    ids.push_back(token[1].get<std::int64_t>());
  }
  std::vector<std::int64_t> plain;
  if (read_ids(member_of(answer, "output_ids"), plain) && plain != ids)
    return "has output_ids that differ from those of output_token_logprobs";
  return "";
}

std::string read_sample(const AnswerJson& answer, const ServerRequest& request, const ServerFacts& facts,
                        ServerSample& sample) {
  std::vector<float> given;
  if (std::string fault = read_tokens(answer, sample.ids, given); !fault.empty()) return fault;
  const AnswerJson& meta = *member_of(answer, "meta_info");
  const AnswerJson* const reason = member_of(meta, "finish_reason");
  const AnswerJson* const type = reason == nullptr ? nullptr : member_of(*reason, "type");
  if (type == nullptr || (*type != "stop" && *type != "length"))
    return "ended with " + (reason == nullptr ? std::string("no finish_reason") : json_line(*reason));
  sample.finish_reason = *type == "stop" ? MORTISE_FINISH_STOP : MORTISE_FINISH_LENGTH;
  sample.weight_version = read_version(member_of(meta, "weight_version"));
  if (!request.changes_logits()) place_log_probs(request, facts.log_probs, std::move(given), sample);
  return "";
}

constexpr const char* kServerPath = "/get_server_info";
constexpr const char* kEndPath = "/end_weight_update";

// Weights come to each process of tensor parallelism. With data parallelism they would need numbers of their own.
std::string read_ranks(const AnswerJson& info, ServerFacts& facts) {
  facts.num_ranks = read_count(member_of(info, "tp_size"), 1);
  const std::int64_t others = read_count(member_of(info, "dp_size"), 1) * read_count(member_of(info, "pp_size"), 1);
  if (facts.num_ranks > 0 && others == 1) return "";
  return "several copies or stages of the model take weights from files only. Set weight_transfer to \"file\"";
}

}  // namespace

std::vector<HttpCall> SglangProtocol::probes(const ServerFacts&) const {
  std::vector<HttpCall> calls = {{"/get_model_info", "", true, true}, probe_at(1.0), probe_at(4.0)};
  // Before those that sample: half loaded weights can be in the way of these.
  if (transfer_ != WeightTransfer::kFile) calls.insert(calls.begin(), {kServerPath, "", true, false});
  return calls;
}

std::string SglangProtocol::read_probe(std::size_t number, const HttpDone& answer, ServerFacts& facts) const {
  const auto parsed = parse::parse_json(answer.body);
  if (!parsed) return "answered with text that is not JSON (" + parsed.fault().to_string() + ")";
  const std::size_t first_sample = transfer_ == WeightTransfer::kFile ? 1 : 2;
  if (number < first_sample) {
    if (first_sample == 2 && number == 0) return read_ranks(*parsed, facts);
    return "";
  }
  const AnswerJson& first = parsed->is_array() && !parsed->empty() ? parsed->front() : *parsed;
  std::vector<std::int64_t> ids;
  std::vector<float> log_probs;
  if (std::string fault = read_tokens(first, ids, log_probs); !fault.empty()) return "answered a probe that " + fault;
  if (log_probs.empty()) return "answered a probe without a token";
  if (number == first_sample) {
    facts.probe_log_prob = log_probs.front();
    const AnswerJson* const version = member_of(*member_of(first, "meta_info"), "weight_version");
    facts.tells_versions = version != nullptr;
    facts.was_updated = version != nullptr && *version != "default";
    return "";
  }
  const bool same = std::abs(facts.probe_log_prob - log_probs.front()) < 1e-4;
  facts.log_probs = same ? LogProbs::kRaw : LogProbs::kTempered;
  return "";
}

std::string SglangProtocol::refusal(const ServerRequest& request, const ServerFacts&) const {
  if (request.typical_p != 1) return "do rollout.typical_p (SGLang has no such filter). Set it to 1";
  if (!request.bad_words.empty()) return "do rollout.bad_words (SGLang has none). Leave them out";
  return "";
}

HttpCall SglangProtocol::generate(const ServerRequest& request, const ServerFacts& facts) const {
  AnswerJson sampling = {{"max_new_tokens", request.max_new_tokens},
                         {"min_new_tokens", request.forced_tokens()},
                         {"temperature", request.temperature},
                         {"top_p", request.top_p},
                         {"min_p", request.min_p},
                         {"repetition_penalty", request.repetition_penalty},
                         {"presence_penalty", request.presence_penalty},
                         {"frequency_penalty", request.frequency_penalty},
                         {"n", request.num_samples},
                         {"sampling_seed", request.spaced_seed()},
                         {"stop_token_ids", request.stop_ids},
                         // With it SGLang would also ignore stop_token_ids; its own end token is among ours.
                         {"ignore_eos", false}};
  if (request.top_k > 0) sampling["top_k"] = request.top_k;
  if (!request.regex.empty()) sampling["regex"] = request.regex;
  if (!request.stop_strings.empty()) {
    sampling["stop"] = request.stop_strings;
    sampling["no_stop_trim"] = true;
  }
  AnswerJson body = {{"input_ids", request.prompt_ids},
                     {"sampling_params", std::move(sampling)},
                     {"return_logprob", true},
                     {"logprob_start_len", -1}};
  if (!facts.adapter.empty()) body["lora_path"] = facts.adapter;
  return {"/generate", json_line(body), false, false, false, true};
}

Fault SglangProtocol::read_answer(const std::string& body, const ServerRequest& request, const ServerFacts& facts,
                                  std::vector<ServerSample>& samples) const {
  const auto parsed = parse::parse_json(body);
  if (!parsed) return {"its answer is not JSON (" + parsed.fault().to_string() + ")"};
  const AnswerJson list = parsed->is_array() ? *parsed : AnswerJson::array({*parsed});
  for (const AnswerJson& one : list) {
    ServerSample& sample = samples.emplace_back();
    sample.index = std::int64_t(samples.size()) - 1;
    if (std::string fault = read_sample(one, request, facts, sample); !fault.empty())
      return {"a sample of its answer " + fault};
  }
  return check_samples(request, samples);
}

std::vector<HttpCall> SglangProtocol::weight_calls(const std::string& folder, std::int64_t version) const {
  const AnswerJson body = {{"model_path", folder},
                           {"abort_all_requests", false},
                           {"weight_version", std::to_string(version)},
                           {"flush_cache", true}};
  return {{"/update_weights_from_disk", json_line(body), false, false}};
}

// The keys are those of torch.distributed for a group of this name.
TransferWay SglangProtocol::transfer_way(const ServerFacts&, const std::string& number) const {
  const bool is_nccl = transfer_ == WeightTransfer::kNccl;
  const std::string group = "mortise-" + number;
  return {is_nccl ? "nccl" : "gloo", group + "/" + group + "//" + (is_nccl ? "cuda" : "cpu") + "/", group};
}

std::vector<HttpCall> SglangProtocol::transfer_calls(const ServerFacts&, const TransferWay& way,
                                                     const SenderPlace* place, const WeightImage& image,
                                                     std::int64_t version) const {
  std::vector<HttpCall> calls;
  if (place != nullptr) {
    const AnswerJson body = {
        {"master_address", place->address}, {"master_port", place->port}, {"rank_offset", 1},
        {"world_size", place->num_ranks},   {"group_name", way.group},    {"backend", way.carrier}};
    calls.push_back({"/init_weights_update_group", json_line(body)});
    calls.back().side = HttpCall::Side::kJoin;
    calls.push_back({kEndPath, "{}"});  // an update that broke off is still open, and no other could begin
    calls.back().any_answer = true;
  }
  AnswerJson update = transfer_lists(image, "names", "dtypes", "shapes");
  update["group_name"] = way.group;
  update["flush_cache"] = true;
  update["abort_all_requests"] = false;
  update["weight_version"] = std::to_string(version);
  const AnswerJson all = {{"selector", "all"}};
  calls.push_back({"/begin_weight_update", json_line(all), false, true});  // older ones have no such session
  calls.push_back({"/update_weights_from_distributed", json_line(update)});
  calls.back().side = HttpCall::Side::kSend;
  calls.push_back({kEndPath, "{}", false, true});
  return calls;
}

std::vector<HttpCall> SglangProtocol::adapter_calls(const std::string& folder, const ServerFacts& facts) const {
  return change_adapter("/load_lora_adapter", "/unload_lora_adapter", folder, facts);
}

std::string SglangProtocol::read_weight_answer(std::size_t, const std::string& body) const {
  const auto parsed = parse::parse_json(body);
  if (!parsed) return "answered with text that is not JSON";
  const AnswerJson* const success = member_of(*parsed, "success");
  if (success != nullptr && *success == true) return "";
  const AnswerJson* message = member_of(*parsed, "message");
  if (message == nullptr) message = member_of(*parsed, "error_message");  // adapters have this
  return "did not take the weights: " + (message == nullptr ? std::string("no reason given") : json_line(*message));
}

}  // namespace mortise
