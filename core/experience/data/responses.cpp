#include "experience/data/responses.h"

#include <algorithm>

#include "foundation/base/text.h"
#include "foundation/base/thread_pool.h"

namespace mortise {

namespace {

Result<std::vector<int64_t>> encode_response(const Prompt& prompt, const std::string& where, const Tokenizer& tokenizer,
                                             const ResponseOptions& options) {
  const auto bad = [&where](std::string what, std::string next) {
    return Error{ErrorKind::kData, std::move(what), where, std::move(next)};
  };
  const Json* text = json_find(prompt.columns, options.key);
  if (text == nullptr || !text->is_string()) {
    return bad("the row has no text column " + quote(options.key),
               "name the completion's column with data.response_key");
  }
  auto ids = tokenizer.encode(text->get<std::string>(), /*add_special_tokens=*/false);
  if (!ids.ok()) return bad(ids.error().what, ids.error().next);
  if (options.end_id) ids->push_back(*options.end_id);
  if (ids->empty()) return bad("the completion has no tokens", "remove the row or give it a completion");
  for (const int64_t id : *ids) {
    if (options.vocab_size <= 0 || id < options.vocab_size) continue;
    return bad("token id " + std::to_string(id) + " of the completion is outside the model's vocabulary of " +
                   std::to_string(options.vocab_size),
               "use the tokenizer of the model in model.path");
  }
  const auto length = static_cast<int64_t>(ids->size());
  if (length > options.max_length) {
    return bad("the completion has " + std::to_string(length) +
                   " tokens with its end, more than data.max_response_length = " + std::to_string(options.max_length),
               "raise the limit or shorten the row");
  }
  return ids;
}

}  // namespace

Result<std::vector<std::vector<int64_t>>> encode_responses(const Dataset& dataset, const Tokenizer& tokenizer,
                                                           const ResponseOptions& options) {
  const auto num_rows = static_cast<size_t>(dataset.size());
  std::vector<std::vector<int64_t>> responses(num_rows);
  std::vector<std::optional<Error>> errors(num_rows);
  ThreadPool(0).parallel_for(0, dataset.size(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      auto ids = encode_response(dataset[row], dataset.where(row), tokenizer, options);
      if (ids.ok())
        responses[static_cast<size_t>(row)] = std::move(ids).value();
      else
        errors[static_cast<size_t>(row)] = std::move(ids).error();
    }
  });
  const auto is_bad = [](const std::optional<Error>& error) { return error.has_value(); };
  const auto num_bad = std::count_if(errors.begin(), errors.end(), is_bad);
  if (num_bad == 0) return responses;
  Error first = *std::move(*std::find_if(errors.begin(), errors.end(), is_bad));
  if (num_bad > 1) first.what += " (" + format_count(num_bad) + " of the rows cannot be learnt from)";
  return first;
}

}  // namespace mortise
