// What cispo and cispo_sequence share: the edges of the ratio, or its cap.
#pragma once

#include <mortise/cpp/mortise.hpp>

#include "../shared/clip.h"

namespace mortise {

template <class Base>
struct CappedRatio : Clipped<Base> {
  double cap =
      Base::param("cap", none, "absolute cap of the ratio that replaces the edges, TRL's and ms-swift's epsilon_high")
          .at_least(0);

  void setup(Call call) override {
    Clipped<Base>::setup(call);
    if (!is_set(cap)) return;
    if (is_set(this->clip_ratio_low) || is_set(this->clip_ratio_high))
      call.log(MORTISE_LOG_WARN,
               "cap is set: clip_ratio_low and clip_ratio_high have no effect; leave one or the other");
    this->low = 0;
    this->high = cap;
  }
};

}  // namespace mortise
