// New weights in memory, for servers that take them over the network. Cost: one copy of the weights.
// Threading: filled by one thread; const and shared afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mortise {

struct ImageTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::unique_ptr<std::byte[]> data;
  std::uint64_t num_bytes = 0;
};

class WeightImage {
 public:
  explicit WeightImage(bool bfloat16) : bfloat16_(bfloat16) {}
  void add(std::string_view name, const std::int64_t* shape, std::int64_t num_dims, const float* data);
  [[nodiscard]] const std::vector<ImageTensor>& tensors() const { return tensors_; }
  // torch's name of the numbers' format.
  [[nodiscard]] const char* dtype() const { return bfloat16_ ? "bfloat16" : "float32"; }

 private:
  bool bfloat16_;
  std::vector<ImageTensor> tensors_;
};

}  // namespace mortise
