// Messages to many books, one after the other, as `accounts.process_all` does them.

#include "book.hpp"

using order_book::Book;
using order_book::Report;

// Every array is contiguous: those of the book (N, 2, K), of the accounts (N, A), of messages and reports (N, M).
// Returns whether every owner of an order that was met has an account.
extern "C" int32_t vecenv_process_all(
    int64_t books, int64_t room, int64_t slots, int64_t owners, int32_t evict, int32_t *key, int32_t *quantity,
    int32_t *owner, int32_t *id, int32_t *next_id, int64_t *cash, int64_t *shares, const int32_t *const *messages,
    int32_t *const *reports, int64_t *notional) {
  for (int64_t n = 0; n < books; ++n) {
    Book book{room, owners, evict != 0, int32_t(INT32_MAX / (room + 1)), {}, next_id + n, cash + n * owners,
              shares + n * owners};
    for (int64_t side = 0; side < 2; ++side) {
      const int64_t first = (2 * n + side) * room;
      book.sides[side] = {key + first, quantity + first, owner + first, id + first};
    }
    for (int64_t slot = n * slots; slot < (n + 1) * slots; ++slot) {
      const Report told = book.process({messages[0][slot], messages[1][slot], messages[2][slot], messages[3][slot],
                                        messages[4][slot], messages[5][slot]});
      const int32_t numbers[10] = {told.status,    told.side,      told.id,         told.filled,        told.rested,
                                   told.cancelled, told.prevented, told.evicted_id, told.evicted_owner, told.evicted};
      for (int column = 0; column < 10; ++column) reports[column][slot] = numbers[column];
      notional[slot] = told.notional;
      if (book.without_account) return 0;
    }
  }
  return 1;
}
