// The members of a client's JSON object, read one by one. Errors say which field is wrong and how; what nobody read and
// is not null is an error too, so that no setting is silently without effect.
// Thread rule: one thread; borrows the object.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "foundation/base/result.h"
#include "foundation/formats/json.h"

namespace mortise {

// An Error about a field of a request.
[[nodiscard]] Error bad_field(std::string_view name, const std::string& what, const std::string& next = "");

class CallFields {
 public:
  explicit CallFields(const Json& object) : object_(&object) {}

  // The member, or null if it is not there or is null. It now counts as read.
  const Json* take(std::string_view name);
  Result<int64_t> integer(std::string_view name, int64_t fallback, int64_t least, int64_t most);
  Result<double> number(std::string_view name, double fallback, double least, double most);
  Result<bool> boolean(std::string_view name, bool fallback);
  Result<std::optional<std::string>> text(std::string_view name);
  // A text, or a list of texts.
  Result<std::vector<std::string>> texts(std::string_view name);
  Result<std::vector<int64_t>> ids(std::string_view name);
  // These may have any value: they change no token.
  void ignore(std::initializer_list<std::string_view> names);
  // An Error if `name` asks for something that is not there; false, 0, "" and empty lists ask for nothing.
  Result<> refuse(std::string_view name, const std::string& why);
  // An Error for the first member that was not read.
  Result<> check_all_read() const;

 private:
  const Json* object_;
  std::set<std::string, std::less<>> read_;
};

// A list of token ids, or what is wrong with it.
Result<std::vector<int64_t>> read_token_ids(const Json& list, std::string_view field);

}  // namespace mortise
