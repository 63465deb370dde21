// Decisions that all ranks must take alike although only one knows the facts: the disk, a signal, a clock. The main rank
// (0) decides and tells the others, or any rank's word counts. With one rank these are plain calls.
// Thread rule: as the Communicator.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"
#include "foundation/base/result.h"

namespace mortise {

// Runs `work` on the main rank alone. Its text, or its Error, is the result of every rank. `stage` is a literal.
Result<std::string> on_main_rank(Communicator& ranks, std::string_view stage,
                                 const std::function<Result<std::string>()>& work);
// The same of work without a result.
Result<> do_on_main_rank(Communicator& ranks, std::string_view stage, const std::function<Result<>()>& work);

// Runs `work` on every rank. The texts of all ranks in rank order, or the Error of the first rank that failed, which it
// names. Every rank has the same answer. The rank calls `meanwhile` when its work is done, until all have done theirs.
Result<std::vector<std::string>> on_every_rank(Communicator& ranks, std::string_view stage,
                                               const std::function<Result<std::string>()>& work,
                                               const Meanwhile& meanwhile = {});

// True on every rank if it is true on one.
Result<bool> on_any_rank(Communicator& ranks, std::string_view stage, bool value);

// Every rank has the same bytes: what it was started with, or what it has learnt. The Error, of `unless`, names the ranks
// that differ from most others (from rank 0, if no bytes are those of most). Its `what` is plural: "the weights".
Result<> check_same_on_ranks(Communicator& ranks, std::string_view stage, const std::string& bytes,
                             const Error& unless);
// The same of what every rank has already heard of all, in rank order. `step`: only every step-th rank must have the same, so
// that there are as many groups, of which the error names all that differ.
Result<> check_same(std::span<const std::string> all, const Error& unless, size_t step = 1);

}  // namespace mortise
