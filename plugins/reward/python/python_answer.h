// Whether an answer of python_driver.py has the shape that python.cpp reads. Code of the user's that writes to the
// driver's socket may send anything. Thread rule: free functions without state.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

namespace mortise {

// TRL: all rows of the request at once, or an error for all of them.
bool is_batch_answer(const nlohmann::json& answer, std::size_t num_rows);
// verl: one row of the request, or the end of the request.
bool is_row_answer(const nlohmann::json& answer, std::size_t num_rows);

}  // namespace mortise
