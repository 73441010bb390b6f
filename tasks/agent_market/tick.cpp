// A tick of many markets, as `law.ticked` does it: the same numbers, holes of the books included.

#include "book.hpp"

namespace {

using order_book::BUY;
using order_book::SELL;
namespace ob = order_book;

constexpr int64_t MAX_LATENCY = 8, SAMPLES = 50, SHORT_SAMPLES = 20, CANDLES = 65, DEPTH = 10, SLOTS_A_TICK = 256;
constexpr int64_t MAX_PRICE = ob::MAX_PRICE, MAX_FUNDAMENTAL = int64_t(1) << 40;
constexpr int64_t MAX_DEVIATION = int64_t(1) << 34;
constexpr int64_t LOG_BITS = 20, LARGEST_LOG = int64_t(8) << LOG_BITS, GROWTH_BITS = 6;
constexpr int32_t NONE = INT32_MAX;

enum Stream { NOISE_WAKES = 16, ARRIVALS, FUNDAMENTAL, NEWS, MAKER_CHOICE, TRADER, TRADER_PRICE, PARENT, VOLATILITY };
enum Class { MAKER, VALUE, MOMENTUM, NOISE };
enum Count { MESSAGES, REJECTED, EVICTED, UNPLACED, CARRIED, COUNTS };

// In the order of `background.NUMBERS`.
struct Numbers {
  int64_t session_ticks, mean_price, reversion, volatility, log_volatility_spread, log_volatility_noise;
  int64_t log_volatility_reversion, shock_chance, shock_mean, shock_spread, news_chance;
  int64_t news_magnitude, news_duration, level_spacing, first_spread, spread_alpha, share_of_volume, min_quote;
  int64_t price_skew, volume_ticks, observation_noise, aggressive_chance, depth_spread, momentum_every, latency[4];
  int64_t fair_noise, candle_ticks, max_spread, take_spread, auction_spread;
};

// In the order of the fields of `market.Layout`, without its last, then messages of the seats and thresholds of a class.
struct Layout {
  int64_t seats, makers, value, momentum, noise, slots, levels, room, orders, thresholds;
  int64_t first(int of) const {
    const int64_t counts[4] = {makers, value, momentum, noise};
    int64_t owner = seats;
    for (int i = 0; i < of; ++i) owner += counts[i];
    return owner;
  }
  int64_t owners() const { return first(NOISE) + noise; }
};

// In the order of the fields of `market.Market`.
struct MarketPointers {
  int64_t *words, *tick;
  int32_t *key, *quantity, *owner, *id, *next_id;
  int64_t *cash, *shares, *fundamental, *log_volatility, *news, *backlog;
  int32_t *noise_wakes;
  int64_t *noise_served, *spreads, *doubled_mid, *samples, *volumes, *views, *counts;
  int32_t *candles;
};

// In the order of the fields of `market.Report`.
struct ReportPointers {
  int32_t *bid, *ask, *doubled_mid, *high, *low, *bought, *sold;
  int64_t *notional;
  int32_t *trades;
  int64_t *estimate, *news;
  int32_t *prices, *quantities;
  int64_t *seat_cash, *seat_shares;
  int32_t *seat_traded, *own_quantity, *own_price, *own_size, *own_ahead, *own_id;
};

struct Block {
  int64_t word[4];
};

// Philox4x32-10, as `core.random.random_bits`.
Block random_bits(const int64_t *words, uint32_t stream, int64_t index) {
  uint32_t c[4] = {uint32_t(words[2]), uint32_t(words[3]), stream, uint32_t(index)};
  uint32_t k0 = uint32_t(words[0]), k1 = uint32_t(words[1]);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53) * c[0], p1 = uint64_t(0xCD9E8D57) * c[2];
    const uint32_t next[4] = {uint32_t(p1 >> 32) ^ c[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k1,
                              uint32_t(p0)};
    std::copy(next, next + 4, c);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

struct View {
  int64_t bid, ask, fundamental;
};

struct Flow {
  int64_t bought = 0, sold = 0, notional = 0, trades = 0, high = 0, low = NONE;
};

struct Simulation {
  const Layout &layout;
  const Numbers &numbers;
  const int64_t *arrivals;
  const int32_t *normal, *sizes, *growth;
  MarketPointers market;
  ReportPointers report;
  ob::Book book;
  Flow flow = {};

  int64_t table_normal(int64_t word, int64_t scale) const {
    return (int64_t(normal[word >> 20]) * scale + (1 << 15)) >> 16;
  }

  static int64_t fraction(int64_t word, int64_t n) { return (word * n) >> 32; }

  // Returns the volatility of this tick, and moves its logarithm on.
  int64_t volatility() {
    int64_t &log = *market.log_volatility;
    constexpr int64_t step = LOG_BITS - GROWTH_BITS, half = 1 << (step - 1);
    const int64_t factor = growth[(log + LARGEST_LOG + half) >> step];
    if (log != 0 || numbers.log_volatility_noise != 0) {
      const int64_t back = (log * numbers.log_volatility_reversion + (1 << 27)) >> 28;
      const int64_t word = random_bits(market.words, VOLATILITY, *market.tick).word[0];
      log = std::clamp(log - back + table_normal(word, numbers.log_volatility_noise), -LARGEST_LOG, LARGEST_LOG);
    }
    return (numbers.volatility * factor + (1 << 15)) >> 16;
  }

  void advance_fundamental() {
    const int64_t tick = *market.tick;
    const Block a = random_bits(market.words, FUNDAMENTAL, tick), b = random_bits(market.words, NEWS, tick);
    int64_t &value = *market.fundamental, *news = market.news;
    const int64_t away = std::clamp((numbers.mean_price << 16) - value, -MAX_DEVIATION, MAX_DEVIATION);
    int64_t after = value + ((away * numbers.reversion + (1 << 27)) >> 28) + table_normal(a.word[0], volatility());
    if (a.word[1] < numbers.shock_chance) {
      const int64_t size = std::max<int64_t>(numbers.shock_mean + table_normal(a.word[2], numbers.shock_spread), 0) << 16;
      after += a.word[3] % 2 == 0 ? size : -size;
    }
    value = std::clamp<int64_t>(after + news[3], 1 << 16, MAX_FUNDAMENTAL);
    const int64_t left = std::max<int64_t>(news[2] - 1, 0);
    if (left == 0 && b.word[0] < numbers.news_chance) {
      const int64_t sign = b.word[2] % 2 == 0 ? 1 : -1, size = 1 + fraction(b.word[1], numbers.news_magnitude);
      const int64_t ticks = 1 + fraction(b.word[3], numbers.news_duration);
      const int64_t fresh[4] = {sign, size, ticks, (size << 16) / ticks * sign};
      std::copy(fresh, fresh + 4, news);
    } else if (left > 0) {
      news[2] = left;
    } else {
      std::fill(news, news + 4, 0);
    }
  }

  void wake(const Block &words) {
    for (int of = MAKER; of <= MOMENTUM; ++of) {
      int64_t count = 0;
      for (int64_t i = 0; i < layout.thresholds; ++i) count += words.word[of] >= arrivals[of * layout.thresholds + i];
      market.backlog[of] += count;
    }
    // The wakes rise, and those before this tick are in the backlog or served.
    int64_t &waiting = market.backlog[NOISE];
    for (int64_t next = *market.noise_served + waiting; next < layout.noise; ++next, ++waiting)
      if (market.noise_wakes[next] != *market.tick) break;
  }

  View now() const { return {book.best(BUY), book.best(SELL), *market.fundamental}; }

  View view(const View &now, int64_t latency) const {
    if (latency == 0) return now;
    const int64_t *past = market.views + 3 * std::clamp<int64_t>(latency - 1, 0, MAX_LATENCY - 1);
    return {past[0], past[1], past[2]};
  }

  void carry_out(const ob::Message &message) {
    const ob::Report told = book.process(message, [&](int32_t side, int32_t maker, int64_t price, int32_t size) {
      ++flow.trades;
      flow.high = std::max(flow.high, price);
      flow.low = std::min(flow.low, price);
      if (maker < layout.seats) report.seat_traded[2 * maker + 1 - side] += size;
    });
    (told.side == BUY ? flow.bought : flow.sold) += told.filled;
    flow.notional += told.notional;
    if (message.owner >= 0 && message.owner < layout.seats && told.side >= 0)
      report.seat_traded[2 * message.owner + told.side] += told.filled;
    market.counts[MESSAGES] += told.status == ob::DONE && message.kind != ob::NOTHING;
    market.counts[REJECTED] += told.status != ob::DONE && told.status != ob::NO_MESSAGE;
    market.counts[EVICTED] += told.evicted > 0;
  }

  void requote() {
    if (layout.makers == 0 || market.backlog[MAKER] <= 0) return;
    --market.backlog[MAKER];
    ++market.counts[MESSAGES];
    const int64_t number = fraction(random_bits(market.words, MAKER_CHOICE, *market.tick).word[0], layout.makers);
    const int32_t owner = int32_t(layout.first(MAKER) + number);
    book.cancel_all(owner);
    const View seen = view(now(), numbers.latency[MAKER]);
    const bool both = seen.bid > 0 && seen.ask > 0;
    const bool close = both && seen.ask - seen.bid <= numbers.max_spread;
    const int64_t mid = (close ? seen.bid + seen.ask : *market.doubled_mid) >> 1;
    int64_t &spread = market.spreads[number];
    if (both) {
      const int64_t gap = std::min(std::max<int64_t>(seen.ask - seen.bid, 0), numbers.max_spread);
      spread += ((gap * 256 - spread) * numbers.spread_alpha) >> 8;
    }
    const int64_t traded = market.volumes[BUY] + market.volumes[SELL];
    const int64_t one_sided = (market.volumes[BUY] - market.volumes[SELL]) * numbers.price_skew;
    const int64_t centre = mid + (traded > 0 ? one_sided / traded : 0), highest_bid = centre - (spread >> 9);
    const int64_t lowest_ask = std::max(centre + ((spread + 511) >> 9), highest_bid + 1);
    const int64_t step = std::max<int64_t>((spread * numbers.level_spacing + 128) >> 8, 1);
    const int64_t recent = (traded * numbers.volume_ticks) >> 16;
    const int64_t share = (recent * numbers.share_of_volume + (1 << 15)) >> 16;
    const int64_t quantity = std::min<int64_t>(std::max<int64_t>({share, numbers.min_quote, 1}), book.most);
    std::vector<int64_t> bids(layout.levels), asks(layout.levels);
    for (int64_t level = 0; level < layout.levels; ++level) {
      bids[level] = highest_bid - level * step;
      asks[level] = lowest_ask + level * step;
    }
    const auto told = book.quote(owner, bids.data(), asks.data(), int32_t(layout.levels), int32_t(quantity));
    market.counts[EVICTED] += told.evicted;
    market.counts[UNPLACED] += 2 * layout.levels - told.placed;
  }

  void serve(int64_t slot) {
    int64_t *backlog = market.backlog;
    const int64_t waiting = backlog[VALUE] + backlog[MOMENTUM] + backlog[NOISE];
    if (waiting <= 0) return;
    const int64_t index = *market.tick * SLOTS_A_TICK + slot;
    const Block a = random_bits(market.words, TRADER, index);
    const int64_t served = fraction(a.word[0], waiting);
    const int of = served < backlog[VALUE] ? VALUE : served < backlog[VALUE] + backlog[MOMENTUM] ? MOMENTUM : NOISE;
    --backlog[of];
    const View seen = view(now(), numbers.latency[of]);
    const bool both = seen.bid > 0 && seen.ask > 0;
    bool buys = a.word[3] % 2 == 0;
    int64_t owner, price;
    int32_t kind = ob::LIMIT;
    if (of == VALUE) {
      const Block b = random_bits(market.words, TRADER_PRICE, index);
      owner = layout.first(VALUE) + fraction(a.word[1], layout.value);
      const int64_t noisy = table_normal(b.word[1], numbers.observation_noise);
      price = (seen.fundamental + noisy + (1 << 15)) >> 16;
      if (both) {
        const int64_t most = numbers.max_spread, gap = std::min(std::max<int64_t>(seen.ask - seen.bid, 0), most);
        const bool mispriced = price > seen.ask + most || price < seen.bid - most;
        const bool touches = b.word[2] < numbers.aggressive_chance || mispriced;
        const int64_t away = touches ? 0 : fraction(b.word[0], numbers.depth_spread * gap);
        buys = price >= (seen.bid + seen.ask) >> 1;
        price = buys ? seen.ask - away : seen.bid + away;
      }
      kind = ob::REPLACE_ALL;
    } else {
      if (of == MOMENTUM) {
        owner = layout.first(MOMENTUM) + fraction(a.word[1], layout.momentum);
        int64_t whole = 0, late = 0;
        for (int64_t i = 0; i < SAMPLES; ++i) {
          whole += market.samples[i];
          late += i >= SAMPLES - SHORT_SAMPLES ? market.samples[i] : 0;
        }
        buys = 5 * late >= 2 * whole;
      } else {
        owner = layout.first(NOISE) + (*market.noise_served)++;
      }
      if (!both || seen.ask - seen.bid > numbers.take_spread) return;
      price = buys ? seen.ask : seen.bid;
    }
    const int32_t limit = int32_t(std::clamp<int64_t>(price, 1, MAX_PRICE));
    carry_out({kind, buys ? BUY : SELL, limit, sizes[a.word[2] >> 20], int32_t(owner), -1});
  }

  // Orders are carried out in the first of the ticks.
  void ticks(const int32_t *const *orders, int64_t count) {
    std::fill(report.seat_traded, report.seat_traded + 2 * layout.seats, 0);
    *report.bought = *report.sold = *report.trades = *report.high = 0;
    *report.low = NONE;
    *report.notional = 0;
    for (int64_t number = 0; number < count; ++number) {
      flow = Flow();
      const Block words = random_bits(market.words, ARRIVALS, *market.tick);
      advance_fundamental();
      wake(words);
      for (int64_t i = 0; i < (number == 0 ? layout.orders : 0); ++i)
        carry_out({orders[0][i], orders[1][i], orders[2][i], orders[3][i], orders[4][i], orders[5][i]});
      requote();
      for (int64_t slot = 0; slot < layout.slots; ++slot) serve(slot);
      close();
      *report.estimate = *market.fundamental + int64_t(normal[words.word[3] >> 20]) * numbers.fair_noise;
    }
    look();
  }

  // Divisions are slow, and mostly the divisor is 1.
  static bool is_multiple(int64_t tick, int64_t of) { return of <= 1 || tick % of == 0; }

  static int32_t as_int32(int64_t doubled) { return int32_t(std::min<int64_t>(doubled, INT32_MAX)); }

  void close() {
    const View last = now();
    if (last.bid > 0 && last.ask > 0 && last.ask - last.bid <= numbers.max_spread)
      *market.doubled_mid = last.bid + last.ask;
    const int64_t mid = *market.doubled_mid, tick = (*market.tick)++;
    if (is_multiple(*market.tick, numbers.momentum_every)) {
      std::memmove(market.samples, market.samples + 1, sizeof(int64_t) * (SAMPLES - 1));
      market.samples[SAMPLES - 1] = mid;
    }
    const int64_t rate = (1 << 16) / std::max<int64_t>(numbers.volume_ticks, 1), volume[2] = {flow.bought, flow.sold};
    for (int side = 0; side < 2; ++side)
      market.volumes[side] += (((volume[side] << 16) - market.volumes[side]) * rate) >> 16;
    std::memmove(market.views + 3, market.views, sizeof(int64_t) * 3 * (MAX_LATENCY - 1));
    const int64_t seen[3] = {last.bid, last.ask, last.fundamental};
    std::copy(seen, seen + 3, market.views);
    market.counts[CARRIED] += market.backlog[VALUE] + market.backlog[MOMENTUM] + market.backlog[NOISE];
    const int32_t high = as_int32(flow.trades > 0 ? std::max(mid, 2 * flow.high) : mid);
    const int32_t low = as_int32(flow.trades > 0 ? std::min(mid, 2 * flow.low) : mid);
    add_candle(is_multiple(tick, numbers.candle_ticks), as_int32(mid), high, low);
    *report.high = std::max(*report.high, high);
    *report.low = std::min(*report.low, low);
    *report.bought += int32_t(flow.bought);
    *report.sold += int32_t(flow.sold);
    *report.notional += flow.notional;
    *report.trades += int32_t(flow.trades);
  }

  void add_candle(bool opens, int32_t mid, int32_t high, int32_t low) {
    if (opens)
      for (int row = 0; row < 5; ++row) {
        int32_t *candles = market.candles + row * CANDLES;
        std::memmove(candles, candles + 1, sizeof(int32_t) * (CANDLES - 1));
      }
    int32_t *newest = market.candles + CANDLES - 1;
    const int32_t volume = int32_t(flow.bought + flow.sold), trades = int32_t(flow.trades);
    newest[0] = mid;
    newest[CANDLES] = opens ? high : std::max(newest[CANDLES], high);
    newest[2 * CANDLES] = opens ? low : std::min(newest[2 * CANDLES], low);
    newest[3 * CANDLES] = opens ? volume : newest[3 * CANDLES] + volume;
    newest[4 * CANDLES] = opens ? trades : newest[4 * CANDLES] + trades;
  }

  void look() {
    *report.bid = int32_t(market.views[0]);
    *report.ask = int32_t(market.views[1]);
    *report.doubled_mid = as_int32(*market.doubled_mid);
    std::copy(market.news, market.news + 4, report.news);
    std::copy(market.cash, market.cash + layout.seats, report.seat_cash);
    std::copy(market.shares, market.shares + layout.seats, report.seat_shares);
    std::fill(report.own_quantity, report.own_quantity + 2 * layout.seats, 0);
    std::fill(report.own_price, report.own_price + 2 * layout.seats, 0);
    std::fill(report.own_size, report.own_size + 2 * layout.seats, 0);
    std::fill(report.own_ahead, report.own_ahead + 2 * layout.seats, 0);
    std::fill(report.own_id, report.own_id + 2 * layout.seats, -1);
    for (int side = 0; side < 2; ++side) {
      look_at_levels(side);
      look_at_own(side);
    }
  }

  // The best levels of a side, a hole is at none; without branches, which would be guessed wrong at every level.
  void look_at_levels(int number) {
    const ob::Side &side = book.sides[number];
    // Places 0 and DEPTH + 1 are for what comes before the first level and after the last.
    int32_t prices[DEPTH + 2] = {}, quantities[DEPTH + 2] = {}, last = ob::EMPTY, at_level = 0;
    int64_t level = 0;
    for (int64_t i = 0; i < layout.room && level <= DEPTH && side.key[i] != ob::EMPTY; ++i) {
      const int32_t quantity = side.quantity[i], key = quantity > 0 ? side.key[i] : last;
      level += key != last;
      at_level = quantity + (key == last ? at_level : 0);
      last = key;
      prices[level] = key;
      quantities[level] = at_level;
    }
    for (int64_t i = 0; i < DEPTH; ++i) report.prices[number * DEPTH + i] = std::abs(prices[i + 1]);
    std::copy(quantities + 1, quantities + 1 + DEPTH, report.quantities + number * DEPTH);
  }

  // The orders of the seats; most books have none.
  void look_at_own(int number) {
    const ob::Side &side = book.sides[number];
    const int32_t seats = int32_t(layout.seats);
    int32_t any = 0;
    for (int64_t i = 0; i < layout.room; ++i) any |= (side.owner[i] < seats) & (side.quantity[i] > 0);
    if (!any) return;
    int32_t last = ob::EMPTY, at_level = 0;
    for (int64_t i = 0; i < layout.room && side.key[i] != ob::EMPTY; ++i) {
      const int32_t quantity = side.quantity[i];
      if (quantity == 0) continue;
      if (side.key[i] != last) {
        last = side.key[i];
        at_level = 0;
      }
      if (side.owner[i] < layout.seats) {
        const int64_t place = 2 * side.owner[i] + number;
        if (report.own_quantity[place] == 0) {
          report.own_price[place] = std::abs(last);
          report.own_size[place] = quantity;
          report.own_ahead[place] = at_level;
          report.own_id[place] = side.id[i];
        }
        report.own_quantity[place] += quantity;
      }
      at_level += quantity;
    }
  }
};

// Moves the pointers of a struct of pointers on by one market.
template <typename Pointers>
Pointers of_market(void *const *first, const int64_t *bytes, int64_t number) {
  constexpr size_t count = sizeof(Pointers) / sizeof(void *);
  Pointers result;
  void *moved[count];
  for (size_t i = 0; i < count; ++i) moved[i] = static_cast<char *>(first[i]) + bytes[i] * number;
  std::memcpy(&result, moved, sizeof(result));
  return result;
}

// Asks for the memory of a market before its turn: markets lie kilobytes apart, which the processor does not foresee.
void prefetch(const MarketPointers &market, int64_t room) {
  const auto lines = [](const void *first, int64_t bytes) {
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(static_cast<const char *>(first) + byte, 1);
  };
  for (const int32_t *column : {market.key, market.quantity, market.owner, market.id})
    lines(column, 2 * room * int64_t(sizeof(int32_t)));
  lines(market.samples, SAMPLES * int64_t(sizeof(int64_t)));
  lines(market.views, 3 * MAX_LATENCY * int64_t(sizeof(int64_t)));
  lines(market.candles, 5 * CANDLES * int64_t(sizeof(int32_t)));
  lines(market.noise_wakes + *market.noise_served, 1);
  lines(market.cash, 1);
  lines(market.shares, 1);
}

}  // namespace

// Advances `count` markets by `ticks` ticks. Every tensor is contiguous, one market after the other; `bytes` is what a market has of each.
// The steps between the markets' numbers and arrivals are 0 where all share them. Returns whether every owner of an
// order that was met has an account.
extern "C" int32_t vecenv_agent_market_tick(
    int64_t count, int64_t ticks, const int64_t *sizes_of, void *const *market, const int64_t *market_bytes,
    const int32_t *const *orders, const int64_t *numbers, int64_t numbers_step, const int64_t *arrivals,
    int64_t arrivals_step, const int32_t *normal, const int32_t *sizes, const int32_t *growth, void *const *report,
    const int64_t *report_bytes) {
  Layout layout;
  std::memcpy(&layout, sizes_of, sizeof(layout));
  auto next = of_market<MarketPointers>(market, market_bytes, 0);
  for (int64_t n = 0; n < count; ++n) {
    Numbers own;
    std::memcpy(&own, numbers + n * numbers_step, sizeof(own));
    const auto state = next;
    const auto told = of_market<ReportPointers>(report, report_bytes, n);
    if (n + 1 < count) {
      next = of_market<MarketPointers>(market, market_bytes, n + 1);
      prefetch(next, layout.room);
    }
    ob::Book book{layout.room, layout.owners(), int32_t(INT32_MAX / (layout.room + 1)), {}, state.next_id,
                  state.cash, state.shares};
    for (int64_t side = 0; side < 2; ++side) {
      const int64_t first = side * layout.room;
      book.sides[side] = {state.key + first, state.quantity + first, state.owner + first, state.id + first};
    }
    const int32_t *sent[6];
    for (int column = 0; column < 6; ++column) sent[column] = orders[column] + n * layout.orders;
    Simulation simulation{layout, own, arrivals + n * arrivals_step, normal, sizes, growth, state, told, std::move(book)};
    simulation.ticks(sent, ticks);
    if (simulation.book.without_account) return 0;
  }
  return 1;
}
