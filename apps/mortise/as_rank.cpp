// Joins the ranks of the run, and tells them how this one ended.
#include "as_rank.h"

#include <exception>
#include <memory>

#include "caught.h"
#include "dist/join.h"
#include "model/tensor/torch_guard.h"

namespace mortise {

Result<int> run_as_rank(const RunConfig& config, const std::function<Result<int>(Communicator&)>& work) {
  const std::unique_ptr<Communicator> ranks = TRY(join_ranks(config.ranks));
  try {
    Result<int> code = work(*ranks);
    if (!code.ok()) {
      ranks->fail(code.error());
      return code;
    }
    TRY(ranks->leave());
    return code;
  } catch (const c10::OutOfMemoryError& exception) {  // only a GPU throws it
    ranks->fail(full_memory_error("", MemoryUse::kUpdates, exception));
    throw;
  } catch (const std::exception& exception) {  // the others must not wait for this rank
    ranks->fail(caught_error(exception));
    throw;
  }
}

}  // namespace mortise
