// One book, as `matching.process` and `accounts.settled` do it: the same numbers, holes included.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace order_book {

enum Kind { NOTHING, LIMIT, MARKET, IMMEDIATE, POST_ONLY, CANCEL, CANCEL_ALL, MODIFY, REPLACE, REPLACE_ALL };
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
  std::vector<int32_t> scratch = {};

  bool valid(const Message &m) const {
    const bool ordered = (m.kind >= LIMIT && m.kind <= POST_ONLY) || m.kind == REPLACE_ALL;
    const bool again = m.kind == MODIFY || m.kind == REPLACE;
    if (m.kind < NOTHING || m.kind > REPLACE_ALL || m.owner < 0 || m.owner >= owners) return false;
    if (!ordered && !again) return true;
    if (m.quantity < 1 || m.quantity > most) return false;
    if (m.kind != MARKET && (m.price < 1 || m.price > MAX_PRICE)) return false;
    return again || m.side == BUY || m.side == SELL;
  }

  Report process(const Message &m) {
    return process(m, [](int32_t, int32_t, int64_t, int32_t) {});
  }

  // Calls `traded(side of the incoming order, owner of the other, price, size)` for every trade.
  template <typename Traded>
  Report process(const Message &m, Traded traded) {
    Report report;
    if (m.kind == NOTHING) {
      report.status = NO_MESSAGE;
    } else if (!valid(m)) {
      report.status = INVALID;
    } else if (m.kind == CANCEL_ALL) {
      report.cancelled = cancel_all(m.owner);
    } else if (m.kind >= CANCEL && m.kind <= REPLACE) {
      change(m, report, traded);
    } else {
      if (m.kind == REPLACE_ALL) report.cancelled = cancel_all(m.owner);
      report.side = m.side;
      report.id = (*next_id)++;
      if (m.kind == POST_ONLY && meets(m)) {
        report.status = WOULD_TRADE;
      } else {
        come_in(m, report, m.kind != MARKET && m.kind != IMMEDIATE, traded);
      }
    }
    return report;
  }

  int32_t cancel_all(int32_t whose) {
    int32_t cancelled = 0;
    for (Side &side : sides)
      for (int64_t i = 0; i < room; ++i)
        if (side.owner[i] == whose) {
          cancelled += side.quantity[i];
          side.quantity[i] = 0;
        }
    return cancelled;
  }

  // The best price of a side, 0 if it is empty.
  int32_t best(int32_t number) const {
    const Side &side = sides[number];
    for (int64_t i = 0; i < room && side.key[i] != EMPTY; ++i)
      if (side.quantity[i] > 0) return std::abs(side.key[i]);
    return 0;
  }

  struct Requote {
    int32_t placed = 0, evicted = 0, cancelled = 0;
  };

  // As `requoting.requoted`, of orders that have left the book already.
  Requote quote(int32_t owner, const int64_t *bids, const int64_t *asks, int32_t count, int32_t quantity) {
    Requote told;
    const int64_t bid = best(BUY), ask = best(SELL), below = ask > 0 ? ask : int64_t(MAX_PRICE) + 1;
    for (int32_t number = 0; number < 2; ++number) {
      const int64_t *prices = number == BUY ? bids : asks;
      Side &side = sides[number];
      const size_t bytes = sizeof(int32_t) * room;
      scratch.resize(4 * room);
      int32_t *columns[4] = {side.key, side.quantity, side.owner, side.id};
      for (int c = 0; c < 4; ++c) std::memcpy(scratch.data() + c * room, columns[c], bytes);
      const int32_t *key = scratch.data(), *there = key + room, *owners_of = there + room, *ids = owners_of + room;
      int64_t place = 0, from = 0;
      int32_t next = 0;
      while (true) {
        while (from < room && there[from] == 0) ++from;
        while (next < count && !(number == BUY ? prices[next] >= 1 && prices[next] < below
                                               : prices[next] <= MAX_PRICE && prices[next] > bid))
          ++next;
        if (from == room && next == count) break;
        const int32_t own = next == count ? EMPTY : int32_t(number == BUY ? -prices[next] : prices[next]);
        const bool order = from < room && (next == count || key[from] <= own);
        if (place < room) {
          side.key[place] = order ? key[from] : own;
          side.quantity[place] = order ? there[from] : quantity;
          side.owner[place] = order ? owners_of[from] : owner;
          side.id[place] = order ? ids[from] : *next_id + number * count + next;
          told.placed += !order;
        } else {
          told.evicted += order;
        }
        ++place;
        if (order) {
          ++from;
        } else {
          ++next;
        }
      }
      for (int64_t i = std::min(place, room); i < room; ++i) {
        side.key[i] = EMPTY;
        side.quantity[i] = 0;
        side.owner[i] = side.id[i] = -1;
      }
    }
    *next_id += 2 * count;
    return told;
  }

  template <typename Traded>
  void change(const Message &m, Report &report, Traded traded) {
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
      come_in(again, report, true, traded, place);
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
  template <typename Traded>
  void come_in(const Message &m, Report &report, bool stays, Traded traded, int64_t left_place = -1) {
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
      traded(m.side, other.owner[i], price, size);
    }
    cash[m.owner] -= sign * report.notional;
    shares[m.owner] += sign * report.filled;
    if (stays && left > 0) rest(m, left, left_place, report);
  }

  int64_t first_hole(const Side &side) const {
    constexpr int64_t block = 16;
    for (int64_t first = 0; first + block <= room; first += block) {
      int32_t any = 0;
      // Without a branch in the loop, so that the compiler compares many at once.
      for (int64_t i = 0; i < block; ++i) any |= side.quantity[first + i] == 0;
      if (any) return std::find(side.quantity + first, side.quantity + first + block, 0) - side.quantity;
    }
    return std::find(side.quantity + room / block * block, side.quantity + room, 0) - side.quantity;
  }

  void rest(const Message &m, int32_t quantity, int64_t hole, Report &report) {
    Side &own = sides[m.side];
    const int32_t key = -limit(m);
    const int64_t rank = std::upper_bound(own.key, own.key + room, key) - own.key;
    if (hole < 0) hole = first_hole(own);
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

}  // namespace order_book
