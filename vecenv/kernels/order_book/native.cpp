// Messages to many books, one after the other, as `accounts.process_all` does them: the same numbers, holes included.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

enum Kind { NOTHING, LIMIT, MARKET, IMMEDIATE, POST_ONLY, CANCEL, CANCEL_ALL, MODIFY, REPLACE };
enum Status { NO_MESSAGE, DONE, INVALID, NOT_FOUND, WOULD_TRADE, NO_ROOM };
constexpr int32_t BUY = 0, SELL = 1, MAX_PRICE = 1 << 30, EMPTY = INT32_MAX;

struct Side {
  int32_t *key, *quantity, *owner, *id;
};

struct Message {
  int32_t kind, side, price, quantity, owner, target;
};

struct Report {
  int32_t status = DONE, side = -1, id = -1, filled = 0, rested = 0, cancelled = 0, prevented = 0;
  int32_t evicted_id = -1, evicted_owner = -1, evicted = 0;
  int64_t notional = 0;
};

struct Book {
  int64_t room, owners;
  bool evict;
  int32_t most;
  Side sides[2];
  int32_t *next_id;
  int64_t *cash, *shares;
  bool without_account = false;

  bool valid(const Message &m) const {
    const bool ordered = m.kind >= LIMIT && m.kind <= POST_ONLY, again = m.kind == MODIFY || m.kind == REPLACE;
    if (m.kind < NOTHING || m.kind > REPLACE || m.owner < 0 || m.owner >= owners) return false;
    if (!ordered && !again) return true;
    if (m.quantity < 1 || m.quantity > most) return false;
    if (m.kind != MARKET && (m.price < 1 || m.price > MAX_PRICE)) return false;
    return again || m.side == BUY || m.side == SELL;
  }

  Report process(const Message &m) {
    Report report;
    if (m.kind == NOTHING) {
      report.status = NO_MESSAGE;
    } else if (!valid(m)) {
      report.status = INVALID;
    } else if (m.kind == CANCEL_ALL) {
      for (Side &side : sides)
        for (int64_t i = 0; i < room; ++i)
          if (side.owner[i] == m.owner) {
            report.cancelled += side.quantity[i];
            side.quantity[i] = 0;
          }
    } else if (m.kind >= CANCEL) {
      change(m, report);
    } else {
      report.side = m.side;
      report.id = (*next_id)++;
      if (m.kind == POST_ONLY && meets(m)) {
        report.status = WOULD_TRADE;
      } else {
        come_in(m, report, m.kind == LIMIT || m.kind == POST_ONLY);
      }
    }
    return report;
  }

  void change(const Message &m, Report &report) {
    for (int32_t number = 0; number < 2; ++number) {
      Side &side = sides[number];
      // Without a branch in the loop, so that the compiler compares many ids at once.
      int64_t place = -1;
      for (int64_t i = 0; i < room; ++i)
        if ((side.id[i] == m.target) & (side.owner[i] == m.owner) & (side.quantity[i] > 0)) place = i;
      if (place < 0) continue;
      const int32_t shown = side.quantity[place], price = number == BUY ? -side.key[place] : side.key[place];
      if (m.kind == MODIFY && m.price == price && m.quantity <= shown) {
        side.quantity[place] = m.quantity;
        report.cancelled = shown - m.quantity;
        return;
      }
      side.quantity[place] = 0;
      report.cancelled = shown;
      if (m.kind == CANCEL) return;
      report.side = number;
      report.id = m.kind == MODIFY ? m.target : (*next_id)++;
      Message again = m;
      again.side = number;
      come_in(again, report, true, place);
      return;
    }
    report.status = NOT_FOUND;
  }

  int32_t limit(const Message &m) const {
    return m.kind == MARKET ? EMPTY - 1 : m.side == BUY ? m.price : -m.price;
  }

  bool meets(const Message &m) const {
    const Side &other = sides[1 - m.side];
    for (int64_t i = 0; i < room && other.key[i] <= limit(m); ++i)
      if (other.quantity[i] > 0) return true;
    return false;
  }

  // With the place that it left, if it has been in the book, which is then the hole that it takes.
  void come_in(const Message &m, Report &report, bool stays, int64_t left_place = -1) {
    Side &other = sides[1 - m.side];
    const int32_t most_key = limit(m);
    const int64_t sign = m.side == BUY ? 1 : -1;
    int32_t left = m.quantity;
    for (int64_t i = 0; i < room && left > 0 && other.key[i] <= most_key; ++i) {
      const int32_t there = other.quantity[i];
      if (there == 0) continue;
      if (other.owner[i] == m.owner) {
        report.prevented += there;
        other.quantity[i] = 0;
        continue;
      }
      if (other.owner[i] < 0 || other.owner[i] >= owners) {
        without_account = true;
        return;
      }
      const int32_t size = std::min(left, there);
      const int64_t price = m.side == BUY ? other.key[i] : -other.key[i], paid = price * size;
      other.quantity[i] = there - size;
      left -= size;
      report.filled += size;
      report.notional += paid;
      cash[other.owner[i]] += sign * paid;
      shares[other.owner[i]] -= sign * size;
    }
    cash[m.owner] -= sign * report.notional;
    shares[m.owner] += sign * report.filled;
    if (stays && left > 0) rest(m, left, left_place, report);
  }

  void rest(const Message &m, int32_t quantity, int64_t hole, Report &report) {
    Side &own = sides[m.side];
    const int32_t key = -limit(m);
    const int64_t rank = std::upper_bound(own.key, own.key + room, key) - own.key;
    if (hole < 0) hole = std::find(own.quantity, own.quantity + room, 0) - own.quantity;
    if (hole == room) {
      if (!evict || rank == room) {
        report.status = NO_ROOM;
        return;
      }
      hole = room - 1;
      report.evicted_id = own.id[hole];
      report.evicted_owner = own.owner[hole];
      report.evicted = own.quantity[hole];
    }
    const int64_t at = hole >= rank ? rank : rank - 1;
    const int32_t values[4] = {key, quantity, m.owner, report.id};
    int32_t *columns[4] = {own.key, own.quantity, own.owner, own.id};
    for (int c = 0; c < 4; ++c) {
      int32_t *column = columns[c];
      if (hole >= at)
        std::memmove(column + at + 1, column + at, sizeof(int32_t) * (hole - at));
      else
        std::memmove(column + hole, column + hole + 1, sizeof(int32_t) * (at - hole));
      column[at] = values[c];
    }
    report.rested = quantity;
  }
};

}  // namespace

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
