// The few Python objects that vLLM wants pickled. The numbers of a pickle never come from outside.
#pragma once

#include <string>
#include <vector>

#include "protocol.h"
#include "weight_image.h"

namespace mortise {

// How vLLM's StatelessProcessGroup publishes NCCL's unique id (128 bytes) in its TCPStore, and under which key.
inline constexpr const char* kUniqueIdKey = "broadcast_from/0/0";
std::string pickled_unique_id(const std::string& id);
// [{device's uuid: (rebuild_cuda_tensor, its arguments)}, ...], as torch's reduce_tensor gives them, for each weight.
// Precondition: `shared` are the tensors of the image, in its order.
std::string pickled_shared_weights(const WeightImage& image, const std::vector<SharedWeight>& shared);

std::string base64_of(const std::string& bytes);

}  // namespace mortise
