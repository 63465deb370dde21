// Moves windows of rows, and of their gradients, between the ranks.
#include "learn/optim/matrix_windows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "model/head/log_prob_head.h"

namespace mortise {

namespace {

constexpr std::string_view kWindowStage = "reading embedding and head", kWindowGradients = "gradients";

// Places of the ids in [first, first + count).
at::Tensor places_within(const at::Tensor& ids, int64_t first, int64_t count) {
  return ids.ge(first).logical_and(ids.lt(first + count)).nonzero().view({-1});
}

}  // namespace

MatrixWindows::MatrixWindows(const SpreadPart& unit, Communicator& communicator, int64_t window_bytes,
                             std::optional<Error>& error)
    : unit_(&unit),
      communicator_(&communicator),
      error_(&error),
      num_rows_(unit.tensors.front().size(0)),
      width_(unit.tensors.front().size(1)) {
  window_rows_ = rows_of_window(window_bytes, width_ * static_cast<int64_t>(unit.tensors.front().element_size()));
}

void MatrixWindows::keep_error(const Result<>& done) {
  if (!done.ok() && !*error_) *error_ = done.error();
}

void MatrixWindows::leave_file() const {
  if (files_ != nullptr) files_->release(unit_->padded);
}

// The rows of a window [count, H], from their owners.
at::Tensor MatrixWindows::fetch(int64_t first, int64_t count) {
  const at::Tensor window = at::empty({count, width_}, unit_->padded.options());
  const FlatRange all{first * width_, (first + count) * width_};
  for (int rank = 0; rank < communicator_->size() && !*error_; ++rank) {
    const FlatRange owned = unit_->shards.of(rank), part = owned.within(all);
    if (part.size() == 0) continue;
    const at::Tensor numbers = window.view({-1}).narrow(0, part.begin - all.begin, part.size());
    if (rank == communicator_->rank()) numbers.copy_(unit_->padded.narrow(0, part.begin - owned.begin, part.size()));
    keep_error(communicator_->broadcast(numbers, rank, kWindowStage));
  }
  return window;
}

void MatrixWindows::fetch_all(const Use& use) {
  const at::NoGradGuard no_grad;
  for (int64_t first = 0; first < num_rows_ && !*error_; first += window_rows_) {
    const at::Tensor rows = fetch(first, std::min(window_rows_, num_rows_ - first));
    if (use && !*error_) use(first, rows);
  }
  leave_file();
}

// Those next to `rows`. A policy with an adapter and the reference that is its base read the same ones.
at::Tensor MatrixWindows::rows_of_partner(const at::Tensor& rows, int64_t first) {
  if (partner_->unit_->padded.is_same(unit_->padded)) return rows;
  at::Tensor others = partner_->fetch(first, rows.size(0));
  if (*partner_->error_ && !*error_) *error_ = *partner_->error_;
  return others;
}

// Where a walk adds the gradient of a window. Undefined: it is not wanted.
at::Tensor MatrixWindows::gradient_of_window(int64_t first, int64_t count) {
  if (!keeps_gradient_)
    return own_gradient_.defined() ? at::zeros({count, width_}, unit_->padded.options()) : at::Tensor();
  if (!kept_gradient_.defined()) kept_gradient_ = at::zeros({num_rows_, width_}, unit_->padded.options());
  return kept_gradient_.narrow(0, first, count);
}

// Null `use`: this rank helps the others.
void MatrixWindows::go(const Meeting& next, const UseWindow& use) {
  const at::NoGradGuard no_grad;
  const bool is_back = next.walk == Walk::kBack || next.walk == Walk::kPairBack;
  const bool is_pair = next.walk == Walk::kPair || next.walk == Walk::kPairBack;
  for (int64_t first = 0; first < num_rows_ && !*error_; first += window_rows_) {
    const int64_t count = std::min(window_rows_, num_rows_ - first);
    const at::Tensor rows = fetch(first, count), others = is_pair ? rows_of_partner(rows, first) : at::Tensor();
    const at::Tensor d_rows = use && is_back ? gradient_of_window(first, count) : at::Tensor();
    if (use && !*error_) use(first, rows, others, d_rows);
    if (is_back && own_gradient_.defined()) reduce(first, d_rows, next.ranks, count);
  }
  leave_file();
  if (is_pair) partner_->leave_file();
}

// A window of the gradients of the senders, of which this rank may be one, goes to its owners.
void MatrixWindows::reduce(int64_t first, const at::Tensor& d_rows, std::span<const int> senders, int64_t count) {
  const int own = communicator_->rank();
  const auto num_senders = static_cast<int64_t>(senders.size());
  const int64_t element = static_cast<int64_t>(unit_->padded.element_size());
  const int64_t most = std::max<int64_t>(1, Shards::kRoundBytes / element / std::max<int64_t>(1, num_senders));
  const FlatRange owned = unit_->shards.of(own), all{first * width_, (first + count) * width_};
  for (int64_t begin = all.begin; begin < all.end && !*error_; begin += most) {
    const FlatRange piece = all.within({begin, begin + most}), part = owned.within(piece);
    const at::Tensor sent = d_rows.defined() ? d_rows.view({-1}).narrow(0, begin - all.begin, piece.size())
                                             : at::empty({0}, unit_->padded.options());
    std::vector<int64_t> sent_sizes, received_sizes(static_cast<size_t>(communicator_->size()), 0);
    for (int rank = 0; rank < communicator_->size(); ++rank)
      sent_sizes.push_back(d_rows.defined() ? unit_->shards.of(rank).within(piece).size() : 0);
    for (const int rank : senders) received_sizes[static_cast<size_t>(rank)] = part.size();
    const at::Tensor terms = at::empty({num_senders * part.size()}, unit_->padded.options());
    keep_error(communicator_->all_to_all(sent, sent_sizes, terms, received_sizes, kWindowGradients));
    if (*error_ || part.size() == 0) continue;
    const at::Tensor sum = own_gradient_.narrow(0, part.begin - owned.begin, part.size());
    for (int64_t i = 0; i < num_senders; ++i) sum.add_(terms.narrow(0, i * part.size(), part.size()));
  }
}

at::Tensor MatrixWindows::pick(const at::Tensor& ids_N) {
  at::Tensor out = at::zeros({ids_N.size(0), width_}, unit_->padded.options());
  fetch_all([&](int64_t first, const at::Tensor& rows) {
    const at::Tensor places = places_within(ids_N, first, rows.size(0));
    out.index_copy_(0, places, rows.index_select(0, ids_N.index_select(0, places) - first));
  });
  return out;
}

void MatrixWindows::add_gradient(const at::Tensor& ids_N, const at::Tensor& gradient_NH) {
  if ((own_gradient_.defined() || keeps_gradient_) && gradient_NH.defined()) picked_.emplace_back(ids_N, gradient_NH);
}

// The gradients of the picked rows of a window.
void MatrixWindows::add_picked(int64_t first, const at::Tensor& d_rows) const {
  for (const auto& [ids, gradient] : picked_) {
    const at::Tensor places = places_within(ids, first, d_rows.size(0));
    d_rows.index_add_(0, ids.index_select(0, places) - first, gradient.index_select(0, places));
  }
}

void MatrixWindows::send_gradient(std::span<const int> senders) {
  const at::NoGradGuard no_grad;
  const bool is_sender = std::ranges::find(senders, communicator_->rank()) != senders.end();
  for (int64_t first = 0; first < num_rows_ && !*error_; first += window_rows_) {
    const int64_t count = std::min(window_rows_, num_rows_ - first);
    at::Tensor d_rows;
    if (is_sender) {
      d_rows = at::zeros({count, width_}, unit_->padded.options());
      add_picked(first, d_rows);
    }
    reduce(first, d_rows, senders, count);
  }
  picked_.clear();
}

void MatrixWindows::collect_gradient(const at::Tensor& own_gradient) {
  own_gradient_ = own_gradient;
  keeps_gradient_ = false;
  kept_gradient_ = at::Tensor();
  picked_.clear();
}

void MatrixWindows::keep_gradient() {
  collect_gradient({});
  keeps_gradient_ = true;
}

at::Tensor MatrixWindows::take_gradient() {
  const at::NoGradGuard no_grad;
  for (int64_t first = 0; first < num_rows_ && !picked_.empty(); first += window_rows_) {
    const int64_t count = std::min(window_rows_, num_rows_ - first);
    // Summed apart, as autograd does before it adds an embedding's gradient to that of a head.
    const at::Tensor sum = at::zeros({count, width_}, unit_->padded.options());
    add_picked(first, sum);
    gradient_of_window(first, count).add_(sum);
  }
  picked_.clear();
  return std::exchange(kept_gradient_, at::Tensor());
}

// Tells the others what this rank wants, and what comes next.
MatrixWindows::Meeting MatrixWindows::meet(Walk own) {
  if (*error_) return {};
  const auto all = communicator_->exchange(std::string(1, static_cast<char>(own)), kWindowStage);
  if (!all.ok()) {
    *error_ = all.error();
    return {};
  }
  Meeting next;
  for (const std::string& wish : *all) next.walk = std::max(next.walk, static_cast<Walk>(wish.front()));
  for (size_t rank = 0; rank < all->size(); ++rank) {
    if (static_cast<Walk>((*all)[rank].front()) == next.walk) next.ranks.push_back(static_cast<int>(rank));
  }
  return next;
}

void MatrixWindows::take_part(Walk own, const UseWindow& use) {
  for (;;) {
    const Meeting next = meet(own);
    if (next.walk == Walk::kNone) return;
    const bool is_own = next.walk == own;
    go(next, is_own ? use : UseWindow());
    if (is_own) return;
  }
}

void MatrixWindows::walk(const Use& use) {
  take_part(Walk::kForward, [&](int64_t first, const at::Tensor& rows, const at::Tensor& /*of_partner*/,
                                const at::Tensor& /*d_rows*/) { use(first, rows); });
}

void MatrixWindows::walk_back(const UseBack& use) {
  take_part(Walk::kBack, [&](int64_t first, const at::Tensor& rows, const at::Tensor& /*of_partner*/,
                             const at::Tensor& d_rows) { use(first, rows, d_rows); });
}

void MatrixWindows::walk_with_partner(const UsePair& use) {
  take_part(Walk::kPair, [&](int64_t first, const at::Tensor& rows, const at::Tensor& of_partner,
                             const at::Tensor& /*d_rows*/) { use(first, rows, of_partner); });
}

void MatrixWindows::walk_back_with_partner(const UsePairBack& use) { take_part(Walk::kPairBack, use); }

void MatrixWindows::help_walks() { take_part(Walk::kNone, {}); }

}  // namespace mortise
