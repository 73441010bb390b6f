// One book for callers that send its messages themselves.

#include "book.hpp"

namespace {

constexpr int64_t NUMBERS = 11;

void tell(const order_book::Report &report, int64_t *told) {
  // In the order of `messages.Report`.
  const int64_t numbers[NUMBERS] = {report.status,    report.side,       report.id,
                                    report.filled,    report.rested,     report.notional,
                                    report.cancelled, report.prevented,  report.evicted_id,
                                    report.evicted_owner, report.evicted};
  std::copy(numbers, numbers + NUMBERS, told);
}

}  // namespace

// Carries out `count` messages of six numbers, in turn, in the book and the accounts at some addresses, with room for so
// many orders a side and so many owners. Returns 0, and does nothing, if an order in the book is of an owner without an
// account.
extern "C" int32_t vecenv_book_messages(void *const *memory, int64_t room, int64_t owners, int64_t count,
                                        const order_book::Message *messages, int64_t *told) {
  const auto narrow = [&](int column) { return static_cast<int32_t *>(memory[column]); };
  const auto wide = [&](int column) { return static_cast<int64_t *>(memory[column]); };
  order_book::Book book{room, owners, int32_t(INT32_MAX / (room + 1)), {}, narrow(4), wide(5), wide(6)};
  for (int64_t side = 0; side < 2; ++side) {
    const int64_t first = side * room;
    book.sides[side] = {narrow(0) + first, narrow(1) + first, narrow(2) + first, narrow(3) + first};
  }
  for (const order_book::Side &side : book.sides) {
    // Without a branch in the loop, so that the compiler compares many at once.
    bool stranger = false;
    for (int64_t i = 0; i < room; ++i)
      stranger |= (side.quantity[i] > 0) & ((side.owner[i] < 0) | (side.owner[i] >= owners));
    if (stranger) return 0;
  }
  for (int64_t n = 0; n < count; ++n)
    tell(book.process(messages[n], [](int32_t, int32_t, int64_t, int32_t) {}), told + n * NUMBERS);
  return 1;
}
