// Names, number formats and shapes of the weights that are on their way, in the order in which they come.
#pragma once

#include "json_answer.h"
#include "weight_image.h"

namespace mortise {

inline AnswerJson transfer_lists(const WeightImage& image, const char* names, const char* dtypes, const char* shapes) {
  AnswerJson out = {{names, AnswerJson::array()}, {dtypes, AnswerJson::array()}, {shapes, AnswerJson::array()}};
  for (const ImageTensor& tensor : image.tensors()) {
    out[names].push_back(tensor.name);
    out[dtypes].push_back(image.dtype());
    out[shapes].push_back(tensor.shape);
  }
  return out;
}

}  // namespace mortise
