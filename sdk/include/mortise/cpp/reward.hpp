/* Reward: a number per completion, row by row; BatchReward: whole groups or the whole batch at once.
 *
 * score(row) returns the reward, or not_applicable when the function has nothing to say about the row (that is not 0).
 * An exception fails that row alone: its reward stays NaN and is counted, and its text is reported.
 * Rewards of single tokens (steps of a proof, say) go into row.token_rewards(), where the class declares them.
 * Cost: that of the author's function. [compute]; the host may cut a row-wise batch and run the pieces in workers.
 */
#ifndef MORTISE_CPP_REWARD_HPP_
#define MORTISE_CPP_REWARD_HPP_

#include <atomic>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../ext/row_text.h"
#include "plugin.hpp"

namespace mortise {

inline constexpr double not_applicable = std::numeric_limits<double>::quiet_NaN();

namespace detail {

// Texts that accessors make from other values. They live as long as the object; a copy starts empty. [any]
class MadeTexts {
 public:
  MadeTexts() = default;
  MadeTexts(const MadeTexts&) {}
  MadeTexts& operator=(const MadeTexts&) { return *this; }
  ~MadeTexts() {
    for (Node* node = last_.load(); node != nullptr;) delete std::exchange(node, node->before);
  }
  std::string_view keep(std::string text) const {
    Node* const node = new Node{std::move(text), last_.load()};
    while (!last_.compare_exchange_weak(node->before, node)) {
    }
    return node->text;
  }

 private:
  struct Node {
    std::string text;
    Node* before;
  };
  mutable std::atomic<Node*> last_{nullptr};
};

// The shortest decimal that reads back as the same number, without an exponent: 99 for 99.0.
inline std::string decimal(double value) {
  char text[400];
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr};
}

inline constexpr double two_to_63 = 9223372036854775808.0;

}  // namespace detail

// One completion with all its data. Valid until score returns.
class Row {
 public:
  // `texts`: mortise.row_text/1 of the host, or null.
  Row(const mortise_reward_in* in, mortise_reward_out* out, std::int64_t index, const mortise_row_text* texts = nullptr)
      : in_(in), out_(out), texts_(texts), i_(index) {}

  std::string_view prompt() const { return cell(in_->prompt); }
  std::string_view completion() const { return cell(in_->completion); }  // special tokens left out
  std::string_view messages() const { return cell(in_->messages); }      // JSON of the chat; empty for a plain prompt
  Span<const std::int64_t> prompt_ids() const { return ids(in_->prompt_ids); }
  Span<const std::int64_t> completion_ids() const { return ids(in_->completion_ids); }  // the end token included
  std::int32_t finish_reason() const { return in_->finish_reason == nullptr ? -1 : in_->finish_reason[i_]; }
  std::int64_t group_index() const { return in_->group_index == nullptr ? 0 : in_->group_index[i_]; }
  std::int64_t sample_index() const { return in_->sample_index == nullptr ? 0 : in_->sample_index[i_]; }
  std::int64_t row_id() const { return in_->row_id == nullptr ? i_ : in_->row_id[i_]; }
  std::int64_t step() const { return in_->step; }
  std::int64_t max_response_length() const { return in_->max_response_length; }
  bool is_validation() const { return in_->is_validation != 0; }

  // The names of the data columns; the same for every row of a call.
  std::vector<std::string_view> column_names() const {
    std::vector<std::string_view> names;
    for (std::uint64_t k = 0; k < in_->num_columns; ++k) names.push_back(view(in_->columns[k]->name));
    return names;
  }
  bool has_column(std::string_view name) const { return find(name) != nullptr; }
  // MORTISE_COLUMN_* of a data column, the same for every row of a run; nothing if the row has no value there.
  std::optional<std::int32_t> type(std::string_view name) const {
    const mortise_column* c = valid(name);
    if (c == nullptr) return {};
    return c->type;
  }
  // The value of a data column in this row; nothing when there is no such column, the value is null, or it cannot be
  // had in this form without loss. A text is no number here, whatever it says; lists, objects and booleans are json().
  //   text()     texts; numbers as the shortest decimal that reads back the same: "42", "0.5", and "99" for 99.0
  //   number()   floats; integers that a double holds exactly
  //   integer()  integers; floats without a fraction: 99 for 99.0
  //   json()     lists, objects, booleans, and what data.columns declares as json, as JSON text
  // The texts live as long as the row.
  std::optional<std::string_view> text(std::string_view name) const {
    const mortise_column* c = valid(name);
    if (c == nullptr) return {};
    if (c->type == MORTISE_COLUMN_TEXT) return cell(c->text);
    if (c->type == MORTISE_COLUMN_I64) return made_.keep(std::to_string(c->i64[i_]));
    if (c->type == MORTISE_COLUMN_F64) return made_.keep(detail::decimal(c->f64[i_]));
    return {};
  }
  std::optional<double> number(std::string_view name) const {
    const mortise_column* c = valid(name);
    if (c == nullptr) return {};
    if (c->type == MORTISE_COLUMN_F64) return c->f64[i_];
    if (c->type != MORTISE_COLUMN_I64) return {};
    const double value = double(c->i64[i_]);
    if (!(value < detail::two_to_63) || std::int64_t(value) != c->i64[i_]) return {};
    return value;
  }
  std::optional<std::int64_t> integer(std::string_view name) const {
    const mortise_column* c = valid(name);
    if (c == nullptr) return {};
    if (c->type == MORTISE_COLUMN_I64) return c->i64[i_];
    if (c->type != MORTISE_COLUMN_F64) return {};
    const double value = c->f64[i_];
    if (!(value >= -detail::two_to_63 && value < detail::two_to_63) || std::floor(value) != value) return {};
    return std::int64_t(value);
  }
  std::optional<std::string_view> json(std::string_view name) const {
    const mortise_column* c = valid(name);
    if (c == nullptr || c->type != MORTISE_COLUMN_JSON) return {};
    return cell(c->text);
  }

  // One value per id of completion_ids(), 0 until assigned. They add to the value that score() returns, which counts at
  // the last token. Empty unless the class has `static constexpr std::uint32_t flags = MORTISE_FLAG_TOKEN_REWARDS`.
  Span<float> token_rewards() const {
    if (!MORTISE_HAS(out_, token_rewards) || in_->completion_ids.offsets == nullptr) return {};
    const std::uint64_t begin = in_->completion_ids.offsets[i_];
    return {out_->token_rewards + begin, std::int64_t(in_->completion_ids.offsets[i_ + 1] - begin)};
  }

  // Adds a named number to this row, for the completion files and the metric reward_extra/NAME.
  void note(std::string_view name, double value) const {
    if (MORTISE_HAS(out_, row_value)) out_->row_value(out_->sink, i_, to_text(name), value);
  }
  // Adds a named text to this row, for the completion files. "pred" is the answer that was found in the completion:
  // maj@k of a validation counts these. Lost in a host without mortise.row_text/1.
  template <class Text, class = std::enable_if_t<std::is_convertible_v<const Text&, std::string_view>>>
  void note(std::string_view name, const Text& text) const {
    if (texts_ != nullptr && texts_->note != nullptr) texts_->note(out_->sink, i_, to_text(name), to_text(text));
  }

 private:
  std::string_view cell(const mortise_text_column& c) const {
    if (c.offsets == nullptr) return {};
    return {c.bytes + c.offsets[i_], std::size_t(c.offsets[i_ + 1] - c.offsets[i_])};
  }
  Span<const std::int64_t> ids(const mortise_id_column& c) const {
    if (c.offsets == nullptr) return {};
    return {c.ids + c.offsets[i_], std::int64_t(c.offsets[i_ + 1] - c.offsets[i_])};
  }
  const mortise_column* find(std::string_view name) const {
    for (std::uint64_t k = 0; k < in_->num_columns; ++k) {
      if (view(in_->columns[k]->name) == name) return in_->columns[k];
    }
    return nullptr;
  }
  const mortise_column* valid(std::string_view name) const {
    const mortise_column* c = find(name);
    return c == nullptr || (c->valid != nullptr && c->valid[i_] == 0) ? nullptr : c;
  }

  const mortise_reward_in* in_;
  mortise_reward_out* out_;
  const mortise_row_text* texts_;
  std::int64_t i_;
  detail::MadeTexts made_;
};

// The derived class has `double score(const mortise::Row& row)`, const or not, with any number type.
class Reward : public Plugin {
 public:
  static constexpr std::int32_t granularity = MORTISE_REWARD_ROW;
};

class BatchReward : public Plugin {
 public:
  static constexpr std::int32_t granularity = MORTISE_REWARD_BATCH;  // or MORTISE_REWARD_GROUP
  // rewards[i] belongs to rows[i] and is NaN until assigned.
  virtual void score(const std::vector<Row>& rows, Span<double> rewards, Call call) = 0;
};

namespace detail {

template <class T, class = void>
struct HasScore : std::false_type {};
template <class T>
struct HasScore<T, std::void_t<decltype(double(std::declval<T&>().score(std::declval<const Row&>())))>>
    : std::true_type {};

template <class T>
struct RewardPlugin {
  static_assert(std::is_base_of_v<Reward, T> || std::is_base_of_v<BatchReward, T>,
                "MORTISE_REWARD takes a class that derives from mortise::Reward or mortise::BatchReward");
  static_assert(HasScore<T>::value || !std::is_base_of_v<Reward, T>,
                "a Reward has, in public: double score(const mortise::Row& row)");
  static const mortise_row_text* texts_of(Call call) {
    if (!MORTISE_HAS(call.host(), get_extension)) return nullptr;
    return static_cast<const mortise_row_text*>(call.host()->get_extension(MORTISE_EXT_ROW_TEXT));
  }
  static void score_rows(T& plugin, Call call, const mortise_reward_in* in, mortise_reward_out* out) {
    const mortise_row_text* const texts = texts_of(call);
    for (std::int64_t i = 0; i < in->num_rows; ++i) {
      if (call.cancelled()) fail(MORTISE_CANCELLED, "cancelled");
      try {
        out->rewards[i] = double(plugin.score(Row(in, out, i, texts)));
      } catch (const Failure& e) {
        call.fail_row(i, e.code, e.what());
      } catch (const std::exception& e) {
        call.fail_row(i, MORTISE_INTERNAL, e.what());
      }
    }
  }
  static std::int32_t score(void* self, mortise_call* raw, const mortise_reward_in* in,
                            mortise_reward_out* out) MORTISE_NOEXCEPT {
    return run<T>(self, raw, [&](T& plugin, Call call) {
      if constexpr (std::is_base_of_v<Reward, T>) {
        score_rows(plugin, call, in, out);
      } else {
        std::vector<Row> rows;
        const mortise_row_text* const texts = texts_of(call);
        for (std::int64_t i = 0; i < in->num_rows; ++i) rows.emplace_back(in, out, i, texts);
        plugin.score(rows, Span<double>(out->rewards, in->num_rows), call);
      }
    });
  }
  static constexpr mortise_reward_vtable vtable = {
      sizeof(mortise_reward_vtable), 0, create<T>, destroy<T>, get_extension<T>, T::granularity, 0, score};
  static mortise_descriptor describe(const char* name) {
    return detail::describe<T>(MORTISE_KIND_REWARD, name, MORTISE_COUPLING_TOKEN, &vtable);
  }
};

}  // namespace detail
}  // namespace mortise

#define MORTISE_REWARD(name, ...) MORTISE_PLUGIN(name, RewardPlugin<__VA_ARGS__>)

#endif  // MORTISE_CPP_REWARD_HPP_
