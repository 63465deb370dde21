// Compares the types, sizes and ranks of a call with what it takes.
#include "dist/arguments.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "dist/communicator.h"

namespace mortise {

namespace {

Error wrong_argument(std::string_view call, std::string_view stage, const std::string& what) {
  return {ErrorKind::kInternal, fmt::format("{} in stage '{}': {}", call, stage, what), {}, "please report this"};
}

}  // namespace

Result<> check_moved_argument(const at::Tensor& tensor, std::string_view call, std::string_view stage) {
  if (!tensor.defined()) return wrong_argument(call, stage, "the tensor is undefined");
  if (tensor.is_meta() || tensor.layout() != at::kStrided || !tensor.is_contiguous())
    return wrong_argument(call, stage, "the tensor has no memory, or is not contiguous");
  return {};
}

Result<> check_sum_argument(const at::Tensor& tensor, std::string_view call, std::string_view stage) {
  TRY(check_moved_argument(tensor, call, stage));
  const at::ScalarType type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kLong)
    return wrong_argument(call, stage, fmt::format("ranks do not sum numbers of type {}", at::toString(type)));
  return {};
}

Result<> check_parts(const at::Tensor& whole, const at::Tensor& part, int size, std::string_view call,
                     std::string_view stage) {
  TRY(check_moved_argument(whole, call, stage));
  TRY(check_moved_argument(part, call, stage));
  if (whole.device() != part.device()) return wrong_argument(call, stage, "one tensor is on another device");
  if (whole.scalar_type() != part.scalar_type())
    return wrong_argument(
        call, stage,
        fmt::format("types {} and {} differ", at::toString(whole.scalar_type()), at::toString(part.scalar_type())));
  if (whole.numel() != part.numel() * size)
    return wrong_argument(call, stage,
                          fmt::format("{} numbers are not {} parts of {} each", whole.numel(), size, part.numel()));
  return {};
}

Result<> check_sizes(const at::Tensor& tensor, std::span<const int64_t> sizes, int size, std::string_view call,
                     std::string_view stage) {
  TRY(check_moved_argument(tensor, call, stage));
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const bool any_negative = std::ranges::any_of(sizes, [](int64_t one) { return one < 0; });
  if (sizes.size() != static_cast<size_t>(size) || any_negative || sum != tensor.numel())
    return wrong_argument(call, stage,
                          fmt::format("{} sizes of together {} are not the parts of {} numbers for {} ranks",
                                      sizes.size(), sum, tensor.numel(), size));
  return {};
}

Result<> check_root(int root, int size, std::string_view call, std::string_view stage) {
  if (root < 0 || root >= size)
    return wrong_argument(call, stage, fmt::format("there is no rank {} in a group of {}", root, size));
  return {};
}

Result<> check_group_size(int part, int size) {
  if (part >= 1 && size % part == 0) return {};
  return wrong_argument("neighbours", "start", fmt::format("{} ranks do not form groups of {}", size, part));
}

Result<> check_peer(int peer, int rank, int size, std::string_view call, std::string_view stage) {
  TRY(check_root(peer, size, call, stage));
  if (peer == rank) return wrong_argument(call, stage, fmt::format("rank {} cannot be its own partner", rank));
  return {};
}

Result<> check_note(std::string_view bytes, std::string_view stage) {
  if (bytes.size() <= Communicator::kMaxNoteBytes) return {};
  return wrong_argument("leave_note", stage,
                        fmt::format("{} bytes are more than the {} that a note may have", bytes.size(),
                                    size_t{Communicator::kMaxNoteBytes}));
}

}  // namespace mortise
