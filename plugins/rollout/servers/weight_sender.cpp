// See weight_sender.h.
#include "weight_sender.h"

#include <utility>
#include <vector>

#include "pickles.h"

namespace mortise {
namespace {

const mortise_weight_group_vtable* find_slots(Call call) {
  const auto* slots =
      MORTISE_HAS(call.host(), get_extension)
          ? static_cast<const mortise_weight_group_vtable*>(call.host()->get_extension(MORTISE_EXT_WEIGHT_GROUP))
          : nullptr;
  if (slots == nullptr) {
    fail(MORTISE_FAILED_PRECONDITION,
         "this process cannot send weights over the network (no host extension mortise.weight_group/0). Set "
         "weight_transfer to \"file\"");
  }
  return slots;
}

void check_status(std::int32_t status, const char* what) {
  if (status != MORTISE_OK) fail(status, std::string(what) + " failed");  // the host has said why
}

}  // namespace

void WeightSender::check(Call call) { find_slots(call); }

WeightSender::WeightSender(const TransferWay& way, const std::string& address, std::int64_t num_ranks, double limit_s,
                           Call call)
    : slots_(find_slots(call)) {
  mortise_weight_group_options options{};
  options.struct_size = sizeof options;
  options.carrier = to_text(way.carrier);
  options.address = to_text(address);
  options.prefix = to_text(way.prefix);
  options.num_ranks = num_ranks;
  options.timeout_ns = std::int64_t(limit_s * 1e9);
  check_status(slots_->open(call.host(), call.raw(), &options, &group_), "opening a connection for the weights");
  const mortise_bytes id = slots_->unique_id(group_);
  place_.address = address;
  place_.port = slots_->port(group_);
  place_.num_ranks = num_ranks;
  place_.unique_id.assign(static_cast<const char*>(id.data), id.size);
  if (place_.unique_id.empty()) return;
  const std::string value = pickled_unique_id(place_.unique_id);  // for servers that look for it in the store
  const std::int32_t set =
      slots_->set(group_, call.raw(), to_text(std::string(kUniqueIdKey)), {value.data(), value.size()});
  if (set == MORTISE_OK) return;
  slots_->close(group_);
  check_status(set, "telling NCCL's unique id");
}

WeightSender::~WeightSender() { slots_->close(group_); }

void WeightSender::join(Call call) { check_status(slots_->join(group_, call.raw()), "connecting to a server"); }

// The image lives until it is released.
mortise_weight_send WeightSender::send_of(std::shared_ptr<const WeightImage> image,
                                          std::vector<mortise_weight_piece>& pieces) {
  for (const ImageTensor& tensor : image->tensors()) pieces.push_back({tensor.data.get(), tensor.num_bytes});
  auto kept = std::make_unique<std::shared_ptr<const WeightImage>>(std::move(image));
  mortise_weight_send what{};
  what.struct_size = sizeof what;
  what.pieces = pieces.data();
  what.num_pieces = pieces.size();
  what.release = [](void* context) noexcept { delete static_cast<std::shared_ptr<const WeightImage>*>(context); };
  what.context = kept.release();
  return what;
}

void WeightSender::send(std::shared_ptr<const WeightImage> image, std::uint64_t bucket_bytes, Call call) {
  std::vector<mortise_weight_piece> pieces;
  mortise_weight_send what = send_of(std::move(image), pieces);
  what.bucket_bytes = bucket_bytes;
  check_status(slots_->send(group_, call.raw(), &what), "sending the weights");
}

void WeightSender::share(const std::shared_ptr<const WeightImage>& image, Call call) {
  place_.shared.clear();
  std::vector<mortise_weight_piece> pieces;
  const mortise_weight_send what = send_of(image, pieces);
  mortise_shared_sink sink{};
  sink.struct_size = sizeof sink;
  sink.context = &place_.shared;
  sink.piece = [](void* context, const mortise_shared_piece* piece) noexcept {
    const auto text = [](mortise_bytes bytes) {
      return bytes.data == nullptr ? std::string() : std::string(static_cast<const char*>(bytes.data), bytes.size);
    };
    SharedWeight& out = static_cast<std::vector<SharedWeight>*>(context)->emplace_back();
    out.device_uuid.assign(piece->device_uuid.data, piece->device_uuid.size);
    out.handle = text(piece->handle);
    out.counter = text(piece->counter);
    out.event = text(piece->event);
    out.device = piece->device;
    out.num_bytes = piece->num_bytes;
    out.offset = piece->offset;
    out.counter_offset = piece->counter_offset;
    out.waits_for_event = piece->waits_for_event != 0;
  };
  check_status(slots_->share(group_, call.raw(), &what, &sink), "sharing the weights");
}

WeightSender::State WeightSender::state() const {
  std::int32_t is_busy = 0;
  mortise_text failure{};
  slots_->state(group_, &is_busy, &failure);
  return {is_busy != 0, failure.data == nullptr ? std::string() : std::string(failure.data, failure.size)};
}

}  // namespace mortise
