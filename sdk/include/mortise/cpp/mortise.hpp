/* The C++ SDK: one include for any plugin.
 *
 *     #include <mortise/cpp/mortise.hpp>
 *     struct ExactMatch : mortise::Reward {
 *       double hit = param("hit", 1.0, "score for a match");
 *       double score(const mortise::Row& row) const {
 *         auto want = row.text("answer");
 *         if (!want) return mortise::not_applicable;
 *         return row.completion() == *want ? hit : 0;
 *       }
 *     };
 *     MORTISE_PACK(MORTISE_REWARD("exact_match", ExactMatch))
 *
 * Reading order: plugin.hpp (parameters, errors, registration), then the kind's header. Header-only C++17 over the C
 * ABI; needs the standard library alone.
 */
#ifndef MORTISE_CPP_MORTISE_HPP_
#define MORTISE_CPP_MORTISE_HPP_

#include "advantage.hpp"
#include "losses.hpp"
#include "pass_losses.hpp"
#include "plugin.hpp"
#include "reads.hpp"
#include "reward.hpp"
#include "rollout.hpp"
#include "state.hpp"

#endif  // MORTISE_CPP_MORTISE_HPP_
