// What every communicator demands of the arguments of a call. Wrong ones are a bug of the caller: kind kInternal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "foundation/base/result.h"

namespace mortise {

Result<> check_sum_argument(const at::Tensor& tensor, std::string_view call, std::string_view stage);
Result<> check_moved_argument(const at::Tensor& tensor, std::string_view call, std::string_view stage);
// Both of one type, `whole` with exactly `size` times the numbers of `part`.
Result<> check_parts(const at::Tensor& whole, const at::Tensor& part, int size, std::string_view call,
                     std::string_view stage);
// One size for each rank, which together are the numbers of `tensor`.
Result<> check_sizes(const at::Tensor& tensor, std::span<const int64_t> sizes, int size, std::string_view call,
                     std::string_view stage);
Result<> check_root(int root, int size, std::string_view call, std::string_view stage);
// `part` ranks of a group of `size`, which divide it.
Result<> check_group_size(int part, int size);
// Another rank of the group.
Result<> check_peer(int peer, int rank, int size, std::string_view call, std::string_view stage);
// At most Communicator::kMaxNoteBytes.
Result<> check_note(std::string_view bytes, std::string_view stage);

}  // namespace mortise
