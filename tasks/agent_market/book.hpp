// One book, as `matching.process` and `accounts.settled` do it: the same numbers, holes included.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "places.hpp"

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
      for (int64_t first = 0; first < room && side.key[first] != EMPTY; first += BLOCK)
        for (uint32_t own = equal(side.owner + first, std::min(BLOCK, room - first), whose); own != 0; own &= own - 1) {
          int32_t &quantity = side.quantity[first + __builtin_ctz(own)];
          cancelled += quantity;
          quantity = 0;
        }
    return cancelled;
  }

  // The first place from `from` on with an order, `room` without one.
  int64_t first_order(const Side &side, int64_t from) const {
    return first_place(from, room, [&](int64_t first, int64_t count) { return above(side.quantity + first, count, 0); });
  }

  // The best price of a side, 0 if it is empty.
  int32_t best(int32_t number) const {
    const Side &side = sides[number];
    const int64_t place = first_order(side, 0);
    return place < room ? std::abs(side.key[place]) : 0;
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
    const int64_t place = first_order(other, 0);
    return place < room && other.key[place] <= limit(m);
  }

  // With the place that it left, if it has been in the book, which is then the hole that it takes.
  template <typename Traded>
  void come_in(const Message &m, Report &report, bool stays, Traded traded, int64_t left_place = -1) {
    Side &other = sides[1 - m.side];
    const int32_t most_key = limit(m);
    const int64_t sign = m.side == BUY ? 1 : -1;
    int32_t left = m.quantity;
    for (int64_t i = first_order(other, 0); i < room && left > 0 && other.key[i] <= most_key;
         i = first_order(other, i + 1)) {
      const int32_t there = other.quantity[i];
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
    // Most orders only rest, and the account of their owner is not at hand.
    if (report.filled > 0) {
      cash[m.owner] -= sign * report.notional;
      shares[m.owner] += sign * report.filled;
    }
    if (stays && left > 0) rest(m, left, left_place, report);
  }

  int64_t first_hole(const Side &side) const {
    return first_place(0, room, [&](int64_t first, int64_t count) { return equal(side.quantity + first, count, 0); });
  }

  void rest(const Message &m, int32_t quantity, int64_t hole, Report &report) {
    Side &own = sides[m.side];
    const int32_t key = -limit(m);
    const int64_t rank =
        first_place(0, room, [&](int64_t first, int64_t count) { return above(own.key + first, count, key); });
    if (hole < 0) hole = first_hole(own);
    if (hole == room) {
      if (rank == room) {
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
