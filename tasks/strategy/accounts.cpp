// A day of many accounts of stock trading with whole shares, long only, rationed pro rata: the law of `rules.md` for
// programs (P) and paths (M) on K symbols. Lanes are paths, so that a sum over symbols is a sum of vectors. Money and
// shares are whole numbers below 2^53 in double precision, whose sums are exact in any order; it is built without
// contraction of products and sums.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

constexpr int LANES = 64;
constexpr double STEPS = 65536.0;

}  // namespace

// Prices of a day by symbol and path, (K, M), in ticks; `shown` is the next close in currency.
struct Day {
  const float *fill, *buy, *sell, *next, *shown, *tradable;
  const double *reserved;  // what a target weight counts on to pay for a share
};

struct Rules {
  int64_t paths, symbols, weights, bars_left;
  double commission, dead_zone, hmax, ruin_fraction, tick_size;
};

// Accounts by program and path, (P, M), and holdings by program, symbol and path, (P, K, M).
struct Accounts {
  double *cash, *value, *traded, *refusals, *days, *ended;
  const double *start_value;
  float *holdings;
};

namespace {

// Of what programs read of their accounts, in the order of the vocabulary.
enum Feature { CASH, VALUE, HOLDINGS, HELD, CASH_SHARE, GAIN, BARS_LEFT, FEATURES };

// By value, which is what the compiler makes vectors of.
template <typename T>
inline T least(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T most(T a, T b) {
  return a < b ? b : a;
}

inline double commission_of(double value, double rate) { return least(std::ceil(value * rate), value); }

template <bool WEIGHTS>
void step(const Rules rules, const Day &day, const Accounts &accounts, const float *outputs, int64_t program,
          int64_t first, int count, float *wanted, float *sold) {
  const int64_t symbols = rules.symbols, paths = rules.paths, place = program * paths + first;
  const double rate = rules.commission, dead_zone = rules.dead_zone, wide = rules.hmax, ruin = rules.ruin_fraction;
  const float hmax = float(wide), idle_up_to = float(dead_zone), finite_up_to = std::numeric_limits<float>::max();
  double *cash = accounts.cash + place, *value = accounts.value + place, *traded = accounts.traded + place;
  double *refusals = accounts.refusals + place, *days = accounts.days + place, *ended = accounts.ended + place;
  const double *start = accounts.start_value + place;
  float total[LANES] = {}, refused[LANES] = {}, live[LANES];
  double proceeds[LANES] = {}, cost[LANES] = {}, spent[LANES] = {}, worth[LANES] = {}, ratio[LANES], left[LANES];

  for (int64_t symbol = 0; symbol < symbols; ++symbol) {
    const float *said = outputs + (program * symbols + symbol) * paths + first;
    float *own = wanted + symbol * LANES;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      if constexpr (WEIGHTS) {
        const bool finite = std::fabs(said[i]) <= finite_up_to;
        const float weight = finite ? said[i] : 0.0f;
        const float steps = std::floor(least(most(weight, 0.0f), 1.0f) * float(STEPS));
        refused[i] += finite ? 0.0f : 1.0f;
        total[i] += steps;
        // Of what is no number nothing is ordered.
        own[i] = finite ? steps : -1.0f;
      } else {
        const bool number = said[i] == said[i];
        const float share = float(double(said[i]) / wide);
        const float action = least(most(number ? share : 0.0f, -1.0f), 1.0f);
        refused[i] += number ? 0.0f : 1.0f;
        own[i] = std::fabs(action) <= idle_up_to ? 0.0f : std::trunc(action * hmax);
      }
    }
  }
  for (int64_t symbol = 0; symbol < symbols; ++symbol) {
    const int64_t lane = symbol * paths + first;
    const float *held = accounts.holdings + program * symbols * paths + lane, *tradable = day.tradable + lane;
    const float *fill = day.fill + lane, *buy = day.buy + lane, *sell = day.sell + lane;
    const double *reserved = day.reserved + lane;
    float *own = wanted + symbol * LANES, *given = sold + symbol * LANES;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      float order = own[i];
      if constexpr (WEIGHTS) {
        const double steps = own[i], shared = std::floor(steps * STEPS / double(total[i]));
        const double weight = (total[i] > float(STEPS) ? shared : steps) / STEPS;
        const double price = reserved[i] > 0.0 ? reserved[i] : 1.0;
        const double target = std::floor(std::floor(weight * value[i]) / price);
        order = float(reserved[i] > 0.0 ? target : 0.0) - held[i];
        const double size = double(std::fabs(order)) * double(fill[i]);
        order = (own[i] < 0.0f) | ((dead_zone > 0.0) & (size <= dead_zone * value[i])) ? 0.0f : order;
      }
      order = most(tradable[i] > 0.0f ? order : 0.0f, -held[i]);
      const float bought = most(order, 0.0f), gone = bought - order;
      own[i] = bought;
      given[i] = gone;
      proceeds[i] += double(gone) * double(sell[i]);
      cost[i] += double(bought) * double(buy[i]);
    }
  }
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    left[i] = cash[i] + proceeds[i] - commission_of(proceeds[i], rate);
    const double need = cost[i] + commission_of(cost[i], rate);
    const double steps = least(std::floor(left[i] * STEPS / most(need, 1.0)), STEPS);
    // A quotient just below a whole number may have been rounded up to it: check the cost at this ratio.
    const double high = std::floor(need / STEPS), low = need - high * STEPS;
    const double owed = steps * high + std::floor((steps * low + (STEPS - 1.0)) / STEPS);
    ratio[i] = (owed > left[i] ? steps - 1.0 : steps) / STEPS;
    live[i] = ended[i] > 0.0 ? 0.0f : 1.0f;
  }
  for (int64_t symbol = 0; symbol < symbols; ++symbol) {
    const int64_t lane = symbol * paths + first;
    float *held = accounts.holdings + program * symbols * paths + lane;
    const float *buy = day.buy + lane, *next = day.next + lane;
    const float *own = wanted + symbol * LANES, *given = sold + symbol * LANES;
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const float bought = float(std::trunc(double(own[i]) * ratio[i]));
      const float after = live[i] > 0.0f ? held[i] + (bought - given[i]) : held[i];
      spent[i] += double(bought) * double(buy[i]);
      worth[i] += double(after) * double(next[i]);
      held[i] = after;
    }
  }
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    const bool lives = live[i] > 0.0f;
    const double paid = least(commission_of(spent[i], rate), most(left[i] - spent[i], 0.0));
    const double money = left[i] - spent[i] - paid, all = money + worth[i];
    cash[i] = lives ? money : cash[i];
    value[i] = lives ? all : value[i];
    traded[i] = lives ? proceeds[i] + spent[i] : 0.0;
    refusals[i] += lives ? double(refused[i]) + (ratio[i] < 1.0 ? 1.0 : 0.0) : 0.0;
    days[i] += lives ? 1.0 : 0.0;
    // An account that is worth nothing stays as it is.
    ended[i] = value[i] <= start[i] * ruin ? 1.0 : ended[i];
  }
}

// Write what a program reads of its accounts on the next day, by symbol and path.
void show(const Rules rules, const Day &day, const Accounts &accounts, float *const *rows, int64_t program,
          int64_t first, int count) {
  const int64_t symbols = rules.symbols, paths = rules.paths, place = program * paths + first;
  const double *value = accounts.value + place, *start = accounts.start_value + place, *cash = accounts.cash + place;
  for (int feature = 0; feature < FEATURES; ++feature) {
    float *row = rows[program * FEATURES + feature];
    if (!row) continue;
    float number[LANES];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      const double all = value[i] * rules.tick_size, free = cash[i] * rules.tick_size;
      const double told = feature == CASH         ? free
                          : feature == VALUE      ? all
                          : feature == CASH_SHARE ? free / most(all, 1e-12)
                          : feature == GAIN       ? value[i] / most(start[i], 1.0) - 1.0
                                                  : double(rules.bars_left);
      number[i] = float(told);
    }
    for (int64_t symbol = 0; symbol < symbols; ++symbol) {
      const int64_t lane = symbol * paths + first;
      const float *held = accounts.holdings + program * symbols * paths + lane, *price = day.shown + lane;
      float *own = row + lane;
      if (feature == HELD) {
#pragma omp simd
        for (int i = 0; i < count; ++i) {
          const double worth = double(held[i]) * double(price[i]);
          own[i] = float(worth / most(value[i] * rules.tick_size, 1e-12));
        }
      } else {
        std::copy_n(feature == HOLDINGS ? held : number, count, own);
      }
    }
  }
}

}  // namespace

// Step the accounts of the programs from `first` to `last` by what these said, (P, K, M), and write for each feature of
// a program, (P, FEATURES), that is read, and not null, its row of (K, M) numbers.
extern "C" void vecenv_accounts_day(int64_t first, int64_t last, const Rules *rules, const Day *day,
                                    const Accounts *accounts, const float *outputs, float *const *rows) {
  std::vector<float> wanted(rules->symbols * LANES), sold(rules->symbols * LANES);
  for (int64_t program = first; program < last; ++program)
    for (int64_t path = 0; path < rules->paths; path += LANES) {
      const int count = int(std::min<int64_t>(LANES, rules->paths - path));
      const auto stepped = rules->weights ? step<true> : step<false>;
      stepped(*rules, *day, *accounts, outputs, program, path, count, wanted.data(), sold.data());
      show(*rules, *day, *accounts, rows, program, path, count);
    }
}
