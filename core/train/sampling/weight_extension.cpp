// The C functions of mortise.weight_group/0 over WeightLink.
#include "train/sampling/weight_extension.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/weights/weight_link.h"
#include "foundation/base/text.h"
#include "plugin/host/abi_struct.h"
#include "plugin/host/extension_call.h"
#include "plugin/host/host_services.h"

namespace mortise {
namespace {

constexpr const char* kSenderName = "the sender of weights";

struct OpenedGroup {
  const mortise_host* host;
  std::string unique_id;
  int port;
  BackgroundLink link;
  std::string failure = {};
};

OpenedGroup& group_at(void* group) { return *static_cast<OpenedGroup*>(group); }

std::string text_in(mortise_text text) {
  return text.data == nullptr ? std::string() : std::string(text.data, text.size);
}

// The policy's, if weights can leave from it.
std::optional<int> policy_gpu;

Result<WeightPlace> read_place(const mortise_weight_group_options* from) {
  constexpr std::array<std::pair<std::string_view, WeightCarrier>, 4> kCarriers = {
      {{"gloo", WeightCarrier::kGloo},
       {"nccl", WeightCarrier::kNccl},
       {"nccl_id", WeightCarrier::kNcclId},
       {"cuda_ipc", WeightCarrier::kCudaIpc}}};
  const auto in = read_abi_struct(from);
  WeightPlace place;
  const std::string carrier = text_in(in.carrier);
  bool is_known = false;
  for (const auto& [name, value] : kCarriers) {
    if (name != carrier) continue;
    place.carrier = value;
    is_known = true;
  }
  if (!is_known)
    return Error{ErrorKind::kConfig, "weights have no carrier " + quote(carrier), MORTISE_EXT_WEIGHT_GROUP,
                 "use gloo, nccl, nccl_id or cuda_ipc"};
  if (place.carrier != WeightCarrier::kGloo) {
    if (!policy_gpu)
      return Error{ErrorKind::kConfig, "this way of sending weights needs a policy on a GPU, and it is on the CPU",
                   "model.device", "set it to cuda, or send the weights by files"};
    place.gpu = *policy_gpu;
  }
  if (in.num_ranks < 2 || in.num_ranks > 65536 || in.timeout_ns <= 0)
    return Error{ErrorKind::kData, "num_ranks or timeout_ns is out of range", MORTISE_EXT_WEIGHT_GROUP, ""};
  place.address = text_in(in.address);
  place.prefix = text_in(in.prefix);
  place.size = static_cast<int>(in.num_ranks);
  place.timeout = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds(in.timeout_ns));
  return place;
}

int32_t open_group(const mortise_host* host, mortise_call* call, const mortise_weight_group_options* options,
                   void** group) noexcept {
  return guard_extension(host, call, kSenderName, [&]() -> Result<> {
    const WeightPlace place = TRY(read_place(options));
    auto link = TRY(open_weight_link(place));
    std::string id = link->unique_id();
    const int port = link->port();
    *group = new OpenedGroup{host, std::move(id), port, BackgroundLink(std::move(link))};
    return {};
  });
}

int64_t port_of(void* group) noexcept { return group_at(group).port; }

mortise_bytes unique_id_of(void* group) noexcept {
  const std::string& id = group_at(group).unique_id;
  return {id.data(), id.size()};
}

int32_t set_key(void* group, mortise_call* call, mortise_text key, mortise_bytes value) noexcept {
  const OpenedGroup& opened = group_at(group);
  return guard_extension(opened.host, call, kSenderName, [&] {
    return opened.link.link().set(text_in(key), std::string(static_cast<const char*>(value.data), value.size));
  });
}

int32_t join_group(void* group, mortise_call* call) noexcept {
  OpenedGroup& opened = group_at(group);
  return guard_extension(opened.host, call, kSenderName, [&]() -> Result<> {
    opened.link.start([](WeightLink& link) { return link.join(); });
    return {};
  });
}

// Gives the pieces back when the last copy of the work is gone.
struct Pieces {
  std::vector<mortise_weight_piece> list;
  void (*release)(void* context);
  void* context;
  Pieces(std::vector<mortise_weight_piece> pieces, const mortise_weight_send& from)
      : list(std::move(pieces)), release(from.release), context(from.context) {}
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  ~Pieces() {
    if (release != nullptr) release(context);
  }
};

std::span<const std::byte> bytes_in(const mortise_weight_piece& piece) {
  return {static_cast<const std::byte*>(piece.data), static_cast<size_t>(piece.num_bytes)};
}

Result<> send_each(WeightLink& link, const std::vector<mortise_weight_piece>& pieces) {
  for (const mortise_weight_piece& piece : pieces) TRY(link.send(bytes_in(piece)));
  return {};
}

Result<> send_buckets(WeightLink& link, const std::vector<mortise_weight_piece>& pieces, uint64_t bucket_bytes) {
  std::vector<std::byte> bucket;
  for (const mortise_weight_piece& piece : pieces) {
    const auto bytes = bytes_in(piece);
    bucket.insert(bucket.end(), bytes.begin(), bytes.end());
    if (bucket.size() <= bucket_bytes) continue;
    TRY(link.send(bucket));
    bucket.clear();
  }
  return link.send(bucket);
}

int32_t send_pieces(void* group, mortise_call* call, const mortise_weight_send* what) noexcept {
  OpenedGroup& opened = group_at(group);
  return guard_extension(opened.host, call, kSenderName, [&]() -> Result<> {
    const auto in = read_abi_struct(what);
    std::vector<mortise_weight_piece> list(in.pieces, in.pieces + in.num_pieces);
    auto pieces = std::make_shared<Pieces>(std::move(list), in);
    opened.link.start([pieces = std::move(pieces), bucket_bytes = in.bucket_bytes](WeightLink& link) {
      return bucket_bytes == 0 ? send_each(link, pieces->list) : send_buckets(link, pieces->list, bucket_bytes);
    });
    return {};
  });
}

void state_of(void* group, int32_t* is_busy, mortise_text* failure) noexcept {
  OpenedGroup& opened = group_at(group);
  const auto ended = opened.link.look();
  *is_busy = ended ? 0 : 1;
  opened.failure = ended && !ended->ok() ? ended->error().to_string() : "";
  *failure = {opened.failure.data(), opened.failure.size()};
}

mortise_bytes bytes_of(const std::string& text) { return {text.data(), text.size()}; }

int32_t share_pieces(void* group, mortise_call* call, const mortise_weight_send* what,
                     const mortise_shared_sink* sink) noexcept {
  OpenedGroup& opened = group_at(group);
  return guard_extension(opened.host, call, kSenderName, [&]() -> Result<> {
    const auto in = read_abi_struct(what);
    const auto out = read_abi_struct(sink);
    const Pieces pieces({in.pieces, in.pieces + in.num_pieces}, in);
    for (const mortise_weight_piece& piece : pieces.list) {
      const SharedPiece shared = TRY(opened.link.link().share(bytes_in(piece)));
      auto told = make_abi_struct<mortise_shared_piece>();
      told.waits_for_event = shared.waits_for_event ? 1 : 0;
      told.device_uuid = {shared.device_uuid.data(), shared.device_uuid.size()};
      told.device = shared.device;
      told.handle = bytes_of(shared.handle);
      told.num_bytes = shared.num_bytes;
      told.offset = shared.offset;
      told.counter = bytes_of(shared.counter);
      told.counter_offset = shared.counter_offset;
      told.event = bytes_of(shared.event);
      out.piece(out.context, &told);
    }
    return {};
  });
}

void close_group(void* group) noexcept { delete static_cast<OpenedGroup*>(group); }

constexpr mortise_weight_group_vtable kWeightGroups = {sizeof(mortise_weight_group_vtable),
                                                       0,
                                                       open_group,
                                                       port_of,
                                                       unique_id_of,
                                                       set_key,
                                                       join_group,
                                                       send_pieces,
                                                       state_of,
                                                       share_pieces,
                                                       close_group};

}  // namespace

const mortise_weight_group_vtable* weight_group_extension() { return &kWeightGroups; }

void offer_weight_groups(const at::Device& policy) {
  policy_gpu.reset();
  if (policy.is_cuda()) policy_gpu = policy.index();
  register_host_extension(MORTISE_EXT_WEIGHT_GROUP, &kWeightGroups);
}

}  // namespace mortise
