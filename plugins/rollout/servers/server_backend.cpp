// See server_backend.h.
#include "server_backend.h"

#include <algorithm>
#include <utility>

#include "../../shared/deadline.h"
#include "version_names.h"

namespace mortise {
namespace {

// "http://a:8000/, http://b:8000" -> the addresses without a slash at the end.
std::vector<std::string> split_urls(const std::string& list) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    std::string url = list.substr(begin, comma - begin);
    url.erase(0, url.find_first_not_of(" \t"));
    while (!url.empty() && (url.back() == ' ' || url.back() == '/')) url.pop_back();
    if (url.rfind("http://", 0) != 0 && url.rfind("https://", 0) != 0) {
      fail(MORTISE_INVALID_ARGUMENT,
           "url: '" + url + "' is not the address of a server; write it like http://127.0.0.1:8000");
    }
    if (std::find(out.begin(), out.end(), url) != out.end())
      fail(MORTISE_INVALID_ARGUMENT, "url: " + url + " is named twice");
    out.push_back(std::move(url));
    begin = comma + 1;
  }
  return out;
}

}  // namespace

PoolOptions ServerBackend::read_options() {
  PoolOptions o;
  o.slots = param("slots", 256, "completions at the same time on one server (vLLM: --max-num-seqs)").range(1, 65536);
  o.retries = param("retries", 5, "further attempts of a prompt after a failure that may pass").range(0, 100);
  o.request_limit = param("request_limit", 600.0, "time limit of one attempt in seconds").range(0.01, 1e6);
  o.update_limit = param("update_limit", 600.0, "time limit of one call for new weights in seconds").range(0.01, 1e6);
  o.start_limit = param("start_limit", 600.0, "seconds to wait at the start until a server is ready").range(0, 1e6);
  o.give_up = param("give_up", 600.0, "the run stops after so many seconds without any server").range(0, 1e6);
  o.backoff = param("backoff", 0.5, "seconds before a second attempt; doubles each time, up to 30").range(0, 30);
  o.breaker_failures =
      param("breaker_failures", 5, "after this many bad answers in a row a server is left out for a while").at_least(1);
  return o;
}

void ServerBackend::setup(Call call) {
  options_.urls = split_urls(url_);
  options_.own_address = own_address();
  if (transfer() != WeightTransfer::kFile) {
    WeightSender::check(call);
    if (is_one_of_ranks())
      fail(MORTISE_UNIMPLEMENTED,
           "several ranks send their weights to servers by files only, because a server has one connection for "
           "weights. Set weight_transfer to \"file\"");
  }
  if (!api_key_env_.empty()) options_.headers.push_back(bearer_header("api_key_env", api_key_env_));
  pool_ = std::make_unique<ServerPool>(make_protocol(), options_);
  if (pool_->takes_weights() && transfer() == WeightTransfer::kFile)
    weights_ = std::make_unique<WeightFolder>(weights_dir_, weights_dtype_ == "bfloat16");
  pool_->await_ready(call, options_.start_limit);
}

const std::string& ServerBackend::regex() const {
  static const std::string kNone;
  return kNone;
}

void ServerBackend::set_version(std::int64_t version, Call) {
  if (pool_->takes_weights()) pool_->set_own_version(version);  // else they remain the initial ones, version 0
}

void ServerBackend::begin_update(std::int64_t version, Call) {
  coming_version_ = version;
  adapter_.clear();
  if (weights_) weights_->begin(version);
  if (transfer() != WeightTransfer::kFile) image_ = std::make_shared<WeightImage>(weights_dtype_ == "bfloat16");
}

void ServerBackend::update_weight(const WeightShard& shard, Call) {
  const bool is_adapter = AdapterTensors::has(shard.name);
  if (is_adapter && !pool_->takes_adapters())
    fail(MORTISE_UNIMPLEMENTED, "these servers take no LoRA adapters. Set rollout.send_adapter to false");
  if (is_adapter && image_)
    fail(MORTISE_UNIMPLEMENTED, "adapters go to servers by files only. Set weight_transfer to \"file\"");
  if (!weights_ && !image_) return;
  if (!shard.whole()) fail(MORTISE_UNIMPLEMENTED, "weights in parts (" + std::string(shard.name) + ")");
  if (image_)
    return image_->add(shard.name, shard.shape.data(), std::int64_t(shard.shape.size()),
                       static_cast<const float*>(mortise_tensor_data(&shard.data)));
  if (is_adapter) adapter_.add(shard.name, shard.shape.data());
  weights_->add(shard.name, shard.shape.data(), shard.shape.size(),
                static_cast<const float*>(mortise_tensor_data(&shard.data)));
}

void ServerBackend::end_update(Call call) {
  if (!weights_ && !image_) return;
  if (image_)
    pool_->set_image(std::exchange(image_, nullptr), coming_version_);
  else if (adapter_.empty())
    pool_->set_weights(weights_->finish(), coming_version_);
  else
    pool_->set_adapter(weights_->finish_adapter(adapter_.config()), coming_version_);
  pool_->await_ready(call, options_.update_limit + options_.give_up);
  if (weights_) weights_->forget_old();
}

WeightTransfer TransferBackend::transfer() const {
  const std::string& name = transfer_name();
  if (name == "file") return WeightTransfer::kFile;
  if (name == "cuda_ipc") return WeightTransfer::kCudaIpc;
  return name == "c10d" ? WeightTransfer::kC10d : WeightTransfer::kNccl;
}

std::uint64_t ServerBackend::submit(Span<const mortise_rollout_request* const> requests, Call) {
  std::uint64_t taken = 0;
  for (const mortise_rollout_request* request : requests) {
    if (!pool_->has_room()) break;
    ServerRequest own = ServerRequest::copy(*request);
    own.regex = regex();
    pool_->submit(std::move(own));
    ++taken;
  }
  return taken;
}

// False: the sink wants no more for now.
bool ServerBackend::deliver(const mortise_rollout_sink& sink) {
  std::deque<PoolSample>& finished = pool_->finished();
  while (!finished.empty()) {
    const PoolSample done = std::move(finished.front());
    finished.pop_front();
    const ServerSample& sample = done.sample;
    mortise_rollout_sequence out{};
    out.struct_size = sizeof out;
    out.finish_reason = sample.finish_reason;
    out.request_id = done.request_id;
    out.sample_index = sample.index;
    out.weight_version = sample.weight_version;
    out.num_ids = std::int64_t(sample.ids.size());
    out.ids = sample.ids.data();
    out.log_prob = sample.log_prob.empty() ? nullptr : sample.log_prob.data();
    out.filtered_log_prob = sample.filtered_log_prob.empty() ? nullptr : sample.filtered_log_prob.data();
    if (sink.sequence(sink.context, &out) != 0) return false;
  }
  return true;
}

std::uint64_t ServerBackend::poll(const mortise_rollout_sink& sink, std::int64_t timeout_ns, Call call) {
  const std::int64_t deadline = monotonic_ns() + timeout_ns;
  while (deliver(sink)) {
    const std::int64_t left_ms = (deadline - monotonic_ns()) / 1'000'000;
    pool_->work(int(std::clamp<std::int64_t>(left_ms, 0, kPoolSliceMs)), call);
    if (!pool_->finished().empty()) {
      deliver(sink);
      break;
    }
    if (pool_->outstanding() == 0 || left_ms <= 0 || call.cancelled()) break;
  }
  return pool_->outstanding();
}

void ServerBackend::abort(std::int64_t request_id, Call) { pool_->abort(request_id); }

}  // namespace mortise
