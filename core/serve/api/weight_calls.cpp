// See weight_calls.h.
#include "serve/api/weight_calls.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "foundation/base/text.h"
#include "serve/api/answers.h"
#include "serve/api/call_fields.h"

namespace mortise {
namespace {

constexpr const char* kInit = "/init_weight_transfer_engine";
constexpr const char* kStart = "/start_weight_update";
constexpr const char* kUpdate = "/update_weights";
constexpr const char* kFinish = "/finish_weight_update";
constexpr int64_t kMostRanks = 65536;
constexpr size_t kMostDims = 8;
constexpr int64_t kMostNumbers = int64_t{1} << 40;  // in one tensor

// The object of the only member that a body has.
Result<const Json*> inner(const Json& body, const char* name) {
  CallFields fields(body);
  const Json* const value = fields.take(name);
  if (value == nullptr || !value->is_object()) return bad_field(name, "must be an object");
  TRY(fields.check_all_read());
  return value;
}

Result<std::vector<int64_t>> read_shape(const Json& value) {
  const std::vector<int64_t> shape = TRY(read_token_ids(value, "shapes"));
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || size > kMostNumbers || shape.size() > kMostDims ||
        count > kMostNumbers / std::max<int64_t>(size, 1))
      return bad_field("shapes", "has a shape that no weight has");
    count *= std::max<int64_t>(size, 1);
  }
  return shape;
}

void answer(HttpReply& reply, const Error& error, int status) {
  reply.send(status, error_body(status, error.to_string()));
}

// kConfig: the call comes at a wrong time.
int control_status(const Error& error) { return error.kind == ErrorKind::kConfig ? 409 : 500; }

ServeLoop::Done answer_done(std::shared_ptr<HttpReply> reply, const char* message) {
  return [reply = std::move(reply), message](const Result<>& done) {
    if (done.ok()) return reply->send(200, dump_json({{"message", message}}));
    answer(*reply, done.error(), control_status(done.error()));
  };
}

}  // namespace

Result<WeightSender> read_weight_sender(const Json& body) {
  CallFields fields(*TRY(inner(body, "init_info")));
  TRY(fields.refuse("nccl_unique_id_b64", "this server has no NCCL; send master_address and master_port"));
  TRY(fields.refuse("packed", "each weight is a broadcast of its own"));
  WeightSender out;
  out.address = TRY(fields.text("master_address")).value_or("");
  if (out.address.empty()) return bad_field("master_address", "is missing");
  out.port = static_cast<int>(TRY(fields.integer("master_port", 0, 1, 65535)));
  out.size = static_cast<int>(TRY(fields.integer("world_size", 2, 2, kMostRanks)));
  out.rank = static_cast<int>(TRY(fields.integer("rank_offset", 1, 1, out.size - 1)));
  TRY(fields.check_all_read());
  if (out.port == 0) return bad_field("master_port", "is missing");
  return out;
}

Result<std::vector<IncomingWeight>> read_incoming_weights(const Json& body) {
  constexpr std::array<std::string_view, 3> kDtypes = {"float32", "bfloat16", "float16"};
  CallFields fields(*TRY(inner(body, "update_info")));
  TRY(fields.refuse("packed", "each weight is a broadcast of its own"));
  const std::vector<std::string> names = TRY(fields.texts("names")), dtypes = TRY(fields.texts("dtype_names"));
  const Json* const shapes = fields.take("shapes");
  TRY(fields.check_all_read());
  if (names.empty()) return bad_field("names", "is missing or empty");
  if (dtypes.size() != names.size()) return bad_field("dtype_names", "must have as many entries as names");
  if (shapes == nullptr || !shapes->is_array() || shapes->size() != names.size())
    return bad_field("shapes", "must have as many entries as names");
  std::vector<IncomingWeight> out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::ranges::count(kDtypes, dtypes[i]) == 0)
      return bad_field("dtype_names", "has " + quote(dtypes[i]), "use float32, bfloat16 or float16");
    std::vector<int64_t> shape = TRY(read_shape((*shapes)[i]));
    out.push_back({names[i], dtypes[i], std::move(shape)});
  }
  return out;
}

bool WeightCalls::has(const std::string& path) {
  return path == kInit || path == kStart || path == kUpdate || path == kFinish;
}

void WeightCalls::handle(const std::string& path, const Json& body, const Reply& reply) {
  if (!receiver_) return answer(*reply, {ErrorKind::kConfig, "this server takes weights from files only", "", ""}, 404);
  const Result<> started = start(path, body, reply);
  if (started.ok()) return;
  const bool is_request = started.error().kind == ErrorKind::kData;
  answer(*reply, started.error(), is_request ? 400 : control_status(started.error()));
}

Result<> WeightCalls::start(const std::string& path, const Json& body, const Reply& reply) {
  if (path == kInit) {
    receiver_->join(TRY(read_weight_sender(body)), answer_done(reply, "connected to the sender of weights"));
  } else if (path == kStart) {
    CallFields fields(body);
    fields.ignore({"is_checkpoint_format"});  // names are always those of the model's folder
    TRY(fields.check_all_read());
    TRY(receiver_->begin());
    reply->send(200, dump_json({{"message", "ready for weights"}}));
  } else if (path == kUpdate) {
    receiver_->receive(TRY(read_incoming_weights(body)), answer_done(reply, "the weights are here"));
  } else {
    TRY(finish(body, reply));
  }
  return {};
}

// All that have come become the model's, and get their name.
Result<> WeightCalls::finish(const Json& body, const Reply& reply) {
  CallFields fields(body);
  const std::optional<std::string> name = TRY(fields.text("weight_version"));
  TRY(fields.check_all_read());
  const std::optional<int64_t> version = name ? parse_i64(*name) : std::nullopt;
  if (name && version.value_or(-1) < 0) return bad_field("weight_version", "must be a number of at least 0");
  WeightReceiver::Folder folder = TRY(receiver_->finish());
  ServeLoop::Done done = answer_done(reply, "the weights are in use");
  const std::string& path = *folder;
  loop_->load_weights(path, [loop = loop_, folder, version, done = std::move(done)](const Result<>& loaded) {
    if (!loaded.ok() || !version) return done(loaded);
    loop->set_version(*version, done);
  });
  return {};
}

}  // namespace mortise
