// Choices of a LoRA adapter that the configuration names and core/model carries out.
#pragma once

#include <array>
#include <string_view>

namespace mortise {

// What A and B are at the start of training, with PEFT's formulas.
enum class LoraInit {
  kDefault,   // A uniform in +-1/sqrt(in), B zero
  kGaussian,  // A normal with deviation 1/rank, B zero
  kPissa,     // the largest singular values of the matrix, which leave the base (arXiv:2404.02948)
  kOlora,     // the first columns of its QR decomposition, which leave the base (arXiv:2406.01775)
};
constexpr auto choice_names(LoraInit) {
  return std::array<std::string_view, 4>{"default", "gaussian", "pissa", "olora"};
}
// Whether the base loses what the adapter starts with.
constexpr bool changes_base(LoraInit init) { return init == LoraInit::kPissa || init == LoraInit::kOlora; }

// Which biases of the model are trained with the adapter.
enum class LoraBias { kNone, kAll, kLoraOnly };
constexpr auto choice_names(LoraBias) { return std::array<std::string_view, 3>{"none", "all", "lora_only"}; }

}  // namespace mortise
