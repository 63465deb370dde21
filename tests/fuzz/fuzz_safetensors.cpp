// safetensors: every accepted tensor is inside the file and can be read to its last byte.
#include <cstring>
#include <vector>

#include "foundation/formats/safetensors.h"
#include "fuzz/fuzz_support.h"

namespace mortise {

void fuzz::run_one(const uint8_t* data, size_t size) {
  // A heap copy of the exact size, so that a sanitizer sees a read one byte too far.
  const std::vector<std::byte> file(reinterpret_cast<const std::byte*>(data),
                                    reinterpret_cast<const std::byte*>(data) + size);
  const auto content = parse_safetensors(file, "input");
  if (!content.ok()) return;
  uint64_t sum = 0, num_bytes = 0;
  for (const TensorView& tensor : content->tensors) {
    for (const std::byte byte : tensor.bytes) sum += static_cast<uint64_t>(byte);
    num_bytes += tensor.bytes.size();
  }
  fuzz::require(num_bytes <= size, "tensors do not overlap");
  volatile uint64_t keep = sum;
  (void)keep;
}

}  // namespace mortise
